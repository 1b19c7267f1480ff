"""An engine pool whose segments do not fail: another engine, pieces or a clip take over where one did.

What becomes of a segment is decided by `server/scheduler/recovery.py`; here it is carried out. As long as nothing
fails, chunks pass through as they are.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog

from server.cluster.base import Capacity, EnginePool
from server.cluster.failures import FailedSegment
from server.cluster.recovering_stream import RecoveringStream
from server.cluster.speakers import Fallback
from server.engines.base import Capabilities
from server.engines.rendering import SegmentRequest
from server.scheduler.recovery import Breaker

log = structlog.get_logger(__name__)


class RecoveryObserver(Protocol):
    """Who wants to know what goes wrong. Called on the event loop."""

    def segment_failed(self, failed: FailedSegment) -> None:
        """A segment that did not succeed at the first attempt is over."""

    def fallback_loaded(self, loaded: bool) -> None:
        """Whether the fallback engine is in memory."""


class RecoveringPool:
    """`pool`, behind it `fallback` if there is one. Make it inside the running event loop.

    `on_failure` is told, on the event loop, of each segment that did not succeed at the first attempt: once, when it is
    over. What it raises is logged and ends no session.
    """

    def __init__(
        self, pool: EnginePool, fallback: Fallback | None, on_failure: Callable[[FailedSegment], None]
    ) -> None:
        self.inner = pool
        self.fallback = fallback
        self.breaker = Breaker()
        self.draining = False
        self.closing = False
        self._on_failure = on_failure
        self._recovering: set[RecoveringStream] = set()  # something failed in them; one for each session that speaks
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def capabilities(self) -> Capabilities:
        """The engine's, not those of the fallback engine."""
        return self.inner.capabilities

    def capacity(self) -> Capacity:
        """The engine's; see EnginePool."""
        return self.inner.capacity()

    def synthesize(self, request: SegmentRequest, start_sample: int = 0, *, principal: str = "") -> RecoveringStream:
        """Render one segment; see EnginePool. With `request.parts`, as it was rendered before."""
        return RecoveringStream(self, request, start_sample, principal)

    async def make_voice(self, recording: bytes, text: str) -> bytes:
        """See EnginePool."""
        return await self.inner.make_voice(recording, text)

    def forget_voice(self, voice: str) -> None:
        """See EnginePool."""
        self.inner.forget_voice(voice)

    async def drain(self) -> None:
        """See EnginePool."""
        self.draining = True
        await self.inner.drain()
        await self._idle.wait()

    async def close(self) -> None:
        """See EnginePool."""
        self.closing = True
        for stream in list(self._recovering):
            stream.cancel()
        if self.fallback is not None:
            await self.fallback.close()
        await self.inner.close()

    # What its streams tell

    def recovering(self, stream: RecoveringStream) -> None:
        """Something failed in it."""
        self._recovering.add(stream)
        self._idle.clear()

    def recovered(self, stream: RecoveringStream, failed: FailedSegment | None) -> None:
        """It is over, one way or the other. None: nobody is to be told."""
        self._recovering.discard(stream)
        if not self._recovering:
            self._idle.set()
        if failed is not None:
            try:
                self._on_failure(failed)
            except Exception:  # whatever it is, a listener must not suffer for who keeps account
                log.exception("a segment failed, and that could not be told")
