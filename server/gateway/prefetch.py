"""A segment that is rendered before its turn, beside the one being spoken, so that both engine threads have work."""

import asyncio
from collections import deque
from typing import Final, Self

from server.cluster.base import SegmentStream, Urgency
from server.engines.rendering import RenderedChunk

MAX_BYTES: Final = 1_048_576  # of PCM that wait to be asked for: a block at the highest rate is about twice that


class Prefetched:
    """A SegmentStream that asks `stream` for its chunks before anybody asks for them. Made inside the running loop.

    `due`: when its first sample is needed. Nothing hurries a chunk that was asked for already, so this should be right.
    """

    def __init__(self, stream: SegmentStream, *, due: float, sample_rate: int) -> None:
        self.urgency = Urgency(due)
        """Of the next chunk, once this is asked for chunks itself."""
        self._stream = stream
        self._due = due
        self._sample_rate = sample_rate
        self._fetched = 0  # samples
        self._chunks: deque[RenderedChunk] = deque()
        self._bytes = 0
        self._over = False
        self._failure: Exception | None = None
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._awaited = False
        self._task = asyncio.create_task(self._fetch(), name="prefetch a segment")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RenderedChunk:
        self._awaited = True
        while not self._chunks:
            if self._failure is not None:
                raise self._failure
            if self._over:
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        chunk = self._chunks.popleft()
        self._bytes -= len(chunk.pcm)
        self._room.set()
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
            while True:
                self._stream.urgency = self._of_next()
                chunk = await anext(self._stream)
                self._chunks.append(chunk)
                self._bytes += len(chunk.pcm)
                self._fetched += chunk.samples
                self._changed.set()
                while self._bytes >= MAX_BYTES:
                    self._room.clear()
                    await self._room.wait()
        except StopAsyncIteration:
            pass
        except Exception as error:  # noqa: BLE001  # whoever asks for the next chunk is told, whatever it is
            self._failure = error
        self._over = True
        self._changed.set()

    def _of_next(self) -> Urgency:
        """While nobody asks yet, or takes what is here: the later in the segment, the later it is needed."""
        if self._awaited and not self._chunks:
            return self.urgency
        return Urgency(self._due + self._fetched / self._sample_rate)
