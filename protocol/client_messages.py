"""What a client may send. Numbered messages carry `seq`; the server acks them and ignores repeats."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from protocol import fields as f
from protocol import limits

AudioFormat: TypeAlias = Literal["pcm", "opus", "auto"]
Mode: TypeAlias = Literal["auto", "stream", "block"]
SpeechLanguage: TypeAlias = Literal["auto", "zh", "en"]

_seq = f.integer(1, limits.U53)
_sample = f.integer(0, limits.U53)
_voice = f.string(128, 1)


@dataclass(frozen=True, slots=True)
class Open:
    """The first message: what the session should sound like. Everything has a default.

    `max_lead_ms`: how far sending may run ahead of `ack.played_sample`; None sends as fast as acks allow.
    `max_buffer_delay_ms`: how long text that looks complete waits before it is spoken; None leaves it to `flush`.
    `bitrate`: None leaves it to the server, which may lower it on a bad link.
    """

    type: ClassVar[str] = "open"
    voice: str | None = f.spec(_voice, None, null=True)
    language: SpeechLanguage = f.spec(f.choice(("auto", "zh", "en")), "auto")
    speed: float = f.spec(f.number(*limits.SPEED), 1.0)
    pitch: float = f.spec(f.number(*limits.PITCH), 1.0)
    volume: float = f.spec(f.number(*limits.VOLUME), 1.0)
    format: AudioFormat = f.spec(f.choice(("pcm", "opus", "auto")), "pcm")
    sample_rate: int = f.spec(f.integer(8_000, 48_000), 24_000)
    frame_ms: float | None = f.spec(f.number(2.5, 1_000), None, null=True)
    bitrate: int | None = f.spec(f.integer(*limits.BITRATE), None, null=True)
    mode: Mode = f.spec(f.choice(("auto", "stream", "block")), "auto")
    max_lead_ms: int | None = f.spec(f.integer(100, 600_000), 4_000, null=True)
    max_buffer_delay_ms: int | None = f.spec(f.integer(50, 60_000), 800, null=True)
    timings: bool = f.spec(f.boolean, True)
    api_key: str | None = f.spec(f.string(512, 1), None, null=True)


@dataclass(frozen=True, slots=True)
class Start:
    """Begins an utterance; text that follows belongs to it. None keeps the session's value."""

    type: ClassVar[str] = "start"
    seq: int = f.spec(_seq)
    utterance: int = f.spec(f.integer(1, limits.U32))
    voice: str | None = f.spec(_voice, None, null=True)
    speed: float | None = f.spec(f.number(*limits.SPEED), None, null=True)
    pitch: float | None = f.spec(f.number(*limits.PITCH), None, null=True)
    volume: float | None = f.spec(f.number(*limits.VOLUME), None, null=True)
    seed: int = f.spec(f.integer(0, limits.U32), 0)
    instruct: str = f.spec(f.string(limits.MAX_INSTRUCT_CHARS), "")
    lexicon: Mapping[str, str] | None = f.spec(f.string_map(limits.MAX_LEXICON_ENTRIES, 200), None, null=True)


@dataclass(frozen=True, slots=True)
class Text:
    """More text of the current utterance, cut anywhere."""

    type: ClassVar[str] = "text"
    seq: int = f.spec(_seq)
    text: str = f.spec(f.string(limits.MAX_TEXT_CHARS))


@dataclass(frozen=True, slots=True)
class Silence:
    """Speak what came before, then this much silence."""

    type: ClassVar[str] = "silence"
    seq: int = f.spec(_seq)
    ms: int = f.spec(f.integer(1, limits.MAX_SILENCE_MS))


@dataclass(frozen=True, slots=True)
class Flush:
    """Speak what came so far without waiting for more. `soft`: only if it looks complete."""

    type: ClassVar[str] = "flush"
    seq: int = f.spec(_seq)
    soft: bool = f.spec(f.boolean, False)


@dataclass(frozen=True, slots=True)
class End:
    """No more text for the current utterance."""

    type: ClassVar[str] = "end"
    seq: int = f.spec(_seq)


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop now: one utterance, or (without `utterance`) all that are unfinished.

    `played_sample` is how far the listener heard the utterance being played; the answer says which text that was.
    """

    type: ClassVar[str] = "cancel"
    seq: int = f.spec(_seq)
    utterance: int | None = f.spec(f.integer(1, limits.U32), None, null=True)
    played_sample: int | None = f.spec(_sample, None, null=True)


@dataclass(frozen=True, slots=True)
class Pause:
    """Send no more audio until `unpause`."""

    type: ClassVar[str] = "pause"
    seq: int = f.spec(_seq)


@dataclass(frozen=True, slots=True)
class Unpause:
    """Go on sending."""

    type: ClassVar[str] = "unpause"
    seq: int = f.spec(_seq)


@dataclass(frozen=True, slots=True)
class Ack:
    """What arrived: audio of `utterance` up to `next_sample`, events up to `event`; and what was played."""

    type: ClassVar[str] = "ack"
    generation: int = f.spec(f.integer(1, limits.U32))
    utterance: int = f.spec(f.integer(0, limits.U32))
    next_sample: int = f.spec(_sample)
    played_sample: int = f.spec(_sample, 0)
    buffered_ms: int = f.spec(f.integer(0, limits.U32), 0)
    stalls: int = f.spec(f.integer(0, limits.U32), 0)
    event: int = f.spec(f.integer(0, limits.U53), 0)
    visible: bool = f.spec(f.boolean, True)


@dataclass(frozen=True, slots=True)
class Resume:
    """Come back after a drop, instead of `open`."""

    type: ClassVar[str] = "resume"
    session: str = f.spec(f.string(128, 1))
    token: str = f.spec(f.string(256, 1))
    epoch: int = f.spec(f.integer(0, limits.U53))
    generation_seen: int = f.spec(f.integer(0, limits.U32))
    utterance: int = f.spec(f.integer(0, limits.U32))
    next_sample: int = f.spec(_sample)
    events_seen: int = f.spec(f.integer(0, limits.U53))
    played_sample: int = f.spec(_sample, 0)
    have_decoder: bool = f.spec(f.boolean, False)
    api_key: str | None = f.spec(f.string(512, 1), None, null=True)


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for a `pong` with the same id."""

    type: ClassVar[str] = "ping"
    id: int = f.spec(f.integer(0, limits.U53), 0)


Numbered: TypeAlias = Start | Text | Silence | Flush | End | Cancel | Pause | Unpause
ClientMessage: TypeAlias = Open | Ack | Resume | Ping | Numbered

NUMBERED: tuple[type[Numbered], ...] = (Start, Text, Silence, Flush, End, Cancel, Pause, Unpause)
CLIENT_MESSAGES: tuple[type[ClientMessage], ...] = (Open, Ack, Resume, Ping, *NUMBERED)
RESERVED: tuple[str, ...] = ("cue", "revise")
"""Types kept for dubbing: a server that does not dub answers `unsupported`."""
