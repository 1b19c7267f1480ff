"""A session as it is written down, so that another process can go on with it at the very next sample. Pure.

Only what a program has safe itself belongs here: audio up to `next_sample`, events up to `event`. Acks must not have
gone further (`connect(confirm=True)`), else the server no longer has what is missing.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from protocol.client_messages import Resume
from protocol.server_messages import Opened, Word


class Sent(NamedTuple):
    """A numbered message that was sent, or was about to be: the utterance's text up to `text_end` is with it. `ended`:
    it was the `end`.
    """

    seq: int
    text_end: int
    ended: bool = False


@dataclass(frozen=True, slots=True)
class SavedSegment:
    """A segment that was announced and is not whole. `samples` None: its end was not told yet."""

    number: int
    start: int
    end: int
    first_sample: int
    is_silence: bool
    samples: int | None
    digest: str
    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class SavedSession:
    """One utterance of a session that sends PCM. `sent`: of messages the server may have, in order.

    `told`: the highest segment number that began. `generation` and `token` as they were last.
    """

    session: str
    token: str
    epoch: int
    generation: int
    config: Mapping[str, Any]
    limits: Mapping[str, Any]
    utterance: int
    next_sample: int
    event: int
    told: int
    segments: tuple[SavedSegment, ...]
    sent: tuple[Sent, ...]

    @property
    def opened(self) -> Opened:
        """What the server answered when it was opened."""
        return Opened(self.session, self.token, self.epoch, self.generation, self.config, self.limits)

    @property
    def greeting(self) -> Resume:
        """What asks for it."""
        return Resume(
            self.session, self.token, self.epoch, self.generation, self.utterance, self.next_sample, self.event,
            self.next_sample,
        )  # fmt: skip

    def text_with(self, seq: int) -> Sent | None:
        """What a server has that took the messages up to `seq`. None: nobody remembers."""
        return next((sent for sent in self.sent if sent.seq == seq), None)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "sent": [list(sent) for sent in self.sent]}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> "SavedSession":
        """The same again. Raises TypeError, KeyError, ValueError for what `to_json` did not make."""
        segments = tuple(
            SavedSegment(**{**segment, "words": tuple(Word(**word) for word in segment["words"])})
            for segment in value["segments"]
        )
        return cls(**{**value, "segments": segments, "sent": tuple(Sent(*sent) for sent in value["sent"])})
