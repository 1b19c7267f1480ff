"""From the timeline's s16 samples to the payloads of audio frames: PCM cut into pieces, or Opus packets.

A coder belongs to one utterance. Work it does is pure computation; Opus takes about 0.1 ms per packet, so a shell
runs it off the event loop (`cheap` says whether it may stay on it).
"""

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from protocol.frames import Codec, FrameFlag, pack_packets
from protocol.limits import OPUS_PREROLL_MS, SAMPLE_RATES_OPUS
from protocol.media.opus import OpusEncoder, samples_per_packet

SILENCE_RUN_MS: Final = 1_000  # the most that one frame of silence stands for


@dataclass(frozen=True, slots=True)
class CodedAudio:
    """The payload of one audio frame; `count` samples, for Opus coded samples. `first_sample` None: it follows the one
    before.
    """

    count: int
    payload: bytes | memoryview
    flags: FrameFlag = FrameFlag.NONE
    codec: Codec = Codec.PCM
    first_sample: int | None = None


class WireCoder(Protocol):
    """Codes one utterance's timeline."""

    @property
    def cheap(self) -> bool:
        """Whether coding takes no time worth mentioning."""

    def adapt(self, bitrate: int, *, opus: bool) -> None:
        """What the link asks for from here on: bit/s of Opus, and Opus instead of PCM where there is a choice."""

    def push(self, pcm: bytes | memoryview) -> list[CodedAudio]:
        """Code s16le samples; an encoder may hold some back."""

    def silence(self, samples: int) -> list[CodedAudio]:
        """Code silence."""

    def finish(self) -> list[CodedAudio]:
        """Code what was held back; the last frame is flagged `LAST`. Nothing where no audio came."""


class PcmCoder:
    """Samples as they are, at most `frame_ms` in a frame. Holds nothing back: what is rendered can be sent."""

    cheap = True

    def __init__(self, sample_rate: int, frame_ms: float, *, start: int = 0) -> None:
        self._frame_bytes = 2 * max(1, round(sample_rate * frame_ms / 1000))
        self._run = sample_rate * SILENCE_RUN_MS // 1000
        self._used = start > 0

    def adapt(self, bitrate: int, *, opus: bool) -> None:
        """There is no choice."""

    def push(self, pcm: bytes | memoryview) -> list[CodedAudio]:
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
    """One packet of `frame_ms` in each frame. `start`: the coded sample that the first packet begins with."""

    cheap = False

    def __init__(self, sample_rate: int, frame_ms: float, bitrate: int, *, start: int = 0) -> None:
        self._encoder = OpusEncoder(sample_rate, frame_ms, bitrate)
        self._bitrate = bitrate
        self._flags = FrameFlag.DECODER_RESET
        self._first: int | None = start

    @property
    def pre_skip(self) -> int:
        """The codec's delay in samples."""
        return self._encoder.pre_skip

    def adapt(self, bitrate: int, *, opus: bool) -> None:
        """Applies to the next packet."""
        if bitrate != self._bitrate:
            self._bitrate = bitrate
            self._encoder.set_bitrate(bitrate)

    def push(self, pcm: bytes | memoryview) -> list[CodedAudio]:
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
            coded[-1] = CodedAudio(last.count, last.payload, last.flags | FrameFlag.LAST, last.codec, last.first_sample)
        return coded

    def _coded(self, packets: list[bytes]) -> list[CodedAudio]:
        coded = []
        for packet in packets:
            count = self._encoder.samples_per_packet
            coded.append(CodedAudio(count, pack_packets([packet]), self._flags, Codec.OPUS, self._first))
            self._flags, self._first = FrameFlag.NONE, None
        return coded


class AutoCoder:
    """PCM until the link asks for Opus, then Opus to the end.

    The new encoder starts up to 80 ms and a packet before the seam, so that a decoder is warm when it gets there. Those
    packets go in one frame, which ends beyond the seam: positions grow all the time.
    """

    def __init__(self, sample_rate: int, pcm_ms: float, opus_ms: float, bitrate: int, *, start: int = 0) -> None:
        self._pcm = PcmCoder(sample_rate, pcm_ms, start=start)
        self._rate = sample_rate
        self._opus_ms = opus_ms
        self._per_packet = samples_per_packet(sample_rate, opus_ms)
        self._bitrate = bitrate
        self._opus: OpusCoder | None = None
        self._seam: list[CodedAudio] = []  # packets until the seam is covered
        self._covers = 0  # coded samples that the first frame must reach
        self._at = start  # timeline samples so far
        self._kept = sample_rate * OPUS_PREROLL_MS // 1000 + self._per_packet
        self._tail: deque[bytes] = deque()  # the newest samples, at least `_kept` of them
        self._tail_samples = 0

    @property
    def cheap(self) -> bool:
        """As long as it is PCM."""
        return self._opus is None

    def adapt(self, bitrate: int, *, opus: bool) -> None:
        """Falls to Opus once, for good."""
        self._bitrate = bitrate
        if self._opus is not None:
            self._opus.adapt(bitrate, opus=opus)
        elif opus:
            self._fall()

    def _fall(self) -> None:
        tail = b"".join(self._tail)
        known = self._at - len(tail) // 2
        first = max(0, self._at - self._kept + self._per_packet, known)
        first = -(-first // self._per_packet) * self._per_packet
        first = min(first, self._at // self._per_packet * self._per_packet)
        if first < known or 0 < self._at == first:
            return  # nothing is known that could warm a decoder up: the next audio may fall
        self._opus = OpusCoder(self._rate, self._opus_ms, self._bitrate, start=first)
        self._covers = self._at + self._opus.pre_skip if self._at else 0
        self._seam = self._opus.push(tail[2 * (first - known) :])
        self._tail.clear()

    def push(self, pcm: bytes | memoryview) -> list[CodedAudio]:
        """PCM, or packets."""
        if self._opus is not None:
            return self._after_seam(self._opus.push(pcm))
        self._remember(bytes(pcm))
        return self._pcm.push(pcm)

    def silence(self, samples: int) -> list[CodedAudio]:
        """Runs, or packets."""
        if self._opus is not None:
            return self._after_seam(self._opus.silence(samples))
        self._remember(bytes(2 * samples))
        return self._pcm.silence(samples)

    def finish(self) -> list[CodedAudio]:
        """The end."""
        return self._pcm.finish() if self._opus is None else self._after_seam(self._opus.finish(), last=True)

    def _remember(self, pcm: bytes) -> None:
        self._at += len(pcm) // 2
        self._tail.append(pcm)
        self._tail_samples += len(pcm) // 2
        while self._tail_samples - len(self._tail[0]) // 2 >= self._kept:
            self._tail_samples -= len(self._tail.popleft()) // 2

    def _after_seam(self, coded: list[CodedAudio], *, last: bool = False) -> list[CodedAudio]:
        if not self._covers:
            return coded
        self._seam += coded
        if not self._seam:
            return []
        first = self._seam[0].first_sample or 0
        end = first + sum(each.count for each in self._seam)
        if end <= self._covers and not last:
            return []
        flags = self._seam[0].flags | self._seam[-1].flags
        payload = b"".join(each.payload for each in self._seam)
        self._seam, self._covers = [], 0
        return [CodedAudio(end - first, payload, flags, Codec.OPUS, first)]


@dataclass(frozen=True, slots=True)
class CoderSpec:
    """What a session's coders are made from. `auto`: PCM that may fall to Opus packets of `opus_ms`."""

    codec: Codec
    sample_rate: int
    frame_ms: float
    bitrate: int
    opus_ms: float = 20.0
    auto: bool = False

    def make(self, *, start: int = 0, opus: bool = False) -> WireCoder:
        """The coder for one utterance, from sample `start` on, as frames count. `opus`: it has fallen already.

        Raises OpusUnavailableError where Opus is asked for and cannot be loaded.
        """
        if self.codec is Codec.OPUS or opus:
            frame_ms = self.frame_ms if self.codec is Codec.OPUS else self.opus_ms
            return OpusCoder(self.sample_rate, frame_ms, self.bitrate, start=start)
        if self.auto and self.sample_rate in SAMPLE_RATES_OPUS:
            return AutoCoder(self.sample_rate, self.frame_ms, self.opus_ms, self.bitrate, start=start)
        return PcmCoder(self.sample_rate, self.frame_ms, start=start)

    @property
    def samples_per_packet(self) -> int:
        """Of Opus."""
        return samples_per_packet(self.sample_rate, self.frame_ms if self.codec is Codec.OPUS else self.opus_ms)


@lru_cache(maxsize=8)
def opus_pre_skip(sample_rate: int) -> int:
    """The codec's delay in samples at this rate, as `OpusEncoder` reports it."""
    return OpusEncoder(sample_rate, 20, 32_000).pre_skip
