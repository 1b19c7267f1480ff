"""An engine pool in this process: a few threads around one engine.

onnxruntime and numpy release the GIL while they work, so the event loop stays free. A stream asks for one chunk at a
time, so a session that is not read costs nothing; among those that ask, the one with the earliest deadline goes first.
Everything that is asked of the engine is asked on these threads, never on the event loop.
"""

import asyncio
import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import structlog

from server.audio.chain import SegmentChain
from server.cluster.base import Capacity, Urgency
from server.engines.base import (
    Capabilities,
    Chunk,
    Engine,
    EngineError,
    Job,
    Samples,
    Segment,
    SegmentFailed,
    StepEvent,
    WordTiming,
)
from server.engines.rendering import RenderedChunk, SegmentRequest
from server.text.normaliser import normalise

StepObserver = Callable[[float, int], None]
"""Told after every step: seconds it took, jobs it served. Called on an engine thread."""


log = structlog.get_logger(__name__)

CLOSE_TIMEOUT_S: Final = 5.0  # for a step that hangs
NOTHING: Final[Samples] = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True)
class _End:
    """The segment is complete."""


_Result = RenderedChunk | _End | Exception


class _Stream:
    """One segment: what the session awaits and what an engine thread works on."""

    def __init__(self, pool: "InProcessPool", request: SegmentRequest, start_sample: int) -> None:
        self.urgency = Urgency()
        self.request = request
        self.cancelled = False
        self.running = False
        self.failed = False  # its step raised: the engine may still hold the job
        self.job: Job | None = None
        self.chain = SegmentChain(pool.capabilities.sample_rate, request.sample_rate, request.volume)
        self.skip = start_sample  # samples of the requested rate still to leave out
        self._pool = pool
        self._results: deque[_Result] = deque()  # at most what one step yields: a chunk and an end
        self._ended = False
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RenderedChunk:
        while True:
            if self._results:
                result = self._results.popleft()
                if isinstance(result, RenderedChunk):
                    return result
                self._ended = True
                if isinstance(result, Exception):
                    raise result
            if self._ended or self.cancelled:
                raise StopAsyncIteration
            if self._waiter is None:
                self._waiter = asyncio.get_running_loop().create_future()
                self._pool._submit(self)
            try:
                await self._waiter
            except asyncio.CancelledError:
                self.cancel()
                raise
            self._waiter = None

    def cancel(self) -> None:
        if not (self.cancelled or self._ended):
            self.cancelled = True
            self._pool._forget(self)
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    def deliver(self, results: list[_Result]) -> None:
        """On the event loop: what a step made."""
        if not self.cancelled:
            self._results.extend(results)
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)


class InProcessPool:
    """See the module text. Make it inside the running event loop."""

    def __init__(self, engine: Engine, *, threads: int, on_step: StepObserver | None = None) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._on_step = on_step
        self._ready: list[tuple[float, int, _Stream]] = []  # bounded by the number of sessions: one entry each
        self._dropped: list[Job] = []  # to be cancelled; bounded by the jobs that engine threads have begun
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._closing = False
        self._threads = [
            threading.Thread(target=self._work, name=f"engine-{i}", daemon=True) for i in range(max(1, threads))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def capabilities(self) -> Capabilities:
        """The engine's."""
        return self._engine.capabilities

    @property
    def waiting(self) -> int:
        """Streams that wait for an engine thread."""
        return len(self._ready)

    def capacity(self) -> Capacity:
        """See EnginePool."""
        return Capacity(waiting=len(self._ready))

    async def drain(self) -> None:
        """See EnginePool."""

    def synthesize(self, request: SegmentRequest, start_sample: int = 0, *, principal: str = "") -> _Stream:
        """Render one segment; see EnginePool."""
        return _Stream(self, request, start_sample)

    async def close(self) -> None:
        """Stop the threads after the step they are in, then free the engine. Waits 5 s at most for a step."""
        with self._changed:
            self._closing = True
            self._ready.clear()
            self._changed.notify_all()
        limit = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in self._threads:
            await asyncio.to_thread(thread.join, max(0.0, limit - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            self._engine.close()

    def _submit(self, stream: _Stream) -> None:
        with self._changed:
            if self._closing:
                raise EngineError("the server is stopping", transient=True)
            heapq.heappush(self._ready, (stream.urgency.due, next(self._order), stream))
            self._changed.notify()

    def _forget(self, stream: _Stream) -> None:
        with self._changed:
            if not stream.running:  # else its thread drops it, after the step
                self._drop(stream)

    def _drop(self, stream: _Stream) -> None:
        """Have the stream's job cancelled by an engine thread. Call it with the lock held."""
        if stream.job is not None:
            self._dropped.append(stream.job)
            stream.job = None
            self._changed.notify()

    def _work(self) -> None:
        while self._wait():
            self._cancel_dropped()
            batch = self._take()
            if not batch:
                continue
            started = time.perf_counter()
            results = self._step(batch)
            if self._on_step:
                self._on_step(time.perf_counter() - started, len(batch))
            with self._changed:
                for stream in batch:
                    stream.running = False
                    if stream.cancelled or stream.failed:
                        self._drop(stream)
            if not self._closing:
                self._loop.call_soon_threadsafe(self._deliver, batch, results)

    def _cancel_dropped(self) -> None:
        with self._changed:
            jobs, self._dropped = self._dropped, []
        for job in jobs:
            try:
                self._engine.cancel(job)
            except Exception:  # an engine's fault must not end the thread, or everybody waits for ever
                log.exception("the engine failed to cancel a job")

    @staticmethod
    def _deliver(batch: list[_Stream], results: list[list[_Result]]) -> None:
        for stream, items in zip(batch, results, strict=True):
            stream.deliver(items)

    def _wait(self) -> bool:
        """Wait until there is something to do; False when closing."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._ready or self._dropped)
            return not self._closing

    def _take(self) -> list[_Stream]:
        """The most urgent streams for one step; empty where another thread or a cancel took them."""
        batch: list[_Stream] = []
        with self._changed:
            while self._ready and len(batch) < self.capabilities.batch_max:
                stream = heapq.heappop(self._ready)[2]
                if not stream.cancelled:
                    stream.running = True
                    batch.append(stream)
        return batch

    def _step(self, batch: list[_Stream]) -> list[list[_Result]]:
        results: dict[_Stream, list[_Result]] = {stream: [] for stream in batch}
        by_job: dict[Job, _Stream] = {}
        for stream in batch:
            try:
                if stream.job is None:
                    stream.job = self._prepare(stream.request)
                by_job[stream.job] = stream
            except Exception as error:  # noqa: BLE001  # an engine's or a text rule's fault must end this segment, not the thread
                results[stream].append(as_engine_error(error))
        try:
            events = self._engine.step(list(by_job)) if by_job else ()
            for event in events:
                stream = by_job[event.job]
                results[stream].extend(_finish(stream, event))
        except Exception as error:  # noqa: BLE001  # the whole step failed: every job in it failed
            for stream in by_job.values():
                stream.failed = True
                results[stream] = [as_engine_error(error)]
        return list(results.values())

    def _prepare(self, request: SegmentRequest) -> Job:
        tokens = normalise(request.cut, lexicon=request.lexicon)
        segment = Segment(
            request.id,
            tokens,
            request.cut.boundary,
            request.voice,
            request.speed,
            request.pitch,
            request.instruct,
        )
        return self._engine.prepare(segment, request.plan, None, request.seed)


def _finish(stream: _Stream, event: StepEvent) -> list[_Result]:
    """An engine's event as the session sees it: gain, rate and sample format applied."""
    if isinstance(event, SegmentFailed):
        return [as_engine_error(event.error, transient=event.transient)]
    if isinstance(event, Chunk):
        pcm = stream.chain.process(event.samples, last=False)
        scale = stream.chain.scale
        words = tuple(
            WordTiming(w.text, w.start, w.end, scale(w.first_sample), scale(w.end_sample)) for w in event.words
        )
    else:
        pcm, words = stream.chain.process(NOTHING, last=True), ()
    if stream.skip:
        dropped = min(stream.skip, len(pcm) // 2)
        stream.skip -= dropped
        pcm = pcm[2 * dropped :]
    results: list[_Result] = [RenderedChunk(pcm, words)] if pcm or words else []
    return results if isinstance(event, Chunk) else [*results, _End()]


def as_engine_error(error: Exception, *, transient: bool = False) -> EngineError:
    """`error` as an EngineError, with the original as its cause. It is transient where it says so or `transient` does.

    What escapes by accident is not: nothing is known about it.
    """
    if isinstance(error, EngineError):
        error.transient = error.transient or transient
        return error
    wrapped = EngineError(f"{type(error).__name__}: {error}", transient=transient)
    wrapped.__cause__ = error
    return wrapped
