"""An engine pool that speaks what it spoke before from memory, without any engine.

Whole segments are kept, as they were rendered (`server/cache/audio.py`); what failed at any point is not.
"""

import asyncio
from collections.abc import Iterator
from typing import Protocol, Self

from server.cache.audio import AudioCache, Recording, spot_of
from server.cache.counts import CacheSize, CacheUse
from server.cluster.base import Capacity, EnginePool, PoolUnavailable, SegmentStream, Urgency
from server.engines.base import Capabilities
from server.engines.rendering import RenderedChunk, SegmentRequest
from server.text.pieces import says_something


class CacheObserver(Protocol):
    """Who wants to know how useful the cache is. Called on the event loop."""

    def audio_cache(self, use: CacheUse, size: CacheSize) -> None:
        """What has happened since the last call, and what is in it now."""


class CachedPool:
    """See the module text and EnginePool. Make it inside the running event loop."""

    def __init__(self, pool: EnginePool, cache: AudioCache, observer: CacheObserver | None = None) -> None:
        self.inner = pool
        self.cache = cache
        self.closed = False
        self._observer = observer
        self._told = cache.use
        self._draining = False
        self._speaking: set[_Stream] = set()  # from memory; one for each session that speaks
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def capabilities(self) -> Capabilities:
        """See EnginePool."""
        return self.inner.capabilities

    def capacity(self) -> Capacity:
        """See EnginePool. What comes from memory takes nothing of it."""
        return self.inner.capacity()

    def synthesize(self, request: SegmentRequest, start_sample: int = 0, *, principal: str = "") -> SegmentStream:
        """See EnginePool. The cache is asked when the first chunk is asked for."""
        if request.parts or request.codes:  # to be rendered as it was before
            return self.inner.synthesize(request, start_sample, principal=principal)
        return _Stream(self, request, start_sample, principal)

    async def make_voice(self, recording: bytes, text: str) -> bytes:
        """See EnginePool."""
        return await self.inner.make_voice(recording, text)

    def forget_voice(self, voice: str) -> None:
        """See EnginePool."""
        self.cache.forget_voice(voice)
        self.inner.forget_voice(voice)

    async def drain(self) -> None:
        """See EnginePool."""
        self._draining = True
        await asyncio.gather(self.inner.drain(), self._idle.wait())

    async def close(self) -> None:
        """See EnginePool."""
        self._draining = self.closed = True
        for stream in list(self._speaking):
            stream.cancel()
        await self.inner.close()

    def enter(self, stream: "_Stream") -> None:
        """A stream speaks from memory. Raises PoolUnavailable."""
        if self._draining:
            raise PoolUnavailable("the server is stopping")
        self._speaking.add(stream)
        self._idle.clear()

    def leave(self, stream: "_Stream") -> None:
        """It is over."""
        self._speaking.discard(stream)
        if not self._speaking:
            self._idle.set()

    def report(self) -> None:
        """The cache was asked, or given something."""
        if self._observer is not None:
            use = self.cache.use
            self._observer.audio_cache(use - self._told, self.cache.size)
            self._told = use


class _Stream:
    """One segment: told again, or rendered by the pool behind and recorded."""

    def __init__(self, pool: CachedPool, request: SegmentRequest, start_sample: int, principal: str) -> None:
        self.urgency = Urgency()
        self._pool = pool
        self._request = request
        self._start_sample = start_sample
        self._principal = principal
        self._spot = spot_of(request, pool.capabilities)
        self._begun = self._over = False
        self._known: Iterator[RenderedChunk] | None = None
        self._given = False
        self._rendered: SegmentStream | None = None
        self._recording: Recording | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RenderedChunk:
        if self._over:
            raise StopAsyncIteration
        if not self._begun:
            self._begin()
        if self._rendered is not None:
            return await self._render(self._rendered)
        return await self._tell()

    def _begin(self) -> None:
        self._begun = True
        kept = self._pool.cache.find(self._spot)
        self._pool.report()
        if kept is None:
            self._rendered = self._pool.inner.synthesize(self._request, self._start_sample, principal=self._principal)
            cut, lexicon = self._request.cut, self._request.lexicon  # without words a failure leaves no part to see
            if not self._start_sample and says_something(cut, lexicon):
                self._recording = Recording(self._pool.cache, self._spot)
            return
        try:
            self._pool.enter(self)
        except PoolUnavailable:
            self._over = True
            raise
        self._known = kept.again(self._spot.start, self._start_sample)

    async def _tell(self) -> RenderedChunk:
        """The next known chunk: the first at once, the others when everybody else had a turn, since nothing else here
        ever waits.
        """
        if self._given:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                self.cancel()
                raise
        self._given = True
        chunk = next(self._known, None) if self._known is not None and not self._over else None
        if chunk is None:
            self.cancel()
            raise StopAsyncIteration
        return chunk

    async def _render(self, stream: SegmentStream) -> RenderedChunk:
        stream.urgency = self.urgency
        try:
            chunk = await anext(stream)
        except StopAsyncIteration:
            self._keep()
            raise
        except BaseException:
            self._over = True
            self._spoil()
            stream.cancel()  # whatever it was: it must not go on, or be waited for, when nobody asks it any more
            raise
        if self._recording is not None:
            self._recording.add(chunk)
        return chunk

    def _keep(self) -> None:
        """The pool has no more of it: where nobody ended it early, that was all."""
        self._over = True
        if self._recording is not None and not self._pool.closed:
            self._recording.keep()
            self._pool.report()
        self._spoil()

    def _spoil(self) -> None:
        if self._recording is not None:
            self._recording.spoil()
            self._recording = None

    def cancel(self) -> None:
        """See SegmentStream."""
        if not self._over:
            self._over = True
            self._spoil()
            if self._rendered is not None:
                self._rendered.cancel()
            self._known = None
            self._pool.leave(self)
