"""What is logged and counted of segments that an engine failed at. Never their text: the dead-letter queue has that."""

import re
import time
from collections.abc import Callable
from itertools import takewhile
from typing import Final

import structlog

from server.cluster.failures import FailedSegment, Outcome
from server.observe.line_limit import LineLimiter
from server.observe.metrics import Metrics

log = structlog.get_logger(__name__)

_FRAME: Final = re.compile(r'  File "(.+)", line (\d+), in (\S+)')
_CAUSED: Final = "\n\nThe above exception was the direct cause of"
_DEGRADED: Final[frozenset[Outcome]] = frozenset({"cut_short", "fallback", "pieces", "clip"})


class FailureWatch:
    """Told of each failed segment once, on the event loop."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._lines = LineLimiter()

    def told(self, failed: FailedSegment) -> None:
        """Count it, and give it a line unless there were many of its kind lately."""
        first = next((attempt for attempt in failed.attempts if attempt.kind is not None), None)
        if first is None:
            return
        reason = first.kind or ""
        self._metrics.failed_segments.labels(reason).inc()
        if failed.outcome in _DEGRADED:
            self._metrics.degraded_segments.labels(failed.outcome).inc()
        if not self._lines.admit(reason, self._clock()):
            self._metrics.log_lines_left_out.inc()
            return
        cut = failed.request.cut
        log.warning(
            "a segment failed",
            reason=reason,
            outcome=failed.outcome,
            attempts=[f"{attempt.engine}: {attempt.kind or 'said'}" for attempt in failed.attempts],
            origin=failed.request.origin,
            characters=cut.end - cut.start,
            at_sample=first.first_sample,
            where=raised_at(first.trace),
            lost_s=round(sum(attempt.seconds for attempt in failed.attempts if attempt.kind is not None), 2),
        )


def raised_at(trace: str) -> str:
    """File, line and function where the engine raised, of a trace as Python shows it; empty where it only told of a
    failure. The messages in a trace, which may quote a text, are not looked at.
    """
    origin, wrapped, _ = trace.partition(_CAUSED)
    first, *lines = origin.splitlines() or [""]
    if not wrapped or not first.startswith("Traceback "):
        return ""
    stack = takewhile(lambda line: line.startswith("  "), lines)  # the message follows it, without an indent
    frames = [match.groups() for match in map(_FRAME.fullmatch, stack) if match]
    return "{}:{} {}".format(*frames[-1]) if frames else ""
