"""Stand-ins for what speech costs: an engine with measured speeds whose samples are noise, and a coder like Opus.

Every sample depends on its text and its place, so audio that is shifted, doubled or missing never passes for right.
"""

import random
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from zlib import crc32

from protocol.frames import Codec, FrameFlag, pack_packets
from protocol.media.opus import packet_count
from server.audio.wire import CodedAudio, opus_pre_skip
from server.engines.base import WordTiming
from server.engines.rendering import RenderedChunk, SegmentRequest

NOISE_SAMPLES: Final = 1 << 20
PACKET_HEAD: Final = 8  # index and checksum, what a stand-in packet cannot do without


@lru_cache(maxsize=1)
def _noise() -> bytes:
    return random.Random(1).randbytes(4 * NOISE_SAMPLES)


@dataclass(frozen=True, slots=True)
class EngineModel:
    """How fast speech is made. The figures are those of the embedded Chinese voice on one core."""

    samples_per_character: int = 4_800  # 0.2 s at 24 kHz
    first_chunk_s: float = 0.045
    chunk_s: float = 0.3
    stream_factor: float = 0.10  # computing time over sound, chunk by chunk
    block_factor: float = 0.05  # a segment as a whole

    def render(self, request: SegmentRequest) -> RenderedChunk:
        """A segment's samples; words are characters."""
        text, per = request.cut.text, self.samples_per_character
        at = 2 * (crc32(f"{request.id} {request.seed} {text}".encode()) % NOISE_SAMPLES)
        words = tuple(
            WordTiming(ch, request.cut.start + i, request.cut.start + i + 1, i * per, (i + 1) * per)
            for i, ch in enumerate(text)
        )
        return RenderedChunk(_noise()[at : at + 2 * per * min(len(text), NOISE_SAMPLES // per)], words)

    def pieces(self, request: SegmentRequest) -> list[tuple[float, RenderedChunk]]:
        """The segment in the chunks of its plan, each with the seconds it takes to compute."""
        whole = self.render(request)
        if request.plan.mode == "block":
            return [(self.first_chunk_s + self.block_factor * whole.samples / request.sample_rate, whole)]
        size = 2 * round(self.chunk_s * request.sample_rate)
        pieces = []
        for at in range(0, len(whole.pcm), size):
            chunk = RenderedChunk(whole.pcm[at : at + size], () if at else whole.words)
            seconds = self.stream_factor * chunk.samples / request.sample_rate
            pieces.append((self.first_chunk_s if at == 0 else seconds, chunk))
        return pieces


class StandInEncoder:
    """Packets of the size that Opus would need, a hundred times faster: place and checksum of what they cover."""

    cheap = True

    def __init__(self, sample_rate: int, frame_ms: float, bitrate: int, *, start: int = 0) -> None:
        self.pre_skip = opus_pre_skip(sample_rate)
        self.samples_per_packet = round(sample_rate * frame_ms / 1000)
        self._frame_ms = frame_ms
        self._bitrate = bitrate
        self._pending = bytearray()
        self._index = start // self.samples_per_packet
        self._samples = start
        self._flags = FrameFlag.DECODER_RESET
        self._first: int | None = start

    def adapt(self, bitrate: int, *, opus: bool) -> None:
        """Applies to the next packet."""
        self._bitrate = bitrate

    def push(self, pcm: bytes | memoryview) -> list[CodedAudio]:
        """The packets that are full."""
        self._samples += len(pcm) // 2
        self._pending += pcm
        size = 2 * self.samples_per_packet
        coded = []
        while len(self._pending) >= size:
            coded.append(self._packet(bytes(self._pending[:size])))
            del self._pending[:size]
        return coded

    def silence(self, samples: int) -> list[CodedAudio]:
        """Encoded like any other audio."""
        return self.push(bytes(2 * samples))

    def finish(self) -> list[CodedAudio]:
        """The last packets, padded until every sample is through the codec's delay."""
        count = packet_count(self._samples, self.pre_skip, self.samples_per_packet)
        coded = []
        while self._index < count:
            size = 2 * self.samples_per_packet
            coded.append(self._packet(bytes(self._pending[:size]).ljust(size, b"\0")))
            del self._pending[:size]
        if coded:
            last = coded[-1]
            coded[-1] = CodedAudio(last.count, last.payload, last.flags | FrameFlag.LAST, last.codec, last.first_sample)
        return coded

    def _packet(self, pcm: bytes) -> CodedAudio:
        size = max(PACKET_HEAD, round(self._bitrate * self._frame_ms / 8_000))
        packet = self._index.to_bytes(4, "big") + crc32(pcm).to_bytes(4, "big")
        self._index += 1
        first, flags = self._first, self._flags
        self._first, self._flags = None, FrameFlag.NONE
        return CodedAudio(
            self.samples_per_packet, pack_packets([packet.ljust(size, b"\xff")]), flags, Codec.OPUS, first
        )


def packet_index(packet: bytes) -> int:
    """Which packet of its utterance a stand-in packet is."""
    return int.from_bytes(packet[:4], "big")
