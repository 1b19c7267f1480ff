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
    """How much of an utterance's text the server has, and whether it has the `end`."""

    text_end: int
    ended: bool


@dataclass(frozen=True, slots=True)
class Blocks:
    """Which message holds what of the utterance's text: `first_seq` the first `size` characters, and so on.

    `last_seq`: the one with the end of the text, which has `text_end` characters in all; `end` follows it. None: that
    was not sent.
    """

    first_seq: int
    size: int
    last_seq: int | None = None
    text_end: int = 0

    def with_server(self, seq: int) -> Sent | None:
        """What a server has that took the messages up to `seq`. None: these are not all it took."""
        if seq < self.first_seq - 1 or (self.last_seq is not None and seq > self.last_seq + 1):
            return None
        if self.last_seq is not None and seq >= self.last_seq:
            return Sent(self.text_end, seq > self.last_seq)
        return Sent(self.size * (seq - self.first_seq + 1), False)


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
    degraded: str | None = None  # why it does not sound as it should


@dataclass(frozen=True, slots=True)
class SavedSession:
    """One utterance of a session that sends PCM.

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
    blocks: Blocks

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

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> "SavedSession":
        """The same again. Raises TypeError, KeyError, ValueError for what `to_json` did not make."""
        segments = tuple(
            SavedSegment(**{**segment, "words": tuple(Word(**word) for word in segment["words"])})
            for segment in value["segments"]
        )
        return cls(**{**value, "segments": segments, "blocks": Blocks(**value["blocks"])})
