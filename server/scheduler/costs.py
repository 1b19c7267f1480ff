"""What steps cost, as measured: how long they take, what a batch saves, how many streams an engine can feed."""

from dataclasses import dataclass
from typing import Final

from server.scheduler.ticket import StepReport

MEMORY_STEPS: Final = 200  # a mean follows the last so many steps of its kind
FIRST_MEMORY: Final = 30


@dataclass(slots=True)
class Mean:
    """A mean over roughly the last `memory` values; exact while there are fewer."""

    memory: int = MEMORY_STEPS
    value: float = 0.0
    weight: float = 0.0

    def add(self, value: float, weight: float = 1.0) -> None:
        """One more value; a heavier one counts more."""
        self.weight = min(self.weight, self.memory * weight) + weight
        self.value += (value - self.value) * weight / self.weight


class StepCosts:
    """Learns from every step. `lanes` steps run side by side; `batch_max` jobs share one."""

    def __init__(self, lanes: int, batch_max: int) -> None:
        self._lanes = lanes
        self._batch_max = batch_max
        # By how many lanes were at work, itself included: side by side, steps are slower.
        self._engine_per_audio = [Mean() for _ in range(lanes + 1)]
        self._seconds = [Mean() for _ in range(batch_max + 1)]  # by the number of jobs
        self._first = Mean(FIRST_MEMORY)
        self._step = Mean(FIRST_MEMORY)

    def add(self, report: StepReport, lanes_at_work: int) -> None:
        """A step ended."""
        jobs = min(report.jobs, self._batch_max)
        self._seconds[jobs].add(report.seconds)
        self._step.add(report.seconds)
        if report.first:
            self._first.add(report.seconds)
        if report.audio_s > 0:
            level = self._engine_per_audio[min(lanes_at_work, self._lanes)]
            level.add(report.seconds / report.audio_s, report.audio_s)

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
        known = [(jobs, mean.value) for jobs, mean in enumerate(self._seconds) if mean.weight]
        if len(known) < 2:
            return 0.0
        (few, short), (many, long) = known[0], known[-1]
        per_job = max(0.0, (long - short) / (many - few))
        return max(0.0, short - few * per_job)

    @property
    def streams(self) -> float:
        """How many streams can be fed in real time with every lane at work; 0.0 while nothing is known."""
        measured = next((mean for mean in reversed(self._engine_per_audio) if mean.weight), None)
        return self._lanes / measured.value if measured is not None and measured.value > 0 else 0.0
