"""What the two flow models have in common, as interfaces: `matching.py` drives either.

Frames and codes are counted from the first of the voice's prompt. In a *block* every frame sees every other one and all
that came before; nothing sees what comes after its block. One block over everything is the model without streaming.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Cache(Protocol):
    """Keys, values and convolution tails of what came before; grows with every call it is given to."""

    def copy(self) -> "Cache":
        """One that grows by itself. What is in it now may be shared."""

    @property
    def bytes(self) -> int:
        """What it holds."""


class Encoder(Protocol):
    """Codes to the estimator's `mu`."""

    def new_cache(self) -> Cache:
        """An empty cache."""

    def __call__(self, codes: Tensor, ahead: Tensor | None, blocks: Sequence[int], cache: Cache | None) -> Tensor:
        """`codes` int64 `[n]`, `ahead` the (three) codes after them, None where none come; `blocks` the lengths in
        codes of the blocks that they fall into (sum n). Returns mu `[2 n, 80]`. Without a cache nothing came before.
        """


class Estimator(Protocol):
    """The velocity of the flow at one of its steps."""

    def new_cache(self, history: int | None) -> Cache:
        """An empty cache, for one step of the solver and both rows of guidance. It keeps the frames that
        `Cache.pin()`ned it (the prompt) and at most `history` frames after those; None: all.
        """

    def __call__(
        self, x: Tensor, mu: Tensor, t: Tensor, speaker: Tensor, condition: Tensor, blocks: Sequence[int],
        cache: Cache | None,
    ) -> Tensor:  # fmt: skip
        """`x`, `mu`, `condition` `[B, frames, 80]`, `t` `[B]`, `speaker` `[B, 80]`; `blocks` in frames. Returns
        `[B, frames, 80]`.
        """
