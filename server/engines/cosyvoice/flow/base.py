"""What the two flow models have in common, as interfaces: `matching.py` drives either.

Frames and codes are counted from the first of the voice's prompt. In a *block* every frame sees every other one and all
that came before; nothing sees what comes after its block. One block over everything is the model without streaming.

Where several passes are computed in one call, each has its own blocks and cache, and its rows lie next to each other;
a pass shorter than the longest is padded at the end, and what is computed for the padding means nothing.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from server.engines.cosyvoice.flow.blocks import FlowCache


class Encoder(Protocol):
    """Embedded codes to what the estimator's `mu` is projected from."""

    def new_cache(self, history: int | None) -> FlowCache:
        """An empty cache. It keeps what was there when it was pinned (the prompt) and at most `history` frames (two
        per code) after that; None: all.
        """

    def encode(self, codes: Tensor, ahead: Tensor | None, blocks: Sequence[int], cache: FlowCache | None) -> Tensor:
        """`codes` `[n, input_size]`, `ahead` those of the (three) codes after them, None where none come; `blocks` the
        lengths in codes of the blocks that they fall into (sum n). Returns `[2 n, size]`. Without a cache nothing came
        before.
        """


class Estimator(Protocol):
    """The velocity of the flow at one of its steps."""

    def new_cache(self, history: int | None) -> FlowCache:
        """An empty cache, for one step of the solver and both rows of guidance of one pass; see `Encoder.new_cache`."""

    def velocity(
        self, x: Tensor, mu: Tensor, t: Sequence[float], speaker: Tensor, condition: Tensor,
        blocks: Sequence[Sequence[int]], caches: Sequence[FlowCache] | None,
    ) -> Tensor:  # fmt: skip
        """`x`, `mu`, `condition` `[2 m, frames, 80]`, `speaker` `[2 m, 80]` for m passes (rows 2 i and 2 i + 1 are the
        two rows of guidance of pass i), `t`, `blocks` (in frames) and `caches` one per pass. All in the dtype of the
        weights; so is the result, `[2 m, frames, 80]`.
        """
