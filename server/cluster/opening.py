"""The engine pool that the settings ask for: made, warm, measured, and closed with everything behind it."""

import asyncio
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Protocol

from server.background import in_daemon_thread
from server.cache.audio import AudioCache
from server.cluster.base import EnginePool, PoolObserver
from server.cluster.cached import CachedPool, CacheObserver
from server.cluster.failures import FailedSegment
from server.cluster.fallback import FALLBACK_THREADS, FallbackEngine
from server.cluster.in_process import InProcessPool
from server.cluster.recovering import RecoveringPool, RecoveryObserver
from server.cluster.workers.config import WorkerConfig
from server.cluster.workers.pool import WorkerPool
from server.cluster.workers.processes import WorkerProcesses
from server.engines import registry
from server.engines.context_cache import MIB, EngineContextCache
from server.engines.loading import start_engine
from server.settings import Settings
from server.text.normaliser import warm_up as warm_up_text
from server.voices import VoicesFailed, VoiceStore
from server.voices.place import open_voices


def worker_processes(settings: Settings) -> WorkerProcesses:
    """The `workers` of the settings, not yet started. They share the engine's threads among them. Raises OSError, and
    ValueError for a folder of voices that cannot be used.
    """
    try:
        voices = open_voices(settings)
    except VoicesFailed as error:
        raise ValueError(str(error)) from error
    return WorkerProcesses(
        WorkerConfig(
            engine=settings.engine,
            engine_options=settings.engine_options,
            threads=max(1, settings.engine_threads // settings.workers),
            step_timeout_s=settings.step_timeout_s,
            context_cache_blocks=settings.context_cache_blocks,
            context_cache_mb=settings.context_cache_mb,
            voices=str(voices.path or ""),
            log_format=settings.log_format,
            log_level=settings.log_level,
        ),
        settings.workers,
        devices=[device.strip() for device in settings.worker_devices.split(",") if device.strip()],
    )


class Observer(PoolObserver, CacheObserver, RecoveryObserver, Protocol):
    """Who wants to know what the pool and its cache do."""


class PoolOpener:
    """A pool and what it stands on. Make it inside the running event loop; `close` it, also where `start` fails."""

    def __init__(
        self,
        settings: Settings,
        observer: Observer,
        workers: Sequence[str | PathLike[str]] = (),
        *,
        on_failure: Callable[[FailedSegment], None] | None = None,
        voices: VoiceStore | None = None,
    ) -> None:
        """`workers`: the sockets of worker processes that somebody else runs, in place of own ones. `on_failure` is
        called, on the event loop, once for each segment that did not succeed at once, when it is over. `voices`: those
        that users had learnt, for an engine in this process.
        """
        self._settings = settings
        self._voices = voices or VoiceStore(None)
        self._observer = observer
        self._on_failure = on_failure
        self._paths = tuple(map(str, workers))
        self._processes: WorkerProcesses | None = None
        self._pool: EnginePool | None = None

    async def start(self) -> EnginePool:
        """The pool, ready to speak: with workers as soon as one of them is.

        Raises OSError, ValueError, LookupError and EngineError, in one line, where the engine cannot start.
        """
        fallback = await self._fallback()
        pool: EnginePool = RecoveringPool(await self._start_engines(), fallback, self._segment_failed)
        self._pool = pool
        if self._settings.audio_cache_mb:
            pool = CachedPool(pool, AudioCache(self._settings.audio_cache_mb * MIB), self._observer)
        self._pool = pool
        return pool

    async def _fallback(self) -> FallbackEngine | None:
        """The engine that speaks what the other one fails at; None where that would be the same one. It is loaded when
        it is needed. Raises LookupError where nobody installed it.
        """
        settings = self._settings
        name = settings.fallback_engine
        if name in ("none", settings.engine):
            return None
        installed = await in_daemon_thread(registry.names)
        if name not in installed:
            known = ", ".join(["none", *installed])
            raise registry.UnknownEngine(f"fallback_engine must be one of {known}, not {name!r}")
        return FallbackEngine(
            name,
            lambda: start_engine(name, {}),
            threads=min(FALLBACK_THREADS, settings.engine_threads),
            step_timeout_s=settings.step_timeout_s,
            on_loaded=self._observer.fallback_loaded,
        )

    def _segment_failed(self, failed: FailedSegment) -> None:
        try:
            self._observer.segment_failed(failed)
        finally:
            if self._on_failure is not None:
                self._on_failure(failed)

    async def _start_engines(self) -> EnginePool:
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
            in_daemon_thread(
                lambda: start_engine(settings.engine, settings.engine_options, context_cache, self._voices)
            ),
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
