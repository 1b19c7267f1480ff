"""A segment that is rendered before its turn, beside the one being spoken, so that both engine threads have work."""

import asyncio
from collections import deque
from typing import Final, Self

from server.cluster.base import SegmentStream, Urgency
from server.engines.rendering import RenderedChunk

MAX_BYTES: Final = 1_048_576  # of PCM that wait to be asked for: a block at the highest rate is about twice that
AHEAD_SLACK_S: Final = 30.0  # nobody waits for it yet


class Prefetched:
    """A SegmentStream that asks `stream` for its chunks before anybody asks for them. Made inside the running loop."""

    def __init__(self, stream: SegmentStream) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._chunks: deque[RenderedChunk] = deque()
        self._bytes = 0
        self._over = False
        self._failure: Exception | None = None
        self._changed = asyncio.Event()
        self._wanted = asyncio.Event()
        stream.urgency = Urgency(self._loop.time() + AHEAD_SLACK_S)
        self._task = asyncio.create_task(self._fetch(), name="prefetch a segment")

    @property
    def urgency(self) -> Urgency:
        """See SegmentStream."""
        return self._stream.urgency

    @urgency.setter
    def urgency(self, urgency: Urgency) -> None:
        self._stream.urgency = urgency

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RenderedChunk:
        while not self._chunks:
            if self._failure is not None:
                raise self._failure
            if self._over:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        chunk = self._chunks.popleft()
        self._bytes -= len(chunk.pcm)
        self._wanted.set()
        return chunk

    def cancel(self) -> None:
        """See SegmentStream."""
        self._over = True
        self._chunks.clear()
        self._stream.cancel()
        self._task.cancel()
        self._changed.set()

    async def _fetch(self) -> None:
        try:
            async for chunk in self._stream:
                self._chunks.append(chunk)
                self._bytes += len(chunk.pcm)
                self._changed.set()
                while self._bytes >= MAX_BYTES:
                    self._wanted.clear()
                    await self._wanted.wait()
        except Exception as error:  # noqa: BLE001  # whoever asks for the next chunk is told, whatever it is
            self._failure = error
        self._over = True
        self._changed.set()
