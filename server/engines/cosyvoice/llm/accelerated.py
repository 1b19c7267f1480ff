"""Decoding on an accelerator: the work of a tick as one graph of fixed shape, which starts without the host's help.

All slots up to the last one in use are computed, up to a length in steps of `STEP`: what that wastes is far less than
starting some hundred small kernels one by one would cost.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import torch
from torch import Tensor

from server.engines.cosyvoice.llm.qwen2 import Part
from server.engines.cosyvoice.llm.slots import SlotCache
from server.engines.cosyvoice.llm.speech_lm import SpeechLm

STEP: Final = 256  # positions
_COMMON_STEPS: Final = 2  # lengths that are captured before anybody speaks: voice, text and ten seconds
_WARM_UPS: Final = 2  # runs before a capture, in which libraries allocate what they keep

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """A fixed shape's inputs, and what computes it: `x` `[rows, hidden]`, `positions` `[rows]`."""

    x: Tensor
    positions: Tensor
    compute: Callable[[], Tensor]


class SlotDecoder:
    """One row for each of several slots, as `SpeechLm.run` computes them, but for rounding. Works on a CPU too, where
    it is never captured.
    """

    def __init__(self, lm: SpeechLm, cache: SlotCache, *, graphs: bool = True) -> None:
        """`graphs`: capture shapes on CUDA; else, or where that fails, kernels are started one by one."""
        self._lm, self._cache = lm, cache
        self._graphs = graphs and lm.device.type == "cuda"
        self._shapes: dict[tuple[int, int], _Shape] = {}
        self._pool = torch.cuda.graph_pool_handle() if self._graphs else None  # shared: graphs never run at once

    def warm_up(self) -> None:
        """Capture the common shapes, while nobody waits: the largest first, whose memory does for the others. Does
        nothing where nothing is captured.
        """
        with torch.inference_mode():
            slots, length = self._cache.slots, self._cache.length
            rows = {min(1 << power, slots) for power in range(slots.bit_length() + 1)}
            lengths = {min(STEP * steps, length) for steps in range(1, _COMMON_STEPS + 1)}
            for key in sorted(product(rows, lengths), reverse=True):
                if self._graphs and key not in self._shapes:
                    self._shape(*key)

    def run(self, x: Tensor, parts: Sequence[Part]) -> Tensor:
        """`x` `[n, hidden]`, one row for each of `parts`; returns `[n, hidden]`. The cache's lengths grow."""
        with torch.inference_mode():
            slots = [part.slot for part in parts]
            rows = min(1 << max(slots).bit_length(), self._cache.slots)
            needed = max(part.start for part in parts) + 1
            length = min(-(-needed // STEP) * STEP, self._cache.length)
            shape = self._shapes.get((rows, length)) or self._shape(rows, length)
            positions = [self._cache.length] * rows  # where nothing is read
            for part in parts:
                positions[part.slot] = part.start
                self._cache.lengths[part.slot] = part.start + 1
            where = torch.tensor(slots, device=x.device)
            shape.positions.copy_(torch.tensor(positions))
            shape.x.index_copy_(0, where, x)
            return shape.compute()[where]

    def _shape(self, rows: int, length: int) -> _Shape:
        x = torch.zeros(rows, self._lm.config.hidden, device=self._lm.device, dtype=self._lm.dtype)
        positions = torch.full((rows,), self._cache.length, dtype=torch.int64, device=self._lm.device)

        def compute() -> Tensor:
            return self._lm.body.run_slots(x, self._cache, positions, length)

        if self._graphs:
            try:
                compute = self._captured(compute)
            except RuntimeError as problem:
                self._graphs = False
                _log.warning("CUDA graphs cannot be used, decoding is slower: %s", str(problem).partition("\n")[0])
        self._shapes[rows, length] = shape = _Shape(x, positions, compute)
        return shape

    def _captured(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """The same as a graph, which gives its result in the same tensor every time, valid until any other graph of the
        pool runs.
        """
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                compute()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            made = compute()

        def replay() -> Tensor:
            graph.replay()
            return made

        return replay
