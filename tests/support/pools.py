"""Segments for engine pools, and worker processes that several tests share."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self

from server.cache.audio import AudioCache
from server.cluster import EnginePool, InProcessPool, StepReport
from server.cluster.cached import CachedPool
from server.cluster.failures import FailedSegment
from server.cluster.fallback import FallbackEngine
from server.cluster.recovering import RecoveringPool
from server.cluster.workers import WorkerConfig, WorkerPool, WorkerProcesses
from server.engines import Engine, EngineError, registry
from server.engines.rendering import RenderedChunk, SegmentRequest
from server.text.tokens import Boundary, Cut, CutCause

TEXT = "你好世界今天天气很好，"


def request(text: str = TEXT, **fields: Any) -> SegmentRequest:
    """A segment for the engine `tone`."""
    cut = Cut(0, len(text), text, Boundary.CLAUSE, CutCause.PUNCTUATION, "zh")
    return SegmentRequest(**{"id": 0, "cut": cut, "voice": "tone-low", "sample_rate": 24_000, **fields})


async def collect(stream: Any) -> list[RenderedChunk]:
    """All of a stream."""
    return [chunk async for chunk in stream]


def worker_pool_of(pool: Any) -> WorkerPool:
    """The pool of worker processes behind those that recover and remember."""
    while not isinstance(pool, WorkerPool):
        pool = pool.inner
    return pool


def pcm(chunks: list[RenderedChunk]) -> bytes:
    """Their samples."""
    return b"".join(chunk.pcm for chunk in chunks)


class GivingUp:
    """Makes a pool give up for good after so many chunks of a segment, as one does when the server stops: what engines
    do wrong no longer ends a session.
    """

    def __init__(self, pool: Any, match: str, chunks: int) -> None:
        self._synthesize, self._match, self._chunks = pool.synthesize, match, chunks
        pool.synthesize = self.synthesize

    def synthesize(self, request: SegmentRequest, start_sample: int = 0, *, principal: str = "") -> Any:
        """See EnginePool."""
        stream = self._synthesize(request, start_sample, principal=principal)
        return _Given(stream, self._chunks) if self._match in request.cut.text else stream


class _Given:
    def __init__(self, stream: Any, chunks: int) -> None:
        self.urgency = stream.urgency
        self._stream, self._chunks = stream, chunks

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RenderedChunk:
        if self._chunks == 0:
            raise EngineError("given up on purpose", transient=True)
        self._chunks -= 1
        self._stream.urgency = self.urgency
        chunk: RenderedChunk = await anext(self._stream)
        return chunk

    def cancel(self) -> None:
        self._stream.cancel()


class Noted:
    """A PoolObserver that keeps everything."""

    def __init__(self) -> None:
        self.steps: list[StepReport] = []
        self.losses: list[str] = []

    def stepped(self, report: StepReport) -> None:
        self.steps.append(report)

    def worker_lost(self, reason: str) -> None:
        self.losses.append(reason)


@asynccontextmanager
async def in_process(engine: Engine, threads: int = 1, **options: Any) -> AsyncIterator[InProcessPool]:
    """A pool of threads around this engine."""
    pool = InProcessPool(engine, threads=threads, **options)
    try:
        yield pool
    finally:
        await pool.close()


@asynccontextmanager
async def cached(
    engine: Engine, observer: Any = None, *, max_bytes: int = 2**25, **options: Any
) -> AsyncIterator[CachedPool]:
    """That, with a cache of audio before it, which tells the same observer."""
    tells = observer if hasattr(observer, "audio_cache") else None
    async with in_process(engine, observer=observer, **options) as pool:
        made = CachedPool(pool, AudioCache(max_bytes), tells)
        try:
            yield made
        finally:
            await made.close()


@asynccontextmanager
async def recovering(
    pool: EnginePool, fallback: Mapping[str, Any] | None = None, *, told: list[FailedSegment] | None = None
) -> AsyncIterator[RecoveringPool]:
    """`pool`, with a tone engine behind it that has these options. What fails is added to `told`."""
    behind = None if fallback is None else FallbackEngine("tone", lambda: registry.create("tone", fallback))
    made = RecoveringPool(pool, behind, (told if told is not None else []).append)
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def connected(paths: tuple[str, ...], **options: Any) -> AsyncIterator[WorkerPool]:
    """A pool of the workers that listen there, once all of them are ready."""
    pool = WorkerPool(paths, **options)
    try:
        async with asyncio.timeout(20):
            await pool.start()
            while pool.capacity().workers < len(paths):
                await asyncio.sleep(0.01)
        yield pool
    finally:
        await pool.close()


@asynccontextmanager
async def processes(
    count: int, engine_options: Mapping[str, Any] | None = None, *, engine: str = "tone", **options: Any
) -> AsyncIterator[WorkerProcesses]:
    """Worker processes, all of them ready. Options are those of `WorkerConfig` and of `WorkerProcesses`."""
    for_workers = {name: options.pop(name) for name in ("step_timeout_s", "threads", "voices") if name in options}
    config = WorkerConfig(engine, engine_options or {}, log_format="json", **for_workers)
    running = WorkerProcesses(config, count, **options)
    try:
        async with asyncio.timeout(20):
            await running.start()
            while len(running.pids) < count:
                await asyncio.sleep(0.01)
        yield running
    finally:
        await running.stop()


@contextmanager
def shared_processes(count: int, engine_options: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Where workers listen that outlive a test's event loop: a thread of their own runs them."""
    started = threading.Event()
    paths: tuple[str, ...] = ()
    loop: asyncio.AbstractEventLoop | None = None
    end: asyncio.Event | None = None

    async def run() -> None:
        nonlocal paths, loop, end
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with processes(count, engine_options) as running:
                paths = running.paths
                started.set()
                await end.wait()
        finally:
            started.set()

    thread = threading.Thread(target=asyncio.run, args=(run(),), name="workers")
    thread.start()
    started.wait()
    try:
        assert paths, "the workers did not start"
        yield paths
    finally:
        if loop is not None and end is not None and paths:
            loop.call_soon_threadsafe(end.set)
        thread.join(20)
        assert not thread.is_alive()
