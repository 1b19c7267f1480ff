"""What steps cost, as measured: how long they take, what a batch saves, how many streams an engine can feed."""

from dataclasses import dataclass
from typing import Final

from server.scheduler.ticket import StepReport

MEMORY_STEPS: Final = 200  # a mean follows the last so many steps of its kind
FIRST_MEMORY: Final = 30
RECENT_S: Final = 10.0  # what a step costs lately: what happened so long ago counts half
LONG_S: Final = 600.0  # the same for what hardly changes


@dataclass(slots=True)
class Mean:
    """A mean over roughly the last `memory` values; exact while there are fewer."""

    memory: int = MEMORY_STEPS
    value: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """One more value."""
        self.count = min(self.count + 1, self.memory)
        self.value += (value - self.value) / self.count


@dataclass(slots=True)
class RecentMean:
    """A mean in which older values fade; after a silence it knows what it knew, and learns anew at once."""

    half_life_s: float
    value: float = 0.0
    weight: float = 0.0
    at: float = 0.0

    def add(self, value: float, weight: float, now: float) -> None:
        """One more value; a heavier one counts more."""
        self.weight = self.weight * 0.5 ** (max(0.0, now - self.at) / self.half_life_s) + weight
        self.value += (value - self.value) * weight / self.weight
        self.at = now


class StepCosts:
    """Learns from every step. `lanes` steps run side by side; `batch_max` jobs share one."""

    def __init__(self, lanes: int, batch_max: int) -> None:
        self._lanes = lanes
        self._batch_max = batch_max
        self._seconds = [Mean() for _ in range(batch_max + 1)]  # of a step, by the number of its jobs
        self._first = Mean(FIRST_MEMORY)
        self._step = Mean(FIRST_MEMORY)
        # Seconds of engine time for a second of audio: over a long time by how many lanes were at work, which tells how
        # much steps slow each other down, and lately, as if they did not.
        self._by_lanes = [RecentMean(LONG_S) for _ in range(lanes + 1)]
        self._alone = RecentMean(RECENT_S)

    def add(self, report: StepReport, lanes_at_work: int, now: float) -> None:
        """A step ended; `lanes_at_work` counts its own."""
        jobs = min(report.jobs, self._batch_max)
        self._seconds[jobs].add(report.seconds)
        self._step.add(report.seconds)
        if report.first:
            self._first.add(report.seconds)
        if report.audio_s > 0:
            at_work = min(lanes_at_work, self._lanes)
            cost = report.seconds / report.audio_s
            self._by_lanes[at_work].add(cost, report.audio_s, now)
            self._alone.add(cost / self._slowdown(at_work), report.audio_s, now)

    @property
    def step_s(self) -> float:
        """A step, lately."""
        return self._step.value

    @property
    def first_s(self) -> float:
        """A first step, lately."""
        return self._first.value or self._step.value

    @property
    def fixed_s(self) -> float:
        """What a step costs besides its jobs, and a batch therefore saves; 0.0 where batches of two sizes are not known
        yet. From the smallest and the largest batch seen, by a straight line.
        """
        known = [(jobs, mean.value) for jobs, mean in enumerate(self._seconds) if mean.count]
        if len(known) < 2:
            return 0.0
        (few, short), (many, long) = known[0], known[-1]
        per_job = max(0.0, (long - short) / (many - few))
        return max(0.0, short - few * per_job)

    @property
    def streams(self) -> float:
        """How many streams can be fed in real time with every lane at work; 0.0 while nothing is known."""
        cost = self._alone.value * self._slowdown(self._lanes)
        return self._lanes / cost if cost > 0 else 0.0

    def _slowdown(self, at_work: int) -> float:
        """How much longer steps take with so many at work; a guess from fewer where that is not known."""
        alone = self._by_lanes[1]
        known = next((mean for mean in reversed(self._by_lanes[2 : at_work + 1]) if mean.weight), None)
        return max(1.0, known.value / alone.value) if known is not None and alone.value > 0 else 1.0
