"""Repetition-aware sampling of speech codes, for many utterances at once; each has its own stream of chances."""

from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from server.engines.cosyvoice.config import LlmConfig, SamplingConfig

_BLOCK: Final = 64  # steps whose chances are computed at once
_MAX_SEED: Final = 2**128


class Allowed(IntEnum):
    """What may be drawn."""

    ALL = 0
    CODES = 1
    CODES_AND_FILL = 2
    CODES_AND_END = 3


def allowed_table(config: LlmConfig, device: torch.device | str) -> Tensor:
    """bool `[len(Allowed), config.rows]`."""
    table = torch.zeros(len(Allowed), config.rows, dtype=torch.bool)
    table[:, : config.codes] = True
    table[Allowed.ALL] = True
    table[Allowed.CODES_AND_FILL, config.fill] = True
    table[Allowed.CODES_AND_END, config.end] = True
    return table.to(device)


class Draws:
    """The chances of one utterance: two numbers in [0, 1) for every step, functions of seed and step alone."""

    def __init__(self, seed: int) -> None:
        self._seed = seed % _MAX_SEED
        self._block = -1
        self._values: npt.NDArray[np.float64] = np.zeros((0, 2))

    def at(self, step: int) -> tuple[float, float]:
        """Of step number `step`, from 0."""
        block, row = divmod(step, _BLOCK)
        if block != self._block:
            philox = np.random.Philox(key=self._seed, counter=block << 64)  # blocks lie far apart
            self._values, self._block = np.random.Generator(philox).random((_BLOCK, 2)), block
        first, second = self._values[row]
        return float(first), float(second)


def draw(scores: Tensor, recent: Tensor, chances: Tensor, sampling: SamplingConfig) -> Tensor:
    """One id per row, int64 `[B]`. `scores` fp32 `[B, rows]` are log-probabilities up to a constant, -inf where an id
    may not be drawn; `recent` int64 `[B, window]` the last ids drawn, -1 where there are fewer; `chances` `[B, 2]`
    fp32. A row's result does not depend on the other rows.

    An id is drawn from the nucleus: the likeliest ones, as long as they come to less than `top_p` together, `top_k` at
    most. Where it makes up too much of the recent ids, another is drawn instead, of all but this one.
    """
    chances_all = scores.softmax(dim=-1)
    likely, ids = chances_all.topk(min(sampling.top_k, scores.shape[1]), dim=-1)
    before = likely.cumsum(dim=-1) - likely
    likely = likely.masked_fill(before >= sampling.top_p, 0.0)
    drawn = ids.gather(1, _pick(likely, chances[:, :1]))[:, 0]
    again = (recent == drawn[:, None]).sum(dim=1) >= sampling.window * sampling.repeat_share
    if scores.device.type == "cpu" and not bool(again.any()):  # on a device, asking costs more than computing
        return drawn
    others = chances_all.scatter(1, drawn[:, None], 0.0)
    other = _pick(others, chances[:, 1:])[:, 0]
    possible = others.sum(dim=-1) > 0
    return torch.where(again & possible, other, drawn)


def _pick(weights: Tensor, chance: Tensor) -> Tensor:
    """The place `[B, 1]` of each row of `weights` `[B, n]` where their running sum passes `chance` `[B, 1]` of all."""
    total = weights.cumsum(dim=-1, dtype=torch.float64)
    aim = chance.to(torch.float64) * total[:, -1:]
    place = torch.searchsorted(total, aim, right=True)
    # Rounding may carry the aim to the very end, where only weights of nothing lie: the last real one is meant.
    last = (weights > 0).to(torch.int64).mul_(torch.arange(weights.shape[1], device=weights.device)).amax(1, True)
    return torch.minimum(place, last)
