"""For engines that only know how to speak a whole text: give a generator of samples, get an `Engine`."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from server.engines.base import Capabilities, Chunk, Job, RenderPlan, Samples, Segment, SegmentEnd, StepEvent


@dataclass(eq=False, slots=True)
class SimpleJob(Job):
    """A generator at work; `skip` samples are still to be left out."""

    pieces: Iterator[Samples] = field(default_factory=lambda: iter(()))
    skip: int = 0


class SimpleEngine(ABC):
    """Implement `capabilities` and `synthesize`; the rest of the `Engine` contract follows.

    One step takes one piece of the generator, so yield pieces that take tens of milliseconds to make. Jobs are served
    one by one (leave `capabilities.batch_max` at 1).
    """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What the engine can do."""

    @abstractmethod
    def synthesize(self, segment: Segment, seed: int) -> Iterator[Samples]:
        """The segment's samples and its closing pause: float32 mono at `capabilities.sample_rate`, piece by piece."""

    def warm_up(self) -> None:  # noqa: B027  # few engines need it
        """Override it where the first call is slow."""

    def prepare(self, segment: Segment, plan: RenderPlan, seed: int = 0, start_sample: int = 0) -> SimpleJob:
        """See Engine. The generator starts at the first step."""
        return SimpleJob(segment, plan, self.synthesize(segment, seed), start_sample)

    def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
        """See Engine."""
        events: list[StepEvent] = []
        for job in jobs:
            assert isinstance(job, SimpleJob)  # made by `prepare`
            piece = next(job.pieces, None)
            if piece is None:
                events.append(SegmentEnd(job))
                continue
            samples = np.asarray(piece, np.float32)
            dropped = min(job.skip, len(samples))
            job.skip -= dropped
            events.append(Chunk(job, samples[dropped:]))
        return events

    def cancel(self, job: Job) -> None:
        """See Engine. Runs the generator's `finally`."""
        assert isinstance(job, SimpleJob)
        close = getattr(job.pieces, "close", None)
        if close is not None:
            close()

    def close(self) -> None:  # noqa: B027  # few engines need it
        """Override it where something must be freed."""
