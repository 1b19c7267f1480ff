"""What a server may send. *Events* carry `event`, a number that grows by one, and come in the order of the timeline."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from protocol import fields as f
from protocol import limits

ResumeFailure: TypeAlias = Literal["unknown", "expired", "epoch", "evicted", "auth", "range"]
RESUME_FAILURES: tuple[ResumeFailure, ...] = ("unknown", "expired", "epoch", "evicted", "auth", "range")
BusyReason: TypeAlias = Literal["loading", "capacity", "sessions", "rate", "quota", "stopping"]
BUSY_REASONS: tuple[BusyReason, ...] = ("loading", "capacity", "sessions", "rate", "quota", "stopping")

_count = f.integer(0, limits.U53)
_utterance = f.integer(0, limits.U32)
_event = f.integer(1, limits.U53)
_name = f.string(128)
_message = f.string(4_000)


@dataclass(frozen=True, slots=True)
class Opened:
    """The session exists. `config` is what was accepted, `limits` every bound the client must respect."""

    type: ClassVar[str] = "opened"
    session: str = f.spec(_name)
    token: str = f.spec(f.string(256))
    epoch: int = f.spec(_count)
    generation: int = f.spec(f.integer(1, limits.U32))
    config: Mapping[str, Any] = f.spec(f.mapping)
    limits: Mapping[str, Any] = f.spec(f.mapping)
    pre_skip: int = f.spec(_count, 0)


@dataclass(frozen=True, slots=True)
class SeqAck:
    """Numbered messages up to `seq` were taken; `room` more characters of text may be sent."""

    type: ClassVar[str] = "seq_ack"
    seq: int = f.spec(_count)
    room: int = f.spec(_count)


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to `ping`."""

    type: ClassVar[str] = "pong"
    id: int = f.spec(_count, 0)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The line is alive. `event` is the number of the last event made."""

    type: ClassVar[str] = "heartbeat"
    event: int = f.spec(_count, 0)


@dataclass(frozen=True, slots=True)
class SegmentBegin:
    """A segment starts on the timeline at `first_sample`; it speaks the text [start, end)."""

    type: ClassVar[str] = "segment_begin"
    event: int = f.spec(_event)
    utterance: int = f.spec(_utterance)
    segment: int = f.spec(_count)
    start: int = f.spec(_count)
    end: int = f.spec(_count)
    first_sample: int = f.spec(_count)
    cause: str = f.spec(_name, "")
    kind: Literal["speech", "silence"] = f.spec(f.choice(("speech", "silence")), "speech")
    cue: str | None = f.spec(_name, None, null=True)


@dataclass(frozen=True, slots=True)
class Word:
    """A word of the source text [start, end) and the samples of the utterance's timeline in which it sounds."""

    text: str = f.spec(_message)
    start: int = f.spec(_count)
    end: int = f.spec(_count)
    first_sample: int = f.spec(_count)
    end_sample: int = f.spec(_count)


def _word(value: object) -> object:
    if not isinstance(value, dict):
        raise ValueError("an object")
    found: dict[str, Any] = {name: f.item_field(value, name, check) for name, check, _ in f.checks_of(Word)}
    return Word(**found)


@dataclass(frozen=True, slots=True)
class Timing:
    """Words whose place on the timeline became known."""

    type: ClassVar[str] = "timing"
    event: int = f.spec(_event)
    utterance: int = f.spec(_utterance)
    segment: int = f.spec(_count)
    words: tuple[Word, ...] = f.spec(f.list_of(_word))


@dataclass(frozen=True, slots=True)
class SegmentEnd:
    """A segment is complete. `digest`: SHA-256 of its s16le samples, hex."""

    type: ClassVar[str] = "segment_end"
    event: int = f.spec(_event)
    utterance: int = f.spec(_utterance)
    segment: int = f.spec(_count)
    samples: int = f.spec(_count)
    digest: str = f.spec(f.string(64, 64))
    degraded: bool = f.spec(f.boolean, False)
    reason: str = f.spec(_message, "")


@dataclass(frozen=True, slots=True)
class ModeChange:
    """From `at_sample` on, audio comes in another mode."""

    type: ClassVar[str] = "mode"
    event: int = f.spec(_event)
    utterance: int = f.spec(_utterance)
    mode: Literal["stream", "block"] = f.spec(f.choice(("stream", "block")))
    reason: str = f.spec(_message)
    at_sample: int = f.spec(_count)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """An utterance was cancelled; no audio of it follows.

    Its timeline ends at `sample`; the listener heard the text up to `heard_text_end`.
    """

    type: ClassVar[str] = "cancelled"
    event: int = f.spec(_event)
    utterance: int = f.spec(_utterance)
    sample: int = f.spec(_count)
    heard_text_end: int = f.spec(_count)


@dataclass(frozen=True, slots=True)
class Done:
    """An utterance is complete: `samples` on its timeline.

    `digest`: SHA-256 over the segments' SHA-256 digests (raw bytes, in order). `wire_digest`: SHA-256 over the audio
    payloads of this utterance sent in this generation. Both hex.
    """

    type: ClassVar[str] = "done"
    event: int = f.spec(_event)
    utterance: int = f.spec(_utterance)
    samples: int = f.spec(_count)
    digest: str = f.spec(f.string(64, 64))
    wire_digest: str = f.spec(f.string(64, 64))
    statistics: Mapping[str, Any] = f.spec(f.mapping)


@dataclass(frozen=True, slots=True)
class Resumed:
    """The session goes on from `from_sample` of `utterance`.

    Numbered messages up to `seq` were taken; `room` as in `seq_ack`.
    """

    type: ClassVar[str] = "resumed"
    generation: int = f.spec(f.integer(1, limits.U32))
    epoch: int = f.spec(_count)
    utterance: int = f.spec(_utterance)
    from_sample: int = f.spec(_count)
    synthesised_end: int = f.spec(_count)
    new_token: str = f.spec(f.string(256))
    mode: Literal["stream", "block"] = f.spec(f.choice(("stream", "block")))
    seq: int = f.spec(_count, 0)
    room: int = f.spec(_count, 0)


@dataclass(frozen=True, slots=True)
class ResumeFailed:
    """The session cannot go on; the text of `utterance` from `restart_text_position` on was not heard.

    None: this server knows nothing about it.
    """

    type: ClassVar[str] = "resume_failed"
    reason: ResumeFailure = f.spec(f.choice(RESUME_FAILURES))
    utterance: int | None = f.spec(_utterance, None, null=True)
    restart_text_position: int | None = f.spec(_count, None, null=True)


@dataclass(frozen=True, slots=True)
class Busy:
    """The server takes no session, or no further utterance, now; try again after this time.

    `reason`: one of BUSY_REASONS; newer servers may have more. `message`: for people.
    """

    type: ClassVar[str] = "busy"
    retry_after_ms: int = f.spec(_count)
    reason: str = f.spec(_name, "capacity")
    message: str = f.spec(_message, "")


@dataclass(frozen=True, slots=True)
class GoAway:
    """The server is stopping; it closes within `deadline_ms`."""

    type: ClassVar[str] = "goaway"
    deadline_ms: int = f.spec(_count)
    reason: str = f.spec(_message, "")


@dataclass(frozen=True, slots=True)
class Error:
    """Something is wrong, and the session is over.

    `field` names what, for instance `open.speed`; `retryable` says whether trying again may help.
    """

    type: ClassVar[str] = "error"
    code: str = f.spec(_name)
    message: str = f.spec(_message)
    field: str | None = f.spec(_name, None, null=True)
    retryable: bool = f.spec(f.boolean, False)


Event: TypeAlias = SegmentBegin | Timing | SegmentEnd | ModeChange | Cancelled | Done
ServerMessage: TypeAlias = (
    Opened | SeqAck | Pong | Heartbeat | Event | Resumed | ResumeFailed | Busy | GoAway | Error
)  # fmt: skip

EVENTS: tuple[type[Event], ...] = (SegmentBegin, Timing, SegmentEnd, ModeChange, Cancelled, Done)
SERVER_MESSAGES: tuple[type[ServerMessage], ...] = (
    Opened, SeqAck, Pong, Heartbeat, *EVENTS, Resumed, ResumeFailed, Busy, GoAway, Error,
)  # fmt: skip
