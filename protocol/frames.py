"""The binary audio frame: a fixed header, then samples or packets.

Header, 28 bytes, big-endian: u8 version, u8 codec, u16 flags, u32 generation, u32 utterance, u64 first sample, u32
sample count, u32 CRC-32 (zlib) of the payload. For PCM the payload is `count` s16le samples. For Opus it is packets,
each after its length as u16 big-endian, and samples are *coded* samples: packet k of an utterance covers
[k*N, (k+1)*N). The 28 bytes keep s16 samples aligned in a receiver's buffer.
"""

import struct
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import Final
from zlib import crc32

from protocol.errors import ErrorCode, ProtocolError

VERSION: Final = 1
HEADER: Final = struct.Struct("!BBHIIQII")
MAX_PACKET_BYTES: Final = 0xFFFF


class Codec(IntEnum):
    """How the payload is coded."""

    PCM = 1
    OPUS = 2


class FrameFlag(IntFlag):
    """Facts about one frame. Unknown flags are ignored."""

    NONE = 0
    LAST = 1  # the utterance's last audio
    DECODER_RESET = 2  # start a new Opus decoder before this frame
    SILENCE_RUN = 4  # PCM only: `count` zero samples, no payload


@dataclass(frozen=True, slots=True)
class AudioFrame:
    """A stretch of one utterance's timeline, `[first_sample, first_sample + count)`.

    `crc` is computed once, when the frame is made, and travels with it; headers are packed at send time.
    """

    codec: Codec
    utterance: int
    first_sample: int
    count: int
    payload: bytes | memoryview = field(repr=False)
    flags: FrameFlag = FrameFlag.NONE
    generation: int = 1
    crc: int = -1

    def __post_init__(self) -> None:
        if self.crc < 0:
            object.__setattr__(self, "crc", crc32(self.payload))

    def encode(self, generation: int) -> bytes:
        """The frame as it goes on the wire."""
        head = HEADER.pack(
            VERSION, self.codec, self.flags, generation, self.utterance, self.first_sample, self.count, self.crc
        )
        return b"".join((head, self.payload))

    @property
    def end_sample(self) -> int:
        """The sample after the last one."""
        return self.first_sample + self.count


def decode_frame(data: bytes) -> AudioFrame:
    """A frame from the wire. Every length and the CRC are checked. Raises ProtocolError."""

    def bad(field: str, text: str) -> ProtocolError:
        return ProtocolError(ErrorCode.BAD_MESSAGE, f"audio frame: {text}", f"frame.{field}")

    if len(data) < HEADER.size:
        raise bad("header", f"{len(data)} bytes are shorter than the header of {HEADER.size}")
    version, codec, flags, generation, utterance, first, count, crc = HEADER.unpack_from(data)
    if version != VERSION:
        raise bad("version", f"version {version} is not {VERSION}")
    if codec not in (Codec.PCM, Codec.OPUS):
        raise bad("codec", f"codec {codec} is not 1 (PCM) or 2 (Opus)")
    payload = memoryview(data)[HEADER.size :]
    if crc32(payload) != crc:
        raise bad("crc", "the payload does not match its CRC-32")
    known = FrameFlag(flags & 0x7)
    if known & FrameFlag.SILENCE_RUN:
        if codec != Codec.PCM or len(payload):
            raise bad("payload", "a silence run is PCM without payload")
    elif codec == Codec.PCM:
        if len(payload) != 2 * count:
            raise bad("count", f"{count} samples need {2 * count} payload bytes, not {len(payload)}")
    else:
        unpack_packets(payload)
    return AudioFrame(Codec(codec), utterance, first, count, payload, known, generation, crc)


def pack_packets(packets: list[bytes]) -> bytes:
    """Opus packets as one payload. Raises ValueError for an empty packet or one of more than `MAX_PACKET_BYTES`."""
    parts: list[bytes] = []
    for packet in packets:
        if not 1 <= len(packet) <= MAX_PACKET_BYTES:
            raise ValueError(f"a packet has 1 to {MAX_PACKET_BYTES} bytes, not {len(packet)}")
        parts += (len(packet).to_bytes(2, "big"), packet)
    return b"".join(parts)


def unpack_packets(payload: bytes | memoryview) -> list[bytes]:
    """The Opus packets of a payload. Raises ProtocolError when a length lies."""
    packets: list[bytes] = []
    at, end = 0, len(payload)
    while at < end:
        size = int.from_bytes(payload[at : at + 2], "big")
        if at + 2 + size > end or size == 0:
            raise ProtocolError(
                ErrorCode.BAD_MESSAGE, f"audio frame: packet at byte {at} is cut short", "frame.payload"
            )
        packets.append(bytes(payload[at + 2 : at + 2 + size]))
        at += 2 + size
    return packets


assert HEADER.size == 28
