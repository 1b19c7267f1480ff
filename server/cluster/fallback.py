"""The engine that speaks what the other one fails at: made when it is first needed, in this process, with few threads.

Whoever needs it waits while it loads. Where it cannot be loaded, or hangs for good, that is said once, and it is loaded
again only after a while: until then segments go on without it.
"""

import asyncio
import math
from collections.abc import Callable
from typing import Final

import structlog

from server.background import in_daemon_thread
from server.cluster.base import EnginePool
from server.cluster.in_process import InProcessPool
from server.engines.base import Engine
from server.engines.loading import START_ERRORS

log = structlog.get_logger(__name__)

FALLBACK_THREADS: Final = 2  # it speaks a segment now and then; the processors are for the engine that was asked for
RETRY_S: Final = (30.0, 600.0)  # after loading it failed or it broke: doubling from the one to the other
MAX_RELOADS: Final = 3  # an engine that hangs cannot be freed: each keeps its memory and its threads
LOAD_TIMEOUT_S: Final = 20.0
"""How long a stream waits for it. The embedded voices load in a second, and are built in a minute where they never were
before: that goes on behind it, for those who need it later."""


class FallbackEngine:
    """Implements `Fallback`. Make it inside the running event loop."""

    def __init__(
        self,
        name: str,
        start: Callable[[], Engine],
        *,
        threads: int = FALLBACK_THREADS,
        step_timeout_s: float = 5.0,
        on_loaded: Callable[[bool], None] = lambda _: None,
        load_timeout_s: float = LOAD_TIMEOUT_S,
    ) -> None:
        """`start` makes it, warm; it runs in a thread and raises `START_ERRORS`. `on_loaded` is told whether it is."""
        self._name = name
        self._start = start
        self._threads = threads
        self._step_timeout_s = step_timeout_s
        self._on_loaded = on_loaded
        self._load_timeout_s = load_timeout_s
        self._time = asyncio.get_running_loop().time
        self._pool: InProcessPool | None = None
        self._loading: asyncio.Task[None] | None = None
        self._retry_s = RETRY_S[0]
        self._not_before = 0.0
        self._told = False  # that it cannot be loaded
        self._broken = 0
        self._leaving: set[asyncio.Task[None]] = set()  # at most MAX_RELOADS and one
        self._closed = False

    async def pool(self) -> EnginePool | None:
        """See Fallback."""
        if self._pool is not None:
            if not self._pool.broken:
                return self._pool
            self._drop(self._pool)
        if self._closed or (self._loading is None and self._time() < self._not_before):
            return None
        if self._loading is None:
            self._loading = asyncio.create_task(self._load())
        await asyncio.wait((self._loading,), timeout=self._load_timeout_s)
        return self._pool

    async def close(self) -> None:
        """See Fallback. A load that is going on is left to its thread, which nothing waits for."""
        self._closed = True
        if self._loading is not None:
            self._loading.cancel()
        for leaving in self._leaving:
            leaving.cancel()
        if self._pool is not None:
            await self._pool.close()
            self._tell(False)

    def _drop(self, pool: InProcessPool) -> None:
        """It is broken."""
        self._pool = None
        self._tell(False)
        self._broken += 1
        if self._broken == 1:
            log.error("the fallback engine hangs", engine=self._name, loaded_again_after_s=self._retry_s)
        leaving = asyncio.create_task(_leave(pool))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        self._put_off()
        if self._broken > MAX_RELOADS:
            self._not_before = math.inf
            log.error("the fallback engine hangs again and again: it is not loaded any more", engine=self._name)

    def _tell(self, loaded: bool) -> None:
        try:
            self._on_loaded(loaded)
        except Exception:  # whatever it is, the engine is there or not all the same
            log.exception("that the fallback engine is loaded or not could not be told")

    def _put_off(self) -> None:
        """Loading it again."""
        self._not_before = self._time() + self._retry_s
        self._retry_s = min(2 * self._retry_s, RETRY_S[1])

    async def _load(self) -> None:
        began = self._time()
        try:
            engine = await in_daemon_thread(self._start)
        except START_ERRORS as error:
            if not self._told:
                self._told = True
                log.error("the fallback engine cannot be loaded", engine=self._name, reason=str(error))
            self._put_off()
            return
        finally:
            self._loading = None
        self._pool = InProcessPool(engine, threads=self._threads, step_timeout_s=self._step_timeout_s)
        self._tell(True)
        voices = engine.capabilities.voices
        log.warning(
            "the fallback engine is loaded",
            engine=self._name,
            seconds=round(self._time() - began, 2),
            voices=[voice.id for voice in voices],
            licenses=[f"{voice.id}: {voice.license}. {voice.notice}".rstrip() for voice in voices],
        )


async def _leave(pool: InProcessPool) -> None:
    """Free a broken pool, as far as that can be, when whoever it was speaking for knows."""
    await pool.drain()
    await pool.close()
