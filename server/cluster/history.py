"""What was tried at one segment, and how it ended, for whoever keeps account of failures."""

from typing import Final

from server.cluster.failures import Attempt, FailedSegment, Outcome
from server.cluster.parts import Rendering
from server.cluster.segment import trace_of
from server.engines.base import Capabilities, FailureKind
from server.engines.rendering import SegmentRequest
from server.scheduler.recovery import Task

BY_SEVERITY: Final[tuple[Outcome, ...]] = ("recovered", "no_words", "cut_short", "fallback", "pieces", "clip")
BEFORE: Final = "before a restart"


class History:
    """One segment's. It is to be told once, when the segment is over, and only where something failed."""

    def __init__(self, request: SegmentRequest) -> None:
        self.outcome: Outcome = "recovered"
        self._request = request
        self._attempts: list[Attempt] = []
        self._known = 0  # of them: not by this process

    @property
    def failed(self) -> bool:
        """Whether an attempt has failed, in this process or in one that did not live to tell."""
        return bool(self._attempts)

    @property
    def failed_here(self) -> bool:
        """Whether one has failed in this process."""
        return len(self._attempts) > self._known

    def remember(self, engine: str) -> None:
        """The request has a recipe: `engine` failed at it in another process, which ended before the segment did. More
        than the reason is not known of that; what became of it is.
        """
        cut, parts = self._request.cut, self._request.parts
        if not parts or self._request.reported:
            return
        self._attempts.append(Attempt(engine, cut.start, cut.end, 0, 0.0, parts[0].reason, BEFORE))
        self._known = 1
        for part in parts:
            self.takes_part(Task(part.source, part.start, part.end, piece=part.source == "engine"))

    def left_alone(self, engine: str, first_sample: int, reason: FailureKind) -> None:
        """The engine was not even asked."""
        cut = self._request.cut
        message = "not asked, after several losses in a row"
        self._attempts.append(Attempt(engine, cut.start, cut.end, first_sample, 0.0, reason, message))

    def attempt(
        self, doing: Rendering, now: float, kind: FailureKind | None = None, error: Exception | None = None
    ) -> None:
        """It ended. Each one that failed is kept, and the last one: successes may be as many as pieces."""
        if self._attempts and self._attempts[-1].kind is None:
            self._attempts.pop()
        message, trace = ("", "") if error is None else (str(error), trace_of(error))
        task, seconds = doing.task, now - doing.began_at
        self._attempts.append(Attempt(doing.engine, task.start, task.end, doing.began, seconds, kind, message, trace))

    def takes_part(self, task: Task) -> None:
        """The segment has a part of this task."""
        by_task: Outcome = "pieces" if task.piece else "fallback"
        if task.source == "clip":
            by_task = "clip" if task.start < task.end else "cut_short"
        self.outcome = max(self.outcome, by_task, key=BY_SEVERITY.index)

    def told(self, principal: str, engine: Capabilities) -> FailedSegment:
        """All of it, once."""
        attempts, self._attempts, self._known = tuple(self._attempts), [], 0
        return FailedSegment(self._request, principal, engine.name, engine.fingerprint, attempts, self.outcome)
