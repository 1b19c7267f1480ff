"""`GET /status`: a page that shows a person how the server is doing, and `/status.json`, which it asks every 2 s."""

import asyncio
import base64
import hashlib
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any, Final, Generic, Protocol, TypeVar

import orjson
from prometheus_client import Counter as Metric
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from server.cluster.base import Capacity, EnginePool
from server.gateway.doorkeeper import Doorkeeper
from server.gateway.http import HttpState
from server.observe import status
from server.observe.loop_lag import LoopLag
from server.observe.pool import PoolWatch
from server.observe.process import ProcessFigures
from server.observe.watch import OpenSession, Trouble, Watch
from server.settings import Settings

KEPT_S: Final = 1.0  # an answer is given again for so long: what many pages ask costs what one does
AT_ONCE: Final = 200  # sessions looked at before others get their turn on the event loop,
ROWS_AT_ONCE: Final = 50  # and rows made

T = TypeVar("T")

_PARTS: Final = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)


class StatusState(HttpState, Protocol):
    """What the server offers to these routes."""

    @property
    def settings(self) -> Settings: ...

    @property
    def name(self) -> str:
        """Of this process among several; empty for the only one."""

    @property
    def pool(self) -> EnginePool | None: ...

    @property
    def pool_watch(self) -> PoolWatch: ...

    @property
    def watch(self) -> Watch: ...

    @property
    def doorkeeper(self) -> Doorkeeper: ...

    @property
    def loop_lag(self) -> LoopLag: ...


_Troubled = tuple[tuple[Trouble, float], OpenSession]

OtherParts = Callable[[], Awaitable[list[status.Part]]]
"""The parts of the other processes of this server, as far as they answer."""


class _Kept(Generic[T]):
    """What was made is given again for `KEPT_S`, and made once, however many ask."""

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._making = asyncio.Lock()
        self._made: tuple[float, T] | None = None

    async def get(self) -> T:
        async with self._making:
            now = time.monotonic()
            if self._made is None or now - self._made[0] >= KEPT_S:
                self._made = (now, await self._make())
            return self._made[1]


class StatusReport:
    """Makes what is told. Nothing is computed while nobody asks. `shared_engines`: see `status.merge`."""

    def __init__(self, state: StatusState, others: OtherParts | None = None, *, shared_engines: bool = False) -> None:
        self._state = state
        self._others = others
        self._shared_engines = shared_engines
        self._process = ProcessFigures()
        self._part = _Kept(self._make)
        self._shown = _Kept(self._show)

    async def part(self) -> status.Part:
        """This process's."""
        return await self._part.get()

    async def shown(self) -> bytes:
        """All processes', as JSON for the page."""
        return await self._shown.get()

    async def _show(self) -> bytes:
        parts = [await self.part(), *(await self._others() if self._others else [])]
        whole = status.merge(parts, shared_engines=self._shared_engines)
        return orjson.dumps(status.shown(whole, time.time()))

    async def _make(self) -> status.Part:
        state, process = self._state, self._process
        kinds, worst = await self._troubles()
        capacity = state.pool.capacity() if state.pool else Capacity(workers=0)
        return status.part(
            server={
                "ready": not state.not_ready_reason,
                "reason": state.not_ready_reason,
                "engine": state.settings.engine,
                "version": _version(),
                "uptime_s": round(process.uptime_s),
            },
            process={
                "name": state.name.partition("-")[0],
                "cpu_percent": round(process.cpu_percent(), 1),
                "memory_mb": round(process.memory_mb(), 1),
                "loop_lag_ms": round(1000 * state.loop_lag.recent_s(), 2),
                "loop_lag_worst_ms": round(1000 * state.loop_lag.worst_s(), 2),
            },
            load={
                "sessions": kinds.total(),
                "away": kinds[Trouble.AWAY] + kinds[Trouble.IDLE_AWAY],
                "speaking": state.doorkeeper.speaking,
                "capacity": round(state.settings.max_streams or capacity.streams, 1),
                "max_sessions": state.settings.max_sessions,
                "workers": capacity.workers,
                "waiting": capacity.waiting,
                "waiting_first": capacity.waiting_first,
                "late_ms": round(1000 * capacity.late_s, 1),
                "step_ms": round(1000 * state.pool_watch.step_s, 2),
                "jobs": round(state.pool_watch.jobs, 1),
            },
            totals={name: _total(counter) for name, counter in self._counters().items()},
            slots=state.watch.latencies.slots(time.time()),
            sessions=await self._rows(worst),
        )

    async def _troubles(self) -> tuple[Counter[Trouble], list[_Troubled]]:
        """How many sessions have which trouble, and the worst, worst first."""
        sessions = list(self._state.watch.open)
        kinds: Counter[Trouble] = Counter()
        worst: list[_Troubled] = []
        for at in range(0, len(sessions), AT_ONCE):
            now = asyncio.get_running_loop().time()
            found = [(session.trouble(now), session) for session in sessions[at : at + AT_ONCE]]
            kinds.update(trouble[0] for trouble, _ in found)
            worst = sorted(worst + found, key=lambda each: each[0])[: status.MOST_LISTED]
            await asyncio.sleep(0)
        return kinds, worst

    async def _rows(self, worst: list[_Troubled]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for at in range(0, len(worst), ROWS_AT_ONCE):
            now = asyncio.get_running_loop().time()
            some = worst[at : at + ROWS_AT_ONCE]
            rows += [{**session.row(now), "trouble": list(trouble)} for trouble, session in some]
            await asyncio.sleep(0)
        return rows

    def _counters(self) -> dict[str, Metric]:
        metrics = self._state.metrics
        return {
            "sessions": metrics.sessions_total,
            "refusals": metrics.refusals,
            "underruns": metrics.underruns,
            "resumes": metrics.resumes,
            "mode_switches": metrics.mode_switches,
            "errors": metrics.errors,
            "worker_losses": metrics.worker_losses,
            "from_memory": metrics.cache_hits.labels("audio"),
        }


def status_routes(report: StatusReport) -> list[Route]:
    """The page and what it asks for."""
    page = (files(__package__) / "status.html").read_bytes()
    headers = {
        "Content-Security-Policy": content_security_policy(page),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }

    async def show(_: Request) -> Response:
        return Response(page, headers=headers, media_type="text/html; charset=utf-8")

    async def tell(_: Request) -> Response:
        return Response(await report.shown(), headers={"Cache-Control": "no-store"}, media_type="application/json")

    return [Route("/status", show), Route("/status.json", tell)]


def content_security_policy(page: bytes) -> str:
    """Only the page's own script and style, by their hashes, and questions to where it came from."""
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in _PARTS.findall(page):
        digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
        hashes[kind.decode()].append(f"'sha256-{digest}'")
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {' '.join(hashes['script'])}",
            f"style-src {' '.join(hashes['style'])}",
            "img-src data:",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        ]
    )


def _total(counter: Metric) -> float:
    return sum(sample.value for metric in counter.collect() for sample in metric.samples)


def _version() -> str:
    try:
        return version("cosystream")
    except PackageNotFoundError:  # run from a folder that was never installed
        return ""
