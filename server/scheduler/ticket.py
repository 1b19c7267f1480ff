"""What streams tell the scheduler, and what a step tells everybody. Pure values."""

from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf

from server.cache.counts import UNUSED, CacheUse


@dataclass(frozen=True, slots=True)
class Urgency:
    """Why a stream's next chunk is wanted. `due`: when its listener runs dry (inf: it is in no hurry at all), on the
    clock of the event loop, which on Linux and macOS is `time.monotonic`. `first`: nothing is being heard, so that
    every moment is silence.
    """

    due: float = inf
    first: bool = False


class Place(Enum):
    """Where a stream stands."""

    IDLE = auto()  # nobody asked for its next chunk
    WAITING = auto()
    RUNNING = auto()  # a step works on it
    GONE = auto()  # cancelled or complete


@dataclass(eq=False, slots=True)
class Ticket:
    """One stream's place in the schedule. `size` is what a batch is padded by: its segment's length in tokens. `alone`:
    it shares no step with others.
    """

    principal: str = ""
    size: int = 1
    urgency: Urgency = field(default_factory=Urgency)
    place: Place = Place.IDLE
    begun: bool = False  # a step of it was run
    alone: bool = False
    asked_at: float = 0.0
    number: int = 0  # of its latest ask


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step of an engine: seconds it took, jobs it served, seconds of audio it made, and the share of padding in its
    batch. `first`: it was the first step of a job. `context`: what was asked of the context cache since the last one.
    """

    seconds: float
    jobs: int
    audio_s: float
    first: bool = False
    padding: float = 0.0
    context: CacheUse = UNUSED
