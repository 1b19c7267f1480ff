"""What a server notices about its sessions: figures, which lines are logged, and what the status page shows."""

import asyncio
import time
from enum import IntEnum
from typing import Any, Final, Protocol

import structlog

from server.observe.latencies import Latencies
from server.observe.line_limit import LineLimiter
from server.observe.metrics import Metrics
from server.observe.sampling import DetailChoice

log = structlog.get_logger(__name__)

REPORT_EVERY_S: Final = 10.0  # how soon after the first line that was left out their number is logged


class Trouble(IntEnum):
    """How close a session's listener is to silence: the smallest is the worst."""

    WAITING = 0  # for a first sound
    LISTENING = 1
    AWAY = 2  # its connection is lost, in the middle of an utterance
    COLLECTING = 3  # nobody listens meanwhile
    IDLE = 4
    IDLE_AWAY = 5


class OpenSession(Protocol):
    """A session as the status page asks for it."""

    def trouble(self, now: float) -> tuple[Trouble, float]:
        """Among those of the same trouble the smaller number is the worse."""

    def row(self, now: float) -> dict[str, Any]:
        """For a person. No text, no principal, no token."""


class Watch:
    """One of a server. `open`: the sessions that have a place."""

    def __init__(self, metrics: Metrics | None = None, *, sample_percent: float = 1.0) -> None:
        self.metrics = metrics or Metrics()
        self.details = DetailChoice(sample_percent)
        self.latencies = Latencies()
        self.open: set[OpenSession] = set()
        self._lines = LineLimiter()
        self._reporting: asyncio.TimerHandle | None = None

    def first_audio(self, engine: str, mode: str, seconds: float) -> None:
        """An utterance's first audio went out."""
        self.metrics.first_audio_seconds.labels(engine, mode).observe(seconds)
        self.latencies.add(time.time(), seconds)

    def may_log(self, kind: str) -> bool:
        """Whether a line that clients cause may be written now. Those left out are counted, and their number is logged
        soon.
        """
        loop = asyncio.get_running_loop()
        if self._lines.admit(kind, loop.time()):
            return True
        self.metrics.log_lines_left_out.inc()
        if self._reporting is None:
            self._reporting = loop.call_later(REPORT_EVERY_S, self.report_left_out)
        return False

    def report_left_out(self) -> None:
        """Log how many lines were left out since the last report."""
        if self._reporting is not None:
            self._reporting.cancel()
            self._reporting = None
        for kind, count in self._lines.take_left_out().items():
            log.info("lines left out", kind=kind, count=count)
