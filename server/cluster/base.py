"""The contract of an engine pool: one call per segment, samples come back in order.

A pool takes a segment of *source* text and gives s16 samples at the session's rate: reading the text, rendering, gain
and resampling all happen where the engine runs, off the event loop.
"""

from dataclasses import dataclass
from typing import Protocol, Self

from server.cache.counts import EMPTY, CacheSize
from server.engines.base import Capabilities, FailureKind
from server.engines.rendering import RenderedChunk, SegmentRequest
from server.scheduler.ticket import StepReport, Urgency

__all__ = [
    "Capacity",
    "EnginePool",
    "PoolObserver",
    "PoolUnavailable",
    "SegmentStream",
    "StepReport",
    "Urgency",
    "WorkerLost",
]


class WorkerLost(Exception):
    """The worker died or hangs (`kind`: worker_lost, time_out), and no other one could go on. The segment can be
    rendered again later, from its next sample.
    """

    def __init__(self, message: str, kind: FailureKind = "worker_lost") -> None:
        super().__init__(message)
        self.kind: FailureKind = kind


class PoolUnavailable(Exception):
    """The pool can take no segment now: it starts, stops, or has lost every worker. Try again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a pool can do now, as measured.

    `streams`: how many can be fed in real time (0.0: not known yet). `first_chunk_s`: how soon a worker is done with
    the next of the first chunks that wait. `waiting`, `waiting_first`: streams that wait for a step, and those of them
    that nothing is heard of yet. `late_s`: how late the latest chunk of the last seconds came, measured against its
    `due` (0.0: all in time). `workers`: engines at work. `context`: what their context caches hold.
    """

    streams: float = 0.0
    first_chunk_s: float = 0.0
    waiting: int = 0
    waiting_first: int = 0
    late_s: float = 0.0
    workers: int = 1
    context: CacheSize = EMPTY


class PoolObserver(Protocol):
    """Who wants to know what a pool does. Called on the event loop."""

    def stepped(self, report: StepReport) -> None:
        """After a step of an engine."""

    def worker_lost(self, reason: str) -> None:
        """A worker died (`died`), or hung (`hung`) and was ended. Its segments go on elsewhere."""


class SegmentStream(Protocol):
    """The chunks of one segment. Asking for the next one is what makes the engine work on it."""

    urgency: Urgency
    """Of the next chunk. Set it before asking; the default is the least urgent."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> RenderedChunk:
        """Raises EngineError, WorkerLost or PoolUnavailable where the segment cannot be rendered."""

    def cancel(self) -> None:
        """Stop working on it, at the engine's next step at the latest. Harmless when it has ended."""


class EnginePool(Protocol):
    """Where segments are rendered."""

    @property
    def capabilities(self) -> Capabilities: ...

    def capacity(self) -> Capacity:
        """What it can do now. Cheap: it may be asked for with every new session."""

    def synthesize(self, request: SegmentRequest, start_sample: int = 0, *, principal: str = "") -> SegmentStream:
        """Render one segment for `principal`, with whom others share fairly. Samples before `start_sample` (requested
        rate) are left out, and words that ended well before it.
        """

    async def make_voice(self, recording: bytes, text: str) -> bytes:
        """What an engine learnt of a voice; see ClonesVoices. Raises ValueError, which is for the recording's sender;
        EngineError; PoolUnavailable, also where too many voices are being learnt.
        """

    def forget_voice(self, voice: str) -> None:
        """A voice was deleted: keep nothing of it in this process."""

    async def drain(self) -> None:
        """Take no new segment (PoolUnavailable), and return when those at work are finished."""

    async def close(self) -> None:
        """Cancel everything and free the engine."""
