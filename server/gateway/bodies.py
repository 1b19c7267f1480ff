"""Audio frames as the body of an HTTP response: one header, whole samples, the true length."""

import secrets
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from protocol.frames import AudioFrame, FrameFlag, unpack_packets
from protocol.media.ogg import OggOpusWriter
from protocol.media.wav import wav_header


class Body(Protocol):
    """Turns a session's frames into bytes; append what each call returns."""

    media_type: str

    def begin(self, sample_rate: int, pre_skip: int) -> bytes:
        """What comes before the audio. `pre_skip`: samples of decoder delay, 0 for PCM."""

    def add(self, frame: AudioFrame) -> bytes:
        """The next frame, in order; some of it may be held back."""

    def finish(self, samples: int) -> bytes:
        """What was held back and what ends the body; `samples` is the audio's length without decoder delay."""


class PcmBody:
    """Bare s16le samples."""

    media_type = "audio/pcm"

    def begin(self, sample_rate: int, pre_skip: int) -> bytes:
        """Nothing comes before the samples."""
        return b""

    def add(self, frame: AudioFrame) -> bytes:
        """The frame's samples."""
        return bytes(2 * frame.count) if frame.flags & FrameFlag.SILENCE_RUN else bytes(frame.payload)

    def finish(self, samples: int) -> bytes:
        """Nothing comes after them."""
        return b""


class WavBody(PcmBody):
    """A WAV stream: the length is unknown when the header goes out, players read to the end."""

    media_type = "audio/wav"

    def begin(self, sample_rate: int, pre_skip: int) -> bytes:
        """The header."""
        return wav_header(sample_rate)


class OggBody:
    """Ogg Opus, a page per packet, so that nothing waits."""

    media_type = "audio/ogg"

    def __init__(self) -> None:
        self._writer: OggOpusWriter | None = None
        self._last: AudioFrame | None = None

    def begin(self, sample_rate: int, pre_skip: int) -> bytes:
        """The header pages."""
        self._writer = OggOpusWriter(sample_rate, pre_skip, serial=secrets.randbits(32))
        return self._writer.headers()

    def add(self, frame: AudioFrame) -> bytes:
        """Pages; the last frame waits for the length."""
        assert self._writer is not None  # `begin` comes first
        if frame.flags & FrameFlag.LAST:
            self._last = frame
            return b""
        packets = unpack_packets(frame.payload)
        return self._writer.write(packets, frame.count // len(packets))

    def finish(self, samples: int) -> bytes:
        """The last page; it says how many samples to play."""
        assert self._writer is not None
        packets = unpack_packets(self._last.payload) if self._last else []
        per_packet = self._last.count // len(packets) if self._last else 1
        return self._writer.finish(packets, per_packet, samples)


BODIES: Final[Mapping[str, Callable[[], Body]]] = {"wav": WavBody, "pcm": PcmBody, "opus": OggBody}
