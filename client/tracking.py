"""What the session knows of one utterance: how much is here, and how much of that was heard. Pure."""

from dataclasses import dataclass

from client.statistics import UtteranceStatistics
from client.timeline import Timeline
from protocol.media.opus import timeline_sample


@dataclass(slots=True, eq=False)
class Tracked:
    """An utterance from its `start` until nobody asks for it any more. Samples are of its timeline unless said."""

    number: int
    timeline: Timeline
    statistics: UtteranceStatistics
    pre_skip: int
    ended: bool = False  # `end` was sent
    cancelled: bool = False  # `cancel` was sent: late audio is dropped
    consumed_sample: int = 0  # as the frames count: coded samples for Opus
    player_sample: int | None = None  # as its player reports; None: what was consumed counts as played
    buffered_ms: int | None = None
    stalls: int = 0

    @property
    def played(self) -> int:
        """How far it was heard."""
        if self.player_sample is not None:
            return self.player_sample
        samples = None if self.statistics.finished is None else self.statistics.samples
        return timeline_sample(self.consumed_sample, self.pre_skip if self.timeline.is_coded else 0, samples)

    @property
    def heard_all(self) -> bool:
        """Whether it is complete and was played to its end."""
        return self.statistics.finished is not None and self.played >= self.statistics.samples
