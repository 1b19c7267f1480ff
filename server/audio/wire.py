"""From the timeline's s16 samples to the payloads of audio frames: PCM cut into pieces, or Opus packets.

A coder belongs to one utterance. Work it does is pure computation; Opus takes about 0.1 ms per packet, so a shell
runs it off the event loop (`cheap` says whether it may stay on it).
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from protocol.frames import Codec, FrameFlag, pack_packets
from protocol.media.opus import OpusEncoder

SILENCE_RUN_MS: Final = 1_000  # the most that one frame of silence stands for


@dataclass(frozen=True, slots=True)
class CodedAudio:
    """The payload of one audio frame; `count` samples, for Opus coded samples."""

    count: int
    payload: bytes | memoryview
    flags: FrameFlag = FrameFlag.NONE


class WireCoder(Protocol):
    """Codes one utterance's timeline."""

    cheap: bool

    def push(self, pcm: bytes) -> list[CodedAudio]:
        """Code s16le samples; an encoder may hold some back."""

    def silence(self, samples: int) -> list[CodedAudio]:
        """Code silence."""

    def finish(self) -> list[CodedAudio]:
        """Code what was held back; the last frame is flagged `LAST`. Nothing where no audio came."""


class PcmCoder:
    """Samples as they are, at most `frame_ms` in a frame. Holds nothing back: what is rendered can be sent."""

    cheap = True

    def __init__(self, sample_rate: int, frame_ms: float) -> None:
        self._frame_bytes = 2 * max(1, round(sample_rate * frame_ms / 1000))
        self._run = sample_rate * SILENCE_RUN_MS // 1000
        self._used = False

    def push(self, pcm: bytes) -> list[CodedAudio]:
        """Views of `pcm`; nothing is copied."""
        view = memoryview(pcm)
        pieces = (view[at : at + self._frame_bytes] for at in range(0, len(view), self._frame_bytes))
        coded = [CodedAudio(len(piece) // 2, piece) for piece in pieces]
        self._used = self._used or bool(coded)
        return coded

    def silence(self, samples: int) -> list[CodedAudio]:
        """Runs without payload."""
        counts = [self._run] * (samples // self._run) + [samples % self._run]
        self._used = self._used or samples > 0
        return [CodedAudio(count, b"", FrameFlag.SILENCE_RUN) for count in counts if count]

    def finish(self) -> list[CodedAudio]:
        """An empty frame that says it was the last."""
        return [CodedAudio(0, b"", FrameFlag.LAST)] if self._used else []


class OpusCoder:
    """One packet of `frame_ms` in each frame."""

    cheap = False

    def __init__(self, sample_rate: int, frame_ms: float, bitrate: int) -> None:
        self._encoder = OpusEncoder(sample_rate, frame_ms, bitrate)
        self._flags = FrameFlag.DECODER_RESET

    def push(self, pcm: bytes) -> list[CodedAudio]:
        """The packets that are full."""
        return self._coded(self._encoder.push(pcm))

    def silence(self, samples: int) -> list[CodedAudio]:
        """Encoded like any other audio."""
        return self.push(bytes(2 * samples))

    def finish(self) -> list[CodedAudio]:
        """The last packets, padded until every sample is through the codec's delay."""
        coded = self._coded(self._encoder.finish())
        if coded:
            last = coded[-1]
            coded[-1] = CodedAudio(last.count, last.payload, last.flags | FrameFlag.LAST)
        return coded

    def _coded(self, packets: list[bytes]) -> list[CodedAudio]:
        coded = []
        for packet in packets:
            coded.append(CodedAudio(self._encoder.samples_per_packet, pack_packets([packet]), self._flags))
            self._flags = FrameFlag.NONE
        return coded


def make_coder(codec: Codec, sample_rate: int, frame_ms: float, bitrate: int) -> WireCoder:
    """The coder for one utterance. Raises OpusUnavailableError where Opus is asked for and cannot be loaded."""
    if codec is Codec.OPUS:
        return OpusCoder(sample_rate, frame_ms, bitrate)
    return PcmCoder(sample_rate, frame_ms)


@lru_cache(maxsize=8)
def opus_pre_skip(sample_rate: int) -> int:
    """The codec's delay in samples at this rate, as `OpusEncoder` reports it."""
    return OpusEncoder(sample_rate, 20, 32_000).pre_skip
