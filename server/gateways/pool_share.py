"""One gateway's part of an engine pool whose workers all gateways use."""

from dataclasses import replace

from server.cluster.base import Capacity, EnginePool, SegmentStream
from server.engines.base import Capabilities
from server.engines.rendering import SegmentRequest


class PoolShare:
    """The pool, of whose capacity each of so many `gateways` may give away its part: together they give away all of
    it, and none has to ask the others. See EnginePool.
    """

    def __init__(self, pool: EnginePool, gateways: int) -> None:
        self._pool = pool
        self._gateways = gateways

    @property
    def capabilities(self) -> Capabilities:
        """See EnginePool."""
        return self._pool.capabilities

    def capacity(self) -> Capacity:
        """What this gateway can count on. What waits, and how late chunks come, is that of all."""
        capacity = self._pool.capacity()
        return replace(capacity, streams=capacity.streams / self._gateways)

    def synthesize(self, request: SegmentRequest, start_sample: int = 0, *, principal: str = "") -> SegmentStream:
        """See EnginePool."""
        return self._pool.synthesize(request, start_sample, principal=principal)

    async def make_voice(self, recording: bytes, text: str) -> bytes:
        """See EnginePool."""
        return await self._pool.make_voice(recording, text)

    def forget_voice(self, voice: str) -> None:
        """See EnginePool."""
        self._pool.forget_voice(voice)

    async def drain(self) -> None:
        """See EnginePool."""
        await self._pool.drain()

    async def close(self) -> None:
        """See EnginePool."""
        await self._pool.close()
