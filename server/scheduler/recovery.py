"""What becomes of a segment that an engine failed at. Pure: who renders asks, and says how it went.

The engine tries once more where that may help, going on at the sample it had reached. Then the fallback engine speaks
the rest; what it fails at, too, is cut at its punctuation, and each piece is tried by the engine and by the fallback
engine; what still fails becomes a clip, a soft tone and silence. What was said already is never said again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from server.engines.base import FailureKind
from server.text.pieces import at_punctuation, part_of, says_something, to_fit
from server.text.tokens import Cut

Source = Literal["engine", "fallback", "clip"]

MAX_FAILURES: Final = 12  # of one segment: then a clip stands for all that is left
MAX_LOST_S: Final = 30.0  # that a segment may wait for what fails in the end; a listener hears nothing meanwhile
"""The fallback engine is asked even then, until it fails for the first time."""
MAX_STEP_S: Final = 5.0
"""What an attempt that failed with a word of its own may have taken: one step, and it did not hang. What it took longer
is the time for which others were served, on a busy server."""
LOSSES: Final[frozenset[FailureKind]] = frozenset({"time_out", "worker_lost", "out_of_memory", "repeated"})
"""What says more about the engine than about the segment, or costs a listener more than all else."""

SKIP_AFTER: Final = 3  # segments in a row
SKIP_S: Final = (5.0, 60.0)  # doubling from the one to the other


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt failed, after its stream had waited `seconds` for it."""

    kind: FailureKind
    transient: bool = False
    seconds: float = 0.0

    @property
    def lost_s(self) -> float:
        """What of that the attempt itself took, as far as that is known."""
        return self.seconds if self.kind in ("time_out", "worker_lost") else min(self.seconds, MAX_STEP_S)


@dataclass(frozen=True, slots=True)
class Task:
    """The text [start, end) of a segment, to be spoken by `source`. `whole`: as it was asked for; `piece`: one that it
    was cut into at its punctuation.
    """

    source: Source
    start: int
    end: int
    whole: bool = False
    piece: bool = False


@dataclass(frozen=True, slots=True)
class _Span:
    """Text that is left to say. `tried`: who failed at it. `piece`: it is one already, and not cut any further."""

    start: int
    end: int
    tried: frozenset[Source] = frozenset()
    piece: bool = False


class Recovery:
    """One segment's way. `failed` or `finished` is told of each task, then `next` gives the one that follows."""

    def __init__(self, cut: Cut, at: Task | None = None, lexicon: Mapping[str, str] | None = None) -> None:
        """`at`: see `resume`. `lexicon`: see `normalise`."""
        self._cut = cut
        self._lexicon = lexicon
        self._task = Task("engine", cut.start, cut.end, whole=True)
        self._todo: list[_Span] = []
        self._absent: set[Source] = set()
        self._failed: set[tuple[Source, int, int]] = set()
        self._failures = 0
        self._lost_s = 0.0
        self._retried = False
        self._babbled = False
        self._taken_over = True  # by somebody else, since the last failure
        if at is not None:
            self.resume(at)

    @property
    def exhausted(self) -> bool:
        """Whether nothing more is tried."""
        return self._failures >= MAX_FAILURES or self._lost_s >= MAX_LOST_S

    @property
    def wordless(self) -> bool:
        """Whether it failed and nothing is missing, as there is no word in it, and nothing was heard in place of it."""
        return bool(self._failed) and not self._babbled and not says_something(self._cut, self._lexicon)

    def resume(self, at: Task) -> None:
        """This is the task in hand, whatever was before: it was chosen elsewhere. What comes after it is to be said in
        pieces. Each such task gets a second try of its own: it succeeded before.
        """
        self._retried = self._retried and at == self._task
        self._task = at
        self._todo = [] if at.whole else [_piece(at.start, at.end), _piece(at.end, self._cut.end)]

    def failed(self, failure: Failure, reached: int) -> bool:
        """The task failed, when the text was said up to `reached`. Whether the same source shall go on with it; else
        ask for the `next` task.
        """
        task = self._task
        self._failures += 1
        self._lost_s += failure.lost_s
        self._taken_over = False
        if failure.kind == "repeated":  # each try costs many times what it should say: it gets no other one
            self._absent.add(task.source)
            self._babbled = True
        elif task.source == "engine" and failure.transient and not self._retried and not self.exhausted:
            self._retried = True
            return True
        self._failed.add((task.source, task.start, task.end))
        reached = min(max(reached, task.start), task.end)
        if task.whole:
            self._todo = [_Span(reached, task.end)]
        else:
            span = self._todo[0]
            self._todo[0] = replace(span, start=reached, tried=span.tried | {task.source})
        return False

    def finished(self) -> None:
        """The task is done."""
        self._taken_over = True
        if self._todo:
            del self._todo[0]

    def skip(self) -> None:
        """The engine is not to be asked at all."""
        self._absent.add("engine")
        self._failed.add(("engine", self._cut.start, self._cut.end))
        self._todo = [_Span(self._cut.start, self._cut.end)]
        self._taken_over = False

    def cannot(self, source: Source) -> None:
        """This source is not to be had for this segment."""
        self._absent.add(source)

    def next(self) -> Task | None:
        """The next task; None when all is said."""
        while self._todo:
            span = self._todo[0]
            if not says_something(part_of(self._cut, span.start, span.end), self._lexicon):
                del self._todo[0]
            elif self.exhausted:
                piece = self._fallback_failed or span.piece
                self._todo = [_Span(span.start, self._cut.end, span.tried, piece)]
                return self._take("clip" if self._fallback_failed else "fallback")
            elif source := self._source_for(span):
                return self._take(source)
            elif span.piece:
                return self._take("clip")
            else:
                cuts = at_punctuation(part_of(self._cut, span.start, span.end), self._lexicon)
                self._todo[:1] = [_piece(cut.start, cut.end) for cut in cuts]
        if not self._taken_over and not self.wordless:  # it failed when all was said
            self._todo = [_piece(self._cut.end, self._cut.end)]
            return self._take("clip")
        return None

    def fit(self, fits: Callable[[str], bool]) -> Task:
        """The task, or its beginning where whoever shall speak it takes only texts that fit."""
        first, *others = to_fit(part_of(self._cut, self._task.start, self._task.end), fits, self._lexicon)
        if others:
            span = self._todo[0]
            self._todo[:1] = [replace(span, start=cut.start, end=cut.end) for cut in (first, *others)]
            self._task = replace(self._task, end=first.end)
        return self._task

    def _take(self, source: Source) -> Task:
        span = self._todo[0]
        self._taken_over = True
        self._task = Task(source, span.start, span.end, piece=span.piece)
        return self._task

    @property
    def _fallback_failed(self) -> bool:
        return "fallback" in self._absent or any(source == "fallback" for source, _, _ in self._failed)

    def _source_for(self, span: _Span) -> Source | None:
        order: tuple[Source, ...] = ("engine", "fallback") if span.piece else ("fallback",)
        for source in order:
            known = source in span.tried or source in self._absent
            if not known and (source, span.start, span.end) not in self._failed:
                return source
        return None


def _piece(start: int, end: int) -> _Span:
    return _Span(start, end, piece=True)


class Breaker:
    """Whether an engine is asked at all: not for a while, once it lost several segments in a row. Times are seconds on
    any clock that only moves forward.
    """

    def __init__(self) -> None:
        self.reason: FailureKind = "worker_lost"  # of the latest loss
        self._losses = 0
        self._pause_s = SKIP_S[0]
        self._until: float | None = None

    @property
    def open(self) -> bool:
        """Whether it is left alone, but for probes."""
        return self._until is not None

    def allows(self, now: float) -> bool:
        """Whether to ask it. After a pause one segment may, and the others when that went well."""
        if self._until is None:
            return True
        if now < self._until:
            return False
        self._until = now + self._pause_s
        return True

    def lost(self, kind: FailureKind, now: float) -> None:
        """It lost a segment."""
        self.reason = kind
        self._losses += 1
        if self._until is not None:
            self._pause_s = min(2 * self._pause_s, SKIP_S[1])
        if self._losses >= SKIP_AFTER:
            self._until = now + self._pause_s

    def worked(self) -> None:
        """It rendered a segment."""
        if self._losses:
            self._losses, self._pause_s, self._until = 0, SKIP_S[0], None
