"""The engine pool that the settings ask for: made, warm, measured, and closed with everything behind it."""

import asyncio
from collections.abc import Callable, Sequence
from os import PathLike

from server.background import in_daemon_thread
from server.cluster.base import EnginePool, PoolObserver
from server.cluster.failures import FailedSegment
from server.cluster.in_process import InProcessPool
from server.cluster.workers.config import WorkerConfig
from server.cluster.workers.pool import WorkerPool
from server.cluster.workers.processes import WorkerProcesses
from server.engines.context_cache import EngineContextCache
from server.engines.loading import start_engine
from server.settings import Settings
from server.text.normaliser import warm_up as warm_up_text


def worker_processes(settings: Settings) -> WorkerProcesses:
    """The `workers` of the settings, not yet started. They share the engine's threads among them. Raises OSError."""
    return WorkerProcesses(
        WorkerConfig(
            engine=settings.engine,
            engine_options=settings.engine_options,
            threads=max(1, settings.engine_threads // settings.workers),
            step_timeout_s=settings.step_timeout_s,
            context_cache_blocks=settings.context_cache_blocks,
            context_cache_mb=settings.context_cache_mb,
            log_format=settings.log_format,
            log_level=settings.log_level,
        ),
        settings.workers,
        devices=[device.strip() for device in settings.worker_devices.split(",") if device.strip()],
    )


class PoolOpener:
    """A pool and what it stands on. Make it inside the running event loop; `close` it, also where `start` fails."""

    def __init__(
        self,
        settings: Settings,
        observer: PoolObserver,
        workers: Sequence[str | PathLike[str]] = (),
        *,
        on_failure: Callable[[FailedSegment], None] | None = None,
    ) -> None:
        """`workers`: the sockets of worker processes that somebody else runs, in place of own ones. `on_failure` is
        called, on the event loop, once for each segment that did not succeed at once, when it is over.
        """
        self._settings = settings
        self._observer = observer
        self._on_failure = on_failure
        self._paths = tuple(map(str, workers))
        self._processes: WorkerProcesses | None = None
        self._pool: EnginePool | None = None

    async def start(self) -> EnginePool:
        """The pool, ready to speak: with workers as soon as one of them is.

        Raises OSError, ValueError, LookupError and EngineError, in one line, where the engine cannot start.
        """
        settings = self._settings
        if settings.workers and not self._paths:
            self._processes = worker_processes(settings)
            await self._processes.start()
            self._paths = self._processes.paths
        if self._paths:
            workers = WorkerPool(self._paths, observer=self._observer, step_timeout_s=settings.step_timeout_s)
            self._pool = workers
            await workers.start()
            return workers
        context_cache = EngineContextCache(settings.context_cache_blocks, settings.context_cache_mb)
        engine, _ = await asyncio.gather(
            in_daemon_thread(lambda: start_engine(settings.engine, settings.engine_options, context_cache)),
            in_daemon_thread(warm_up_text),
        )
        threads = InProcessPool(
            engine,
            threads=settings.engine_threads,
            observer=self._observer,
            step_timeout_s=settings.step_timeout_s,
            context_cache=context_cache,
        )
        self._pool = threads
        await threads.calibrate()
        return threads

    async def close(self) -> None:
        """Close the pool, then end the processes."""
        if self._pool is not None:
            await self._pool.close()
        if self._processes is not None:
            await self._processes.stop()
