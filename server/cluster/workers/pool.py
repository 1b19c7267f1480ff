"""An engine pool of worker processes: each segment goes to the worker that the fewest share.

A stream whose worker is lost goes on at another one, at the sample it had reached. Whoever reads it notices nothing but
the time this takes, unless several workers die of the same segment or no worker comes back in time.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from server.cache.counts import CacheSize
from server.cluster.base import Capacity, PoolObserver, PoolUnavailable
from server.cluster.learning import LEARN_S
from server.cluster.workers.capabilities import restore
from server.cluster.workers.connection import WorkerConnection
from server.cluster.workers.messages import Hello, Stepped
from server.cluster.workers.stream import WorkerStream
from server.engines.base import Capabilities, EngineError
from server.engines.rendering import SegmentRequest

log = structlog.get_logger(__name__)

PATIENCE_S: Final = 20.0
"""How long a stream waits for a worker where there is none. The embedded engine is back within three seconds, and
within ten where others keep the processor busy."""
LEARN_PATIENCE_S: Final = 2 * LEARN_S + 5.0  # a voice's turn comes within one limit, and its end within another
RETRY_S: Final = (0.05, 1.0)  # between attempts to connect, doubling


class WorkerPool:
    """The workers that listen at `paths`. Who runs them is another question: `WorkerProcesses`, here or elsewhere.

    Make it inside the running event loop, then `start` it.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        observer: PoolObserver | None = None,
        step_timeout_s: float = 5.0,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._paths = tuple(paths)
        self._observer = observer
        self._step_timeout_s = step_timeout_s
        self._patience_s = patience_s
        self._capabilities: Capabilities | None = None
        self._connections: list[WorkerConnection] = []  # that are ready; one for each path at most
        self._opened: set[WorkerConnection] = set()  # those, and those that are not ready yet
        self._active: set[WorkerStream] = set()  # begun and not over; one for each session that speaks
        self._on_trial: WorkerStream | None = None
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        self._given = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Connect; returns when the first worker is ready. `close` afterwards, also where this is cancelled."""
        self._tasks = [asyncio.create_task(self._keep_connected(path)) for path in self._paths]
        while not self._usable():
            await self._wait_for_change()

    @property
    def capabilities(self) -> Capabilities:
        """The engine's, known from `start` on."""
        assert self._capabilities is not None, "start the pool first"
        return self._capabilities

    def capacity(self) -> Capacity:
        """That of all workers together. One that was not measured yet counts like the others."""
        each = [connection.capacity() for connection in self._connections if connection.usable]
        known = [one for one in each if one.streams]
        return Capacity(
            streams=sum(one.streams for one in known) / len(known) * len(each) if known else 0.0,
            first_chunk_s=sum(one.first_chunk_s for one in known) / len(known) if known else 0.0,
            waiting=sum(one.waiting for one in each),
            waiting_first=sum(one.waiting_first for one in each),
            late_s=max((one.late_s for one in each), default=0.0),
            workers=len(each),
            context=CacheSize(sum(one.context.entries for one in each), sum(one.context.bytes for one in each)),
        )

    def synthesize(self, request: SegmentRequest, start_sample: int = 0, *, principal: str = "") -> WorkerStream:
        """Render one segment; see EnginePool. A worker gets it when its first chunk is asked for."""
        return WorkerStream(self, request, start_sample, principal)

    async def make_voice(self, recording: bytes, text: str) -> bytes:
        """See EnginePool. The worker that learns the fewest voices and whom the fewest share does it."""
        usable = self._usable()
        if self._stopping or not usable:
            raise PoolUnavailable("the server is stopping" if self._stopping else "no worker process is ready")
        learning = min(usable, key=lambda each: (len(each.lessons), each.crowd)).learn(recording, text)
        try:
            async with asyncio.timeout(LEARN_PATIENCE_S):
                return await learning
        except TimeoutError:
            raise PoolUnavailable("the worker process does not answer") from None

    def forget_voice(self, voice: str) -> None:
        """See EnginePool. The workers notice by themselves."""

    async def drain(self) -> None:
        """See EnginePool."""
        self._stopping = True
        await self._idle.wait()

    async def close(self) -> None:
        """Cancel everything and let go of the workers, which go on living."""
        self._stopping = True
        for stream in list(self._active):
            stream.cancel()
        for task in self._tasks:
            task.cancel()
        opened = list(self._opened)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(connection.over.wait() for connection in opened if connection.open))

    # What its streams ask

    async def assign(self, stream: WorkerStream) -> WorkerConnection | None:
        """A worker for it; waits for one a while. None where the stream is over meanwhile. Raises PoolUnavailable."""
        if stream not in self._active:
            if self._stopping:
                raise PoolUnavailable("the server is stopping")
            self._active.add(stream)
            self._idle.clear()
        until = self.loop.time() + self._patience_s
        while not stream.over and not ((usable := self._usable()) and self._may_try(stream)):
            try:
                async with asyncio.timeout_at(until):
                    await self._wait_for_change()
            except TimeoutError:
                until = self.loop.time() + self._patience_s
                if not usable:
                    raise PoolUnavailable("no worker process is ready") from None
        if stream.over:
            return None
        best = min(usable, key=lambda each: (each.crowd, each.used))
        self._given += 1
        best.used = self._given
        if stream.suspect:
            self._on_trial = stream
        return best

    def _may_try(self, stream: WorkerStream) -> bool:
        """Whether it may be given to a worker that others may have streams at."""
        return not stream.suspect or self._on_trial in (None, stream)

    def acquit(self, stream: WorkerStream) -> None:
        """It got further, or is over: its trial, if there was one, has ended."""
        if self._on_trial is stream:
            self._on_trial = None
            self._changed.set()

    def finished(self, stream: WorkerStream) -> None:
        """A stream is over."""
        self._active.discard(stream)
        self.acquit(stream)
        if not self._active:
            self._idle.set()
        if not self._usable() or stream.suspect:
            self._changed.set()  # it may be waiting for one

    def _usable(self) -> list[WorkerConnection]:
        return [each for each in self._connections if each.usable]

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # What its connections tell (Owner)

    def greeted(self, connection: WorkerConnection, hello: Hello) -> str | None:
        """See Owner. All workers must make the same samples, or no segment could go on at another one."""
        try:
            capabilities = restore(hello.capabilities)
        except EngineError as error:
            return str(error)
        if self._capabilities is not None and capabilities != self._capabilities:
            return (
                f"its engine ({capabilities.fingerprint}) differs from the first worker's "
                f"({self._capabilities.fingerprint}): restart the server to use it"
            )
        self._capabilities = capabilities
        self._connections.append(connection)
        self._changed.set()
        return None

    def stepped(self, step: Stepped) -> None:
        """See Owner."""
        if self._observer is not None:
            self._observer.stepped(step.report)

    def gone(self, connection: WorkerConnection, reason: str) -> None:
        """See Owner."""
        if connection in self._connections:
            self._connections.remove(connection)
        if reason in ("died", "hung") and self._observer is not None:
            self._observer.worker_lost(reason)

    async def _keep_connected(self, path: str) -> None:
        """One connection to the path after the other."""
        shortest, longest = RETRY_S
        delay = shortest
        refused = -1  # the process that could not be used: asked again, as another may listen there, but logged once
        while True:
            connection = WorkerConnection(self, step_timeout_s=self._step_timeout_s)
            self._opened.add(connection)
            try:
                await self.loop.create_unix_connection(lambda made=connection: made, path)  # type: ignore[misc]
                await connection.over.wait()
            except OSError:
                pass  # nobody listens there yet, or any more
            finally:
                connection.close()
                self._opened.discard(connection)
            if connection.refusal is not None and connection.pid != refused:
                refused = connection.pid
                log.error("a worker cannot be used", pid=refused, reason=connection.refusal)
            if connection.was_ready:
                delay = shortest
            else:
                await asyncio.sleep(delay)
                delay = min(2 * delay, longest)
