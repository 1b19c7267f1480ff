"""An engine pool in this process: a few threads around one engine (`engine_threads.py`).

A stream asks for one chunk at a time, so a session that is not read costs nothing.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Self

from server.cache.counts import UNUSED
from server.cluster.base import Capacity, PoolObserver, PoolUnavailable, StepReport, WorkerLost
from server.cluster.engine_threads import EngineThreads, StreamTicket
from server.cluster.learning import Learning
from server.cluster.segment import Result, SegmentWork
from server.engines.base import Capabilities, ClonesVoices, Engine, EngineError, WordTiming
from server.engines.context_cache import EngineContextCache
from server.engines.rendering import RenderedChunk, SegmentRequest
from server.text.tokens import Boundary, Cut, CutCause

MAX_HANGS: Final = 2  # of one segment: it may be what makes the engine hang
CALIBRATION_LIMIT_S: Final = 1.0
CALIBRATION_TEXT: Final = {
    "zh": "今天天气很好，我们去公园散步。",
    "en": "The weather is fine today, we walk to the park.",
}


class _Stream(StreamTicket):
    """One segment: what the session awaits and what an engine thread works on."""

    __slots__ = (
        "_again",
        "_crashes",
        "_ended",
        "_given",
        "_hangs",
        "_pool",
        "_request",
        "_results",
        "_told",
        "_waiter",
        "_words",
    )

    def __init__(self, pool: "InProcessPool", request: SegmentRequest, start_sample: int, principal: str) -> None:
        rate = pool.capabilities.sample_rate
        size = 1 if pool.capabilities.continuous else len(request.cut.text)
        super().__init__(principal, size, SegmentWork(request, start_sample, rate))
        self._pool = pool
        self._request = request
        self._given = start_sample  # how far it got
        self._told = 0  # speech codes behind the request's
        self._words: set[WordTiming] = set()  # that were given; those of one segment
        self._results: deque[Result] = deque()  # at most what one step yields: a chunk and an end
        self._ended = False
        self._again = False
        self._crashes = 0  # of steps with it and others
        self._hangs = 0
        self._waiter: asyncio.Future[None] | None = None

    @property
    def hangs(self) -> int:
        """Steps with it that hung."""
        return self._hangs

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RenderedChunk:
        while True:
            if self._results:
                result = self._results.popleft()
                if isinstance(result, RenderedChunk):
                    if (chunk := self._fresh(result)) is not None:
                        return chunk
                    continue
                self._ended = True
                self._pool._finish(self)
                if isinstance(result, Exception):
                    raise result
            if self._ended:
                raise StopAsyncIteration
            if self._waiter is None:
                self._pool._submit(self)
                self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
            self._waiter = None

    def _fresh(self, chunk: RenderedChunk) -> RenderedChunk | None:
        """What was not given before: where the segment is rendered again, its words may come again."""
        self._given += chunk.samples
        self._told += len(chunk.codes)
        words = chunk.words
        if self._again:
            words = tuple(word for word in words if word not in self._words)
        self._words.update(words)
        if not chunk.pcm and not words and not chunk.codes:
            return None
        return chunk if words is chunk.words else replace(chunk, words=words)

    def cancel(self) -> None:
        if not self._ended:
            self._ended = True
            self._pool._forget(self)
            self._results.clear()
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def deliver(self, results: list[Result]) -> None:
        """See StreamTicket. What sounds is behind the place where a step with it crashed, so it may be with others once
        more; where that crashes again, it is left alone to its end.
        """
        if not self._ended:
            if self.alone and self._crashes == 1:
                self.alone = not any(isinstance(result, RenderedChunk) and result.pcm for result in results)
            self._results.extend(results)
            self._wake()

    def crashed(self) -> None:
        """See StreamTicket. The segment is rendered again, alone: then it is known whether it is at fault."""
        if not self._ended:
            self.alone = True
            self._crashes += 1
            self._render_again()
            self._wake()

    def _render_again(self) -> None:
        self._again = True
        request, codes = self._request, self.work.codes
        untold = codes[len(request.codes) + self._told :]
        if codes:
            request = replace(request, codes=codes)
        self.work = SegmentWork(request, self._given, self._pool.capabilities.sample_rate, untold)

    def hung(self) -> None:
        """See StreamTicket. The segment is rendered again, from the sample it had reached."""
        if self._ended:
            return
        self._hangs += 1
        if self._hangs < MAX_HANGS and not self._pool.broken:
            self._render_again()
        else:
            self._results.append(WorkerLost("the engine hangs", "time_out"))
        self._wake()


class InProcessPool:
    """See the module text. Make it inside the running event loop."""

    def __init__(
        self,
        engine: Engine,
        *,
        threads: int,
        observer: PoolObserver | None = None,
        step_timeout_s: float = 5.0,
        on_hang: Callable[[], None] | None = None,
        context_cache: EngineContextCache | None = None,
    ) -> None:
        """`on_hang` is called, on the event loop, when a step has taken `step_timeout_s`. `context_cache`: the one that
        the engine was given.
        """
        self._engine = engine
        self._observer = observer
        self._on_hang = on_hang
        self._context_cache = context_cache or EngineContextCache(megabytes=0)
        self._threads = EngineThreads(
            engine, threads=threads, step_timeout_s=step_timeout_s, on_step=self._stepped, on_hang=self._hung
        )
        self._learning = Learning(engine)
        self._active: set[_Stream] = set()  # begun and not over; one for each session that speaks
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def capabilities(self) -> Capabilities:
        """The engine's."""
        return self._engine.capabilities

    @property
    def broken(self) -> bool:
        """Whether so many steps hang that the engine is of no use any more."""
        return self._threads.broken

    def capacity(self) -> Capacity:
        """See EnginePool."""
        scheduler = self._threads.scheduler
        return Capacity(
            streams=scheduler.costs.streams,
            first_chunk_s=scheduler.costs.first_s / self._threads.lanes,
            waiting=scheduler.waiting,
            waiting_first=scheduler.waiting_first,
            late_s=scheduler.late_s(time.monotonic()),
            workers=0 if self.broken else 1,
            context=self._context_cache.size(),
        )

    def synthesize(self, request: SegmentRequest, start_sample: int = 0, *, principal: str = "") -> _Stream:
        """Render one segment; see EnginePool."""
        return _Stream(self, request, start_sample, principal)

    async def calibrate(self, limit_s: float = CALIBRATION_LIMIT_S) -> None:
        """Let every thread speak a little, to learn what the engine can do. Takes `limit_s` at most."""
        try:
            async with asyncio.timeout(limit_s):
                for voice in self.capabilities.voices:
                    text = CALIBRATION_TEXT[voice.languages[0]]
                    cut = Cut(0, len(text), text, Boundary.SENTENCE, CutCause.END, voice.languages[0])
                    request = SegmentRequest(0, cut, voice.id, self.capabilities.sample_rate)
                    await asyncio.gather(*(self._speak(request) for _ in range(self._threads.lanes)))
        except (TimeoutError, EngineError, WorkerLost):
            pass  # a slow engine is known well enough by then; a broken one shows when it is asked to speak

    async def _speak(self, request: SegmentRequest) -> None:
        stream = self.synthesize(request)
        try:
            async for _ in stream:
                pass
        finally:
            stream.cancel()

    async def make_voice(self, recording: bytes, text: str) -> bytes:
        """See EnginePool."""
        if self._draining:
            raise PoolUnavailable("the server is stopping")
        return await self._learning.make_voice(recording, text)

    def forget_voice(self, voice: str) -> None:
        """See EnginePool."""
        self._context_cache.forget_voice(voice)
        if isinstance(self._engine, ClonesVoices):
            self._engine.forget_voice(voice)

    async def drain(self) -> None:
        """See EnginePool."""
        self._draining = True
        await self._idle.wait()

    async def close(self) -> None:
        """Cancel everything, stop the threads after the step they are in, then free the engine. Waits 5 s at most for a
        step.
        """
        for stream in list(self._active):
            stream.cancel()
        free = await self._learning.close()
        await self._threads.close(free=free)

    def _submit(self, stream: _Stream) -> None:
        if stream not in self._active:
            if self._draining:
                raise PoolUnavailable("the server is stopping")
            if self.broken:
                raise PoolUnavailable("the engine hangs", retry_after_s=10.0)
            self._active.add(stream)
            self._idle.clear()
        self._threads.submit(stream)

    def _forget(self, stream: _Stream) -> None:
        self._threads.forget(stream)
        self._left(stream)

    def _finish(self, stream: _Stream) -> None:
        self._threads.finish(stream)
        self._left(stream)

    def _left(self, stream: _Stream) -> None:
        self._active.discard(stream)
        if not self._active:
            self._idle.set()

    def _stepped(self, report: StepReport) -> None:
        if self._observer is not None:
            use = self._context_cache.take_use()
            self._observer.stepped(report if use == UNUSED else replace(report, context=use))

    def _hung(self) -> None:
        if self._on_hang is not None:
            self._on_hang()
        if self._observer is not None:
            self._observer.worker_lost("hung")
