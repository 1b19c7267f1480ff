"""What a client asked for in `open`, checked against what the voice and the format can do."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from protocol import client_messages as c
from protocol import limits
from protocol.errors import ErrorCode, ProtocolError
from protocol.frames import Codec
from protocol.media.opus import OpusUnavailableError
from server.audio.wire import CoderSpec, opus_pre_skip
from server.engines.base import Capabilities

OwnsVoice: TypeAlias = Callable[[str], bool]
"""Whether the client has a learnt voice with this id, now."""

DEFAULT_FRAME_MS_PCM = 40.0
DEFAULT_FRAME_MS_OPUS = 20.0
_NAMED_VOICES = 3  # of those that can do what another one cannot: a message is no list
LARGE_FRAME_MS_PCM = 200.0  # in block mode and for clients that only collect: a fifth of the messages


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """The accepted configuration."""

    open: c.Open
    voice: str
    codec: Codec
    frame_ms: float
    mode: str
    pre_skip: int  # samples of decoder delay, Opus only
    auto: bool = False  # PCM that may fall to Opus

    @property
    def coder(self) -> CoderSpec:
        """How audio is coded."""
        return CoderSpec(self.codec, self.open.sample_rate, self.frame_ms, self.bitrate, auto=self.auto)

    @property
    def bitrate(self) -> int:
        """Opus, bit/s, on a good link."""
        return limits.DEFAULT_BITRATE if self.open.bitrate is None else self.open.bitrate

    def echo(self) -> dict[str, Any]:
        """For `opened.config`: everything that was accepted, never the key."""
        accepted = asdict(self.open)
        del accepted["api_key"]
        accepted |= {
            "voice": self.voice,
            "format": self.codec.name.lower(),
            "frame_ms": self.frame_ms,
            "bitrate": self.bitrate,
            "mode": self.mode,
        }
        return accepted

    def check_overrides(self, start: c.Start, capabilities: Capabilities, owns: OwnsVoice) -> None:
        """Raises ProtocolError where an utterance asks for what the voice cannot do."""
        voice = start.voice or self.voice
        if start.voice is not None:
            check_voice(voice, capabilities, "start.voice", owns)
        _check_parameter("start.speed", start.speed, "speed", capabilities)
        _check_parameter("start.pitch", start.pitch, "pitch", capabilities)
        if start.instruct and "instruct" not in capabilities.parameters:
            raise _unsupported("start.instruct", capabilities)
        _check_followed("start", start, voice, capabilities)
        for name in _lacks(voice, capabilities):  # what `open` asks for holds with another voice, too
            if getattr(start, name, "") is None and getattr(self.open, name) != 1.0:
                text = f"the voice {voice} follows no {name}, and open.{name} is set: give 1 as start.{name}"
                raise ProtocolError(ErrorCode.UNSUPPORTED, text, "start.voice")


def configure(open_: c.Open, capabilities: Capabilities, default_voice: str, owns: OwnsVoice) -> SessionConfig:
    """Check an `open`. Raises ProtocolError naming the field and what is allowed."""
    voice = open_.voice or default_voice
    check_voice(voice, capabilities, "open.voice", owns)
    _check_parameter("open.speed", open_.speed, "speed", capabilities)
    _check_parameter("open.pitch", open_.pitch, "pitch", capabilities)
    _check_followed("open", open_, voice, capabilities)
    opus = open_.format == "opus"
    rates = limits.SAMPLE_RATES_OPUS if opus else limits.SAMPLE_RATES_PCM
    if open_.sample_rate not in rates:
        raise _bad("open.sample_rate", f"one of {', '.join(map(str, rates))} for {'opus' if opus else 'pcm'}")
    mode = "stream" if open_.mode == "auto" else open_.mode
    if opus:
        frame_ms = open_.frame_ms or DEFAULT_FRAME_MS_OPUS
        whole = [ms for ms in limits.FRAME_MS_OPUS if (open_.sample_rate * ms / 1000).is_integer()]
        if frame_ms not in whole:
            raise _bad("open.frame_ms", f"one of {', '.join(f'{ms:g}' for ms in whole)} for opus")
    else:
        large = mode == "block" or open_.max_lead_ms is None
        frame_ms = open_.frame_ms or (LARGE_FRAME_MS_PCM if large else DEFAULT_FRAME_MS_PCM)
        low, high = limits.FRAME_MS_PCM
        if not low <= frame_ms <= high:
            raise _bad("open.frame_ms", f"a number from {low:g} to {high:g} for pcm")
    auto = open_.format == "auto" and open_.sample_rate in limits.SAMPLE_RATES_OPUS
    try:
        pre_skip = opus_pre_skip(open_.sample_rate) if opus or auto else 0
    except OpusUnavailableError:
        if opus:
            raise ProtocolError(ErrorCode.UNSUPPORTED, "this server has no libopus: use pcm", "open.format") from None
        pre_skip, auto = 0, False
    return SessionConfig(open_, voice, Codec.OPUS if opus else Codec.PCM, frame_ms, mode, pre_skip, auto)


def check_voice(voice: str, capabilities: Capabilities, field: str, owns: OwnsVoice) -> None:
    """Raises ProtocolError for a voice that is neither the engine's nor one that the client had learnt."""
    if capabilities.voice(voice) is not None or owns(voice):
        return
    known = [each.id for each in capabilities.voices] + ["a voice of your own"] * capabilities.cloning
    allowed = f"one of {', '.join(known)}" if len(known) > 1 else "".join(known)
    given = repr(voice) if voice else "left out: the engine has no other"
    raise ProtocolError(ErrorCode.UNKNOWN_VOICE, f"{field} must be {allowed}, not {given}", field)


def _check_parameter(field: str, value: float | None, name: str, capabilities: Capabilities) -> None:
    if value not in (None, 1.0) and name not in capabilities.parameters:
        raise _unsupported(field, capabilities)


def _lacks(voice: str, capabilities: Capabilities) -> tuple[str, ...]:
    """What one of the engine's own voices does not follow, but for a seed: without chance, any one fits."""
    built_in = capabilities.voice(voice)
    return () if built_in is None else tuple([name for name in built_in.lacks if name != "seed"])


def _check_followed(message: str, asked: c.Open | c.Start, voice: str, capabilities: Capabilities) -> None:
    for name in _lacks(voice, capabilities):
        if getattr(asked, name, None) not in (None, "", 1.0):
            others = [each.id for each in capabilities.voices if name not in each.lacks][:_NAMED_VOICES]
            others += ["a voice learnt from a recording"] * capabilities.cloning
            instead = f", or use {' or '.join(others)}" if others else ""
            text = f"the voice {voice} follows no {name}: leave it out{instead}"
            raise ProtocolError(ErrorCode.UNSUPPORTED, text, f"{message}.{name}")


def _unsupported(field: str, capabilities: Capabilities) -> ProtocolError:
    return ProtocolError(ErrorCode.UNSUPPORTED, f"the engine {capabilities.name} has no {field.split('.')[1]}", field)


def _bad(field: str, allowed: str) -> ProtocolError:
    return ProtocolError(ErrorCode.BAD_MESSAGE, f"{field} must be {allowed}", field)
