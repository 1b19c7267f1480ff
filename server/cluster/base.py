"""The contract of an engine pool: one call per segment, samples come back in order.

A pool takes a segment of *source* text and gives s16 samples at the session's rate: reading the text, rendering, gain
and resampling all happen where the engine runs, off the event loop.
"""

from typing import Protocol, Self

from server.engines.base import Capabilities
from server.engines.rendering import RenderedChunk, SegmentRequest


class WorkerLost(Exception):
    """The worker died; the segment can go on elsewhere from its next sample."""


class SegmentStream(Protocol):
    """The chunks of one segment. Asking for the next one is what makes the engine work on it."""

    deadline: float
    """When the listener runs dry (event loop time); among streams that wait the earliest is served first."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> RenderedChunk:
        """Raises EngineError or WorkerLost where the segment cannot be rendered."""

    def cancel(self) -> None:
        """Stop working on it, at the engine's next step at the latest. Harmless when it has ended."""


class EnginePool(Protocol):
    """Where segments are rendered."""

    @property
    def capabilities(self) -> Capabilities: ...

    def synthesize(self, request: SegmentRequest, start_sample: int = 0) -> SegmentStream:
        """Render one segment. Samples before `start_sample` (requested rate) are left out."""

    async def close(self) -> None:
        """Cancel everything and free the engine."""
