"""What is told of a segment that an engine failed at. Pure values."""

from dataclasses import dataclass
from typing import Literal

from server.engines.base import FailureKind
from server.engines.rendering import SegmentRequest

Outcome = Literal["recovered", "no_words", "cut_short", "fallback", "pieces", "clip", "abandoned"]
"""How it ended: the same engine did it after all, there was no word in it that could be missing, it failed when all
words were said, the fallback engine said the rest, it was said in pieces, a clip took the place of some of it, or
nobody waited for the end."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to render the text [start, end), from `first_sample` of the segment on. `kind` None: it succeeded."""

    engine: str
    start: int
    end: int
    first_sample: int
    seconds: float
    kind: FailureKind | None = None
    error: str = ""
    trace: str = ""


@dataclass(frozen=True, slots=True)
class FailedSegment:
    """A segment that did not succeed at the first attempt, told once, when it is over."""

    request: SegmentRequest
    principal: str
    engine: str
    fingerprint: str
    attempts: tuple[Attempt, ...]
    outcome: Outcome
