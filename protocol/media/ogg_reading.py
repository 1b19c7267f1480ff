"""Ogg Opus files as `OggOpusWriter` makes them, read back page by page; a file may end anywhere, as a killed program
left it. No reader for the files of others: pages must follow each other, and packets end on their page.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from protocol.media.ogg import GRANULE_RATE, ogg_crc

_PAGE_HEADER: Final = struct.Struct("<4sBBqIIIB")
_CHECKSUM: Final = slice(22, 26)
_SEGMENT_BYTES: Final = 255
_HEAD: Final = struct.Struct("<8sBBHIhB")
_HEADER_PAGES: Final = 2
# Samples at 48 kHz in a frame, by the configuration in a packet's first byte (RFC 6716, section 3.1, table 2).
_SILK: Final = (480, 960, 1920, 2880)
_HYBRID: Final = (480, 960)
_CELT: Final = (120, 240, 480, 960)
_FRAME_SAMPLES: Final = _SILK * 3 + _HYBRID * 2 + _CELT * 4


@dataclass(frozen=True, slots=True)
class Page:
    """One page, whole and undamaged. `granule`: end of its last packet at 48 kHz, the codec's delay included."""

    offset: int
    sequence: int
    serial: int
    granule: int
    packets: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class OpusHead:
    """`sample_rate` of what was encoded; `pre_skip` in samples at that rate."""

    sample_rate: int
    pre_skip: int


def read_pages(file: BinaryIO) -> Iterator[Page]:
    """The pages from the start of a seekable file on, up to the first that is cut short or damaged."""
    file.seek(0)
    offset = 0
    while (header := file.read(_PAGE_HEADER.size)) and len(header) == _PAGE_HEADER.size:
        magic, _, _, granule, serial, sequence, crc, count = _PAGE_HEADER.unpack(header)
        if magic != b"OggS":
            return
        lacing = file.read(count)
        body = file.read(sum(lacing))
        data = bytearray(header + lacing + body)
        data[_CHECKSUM] = bytes(4)
        if len(lacing) < count or len(body) < sum(lacing) or ogg_crc(data) != crc:
            return
        packets, start, end = [], 0, 0
        for length in lacing:
            end += length
            if length < _SEGMENT_BYTES:
                packets.append(body[start:end])
                start = end
        yield Page(offset, sequence, serial, granule, tuple(packets))
        offset += len(data)


def read_head(pages: Iterator[Page]) -> OpusHead | None:
    """What the two header pages say; None: they are not those of a mono stream from here."""
    first, second = next(pages, None), next(pages, None)
    if first is None or second is None or len(first.packets) != 1 or len(first.packets[0]) != _HEAD.size:
        return None
    magic, _, channels, pre_skip, sample_rate, _, _ = _HEAD.unpack(first.packets[0])
    if magic != b"OpusHead" or channels != 1 or not sample_rate or GRANULE_RATE % sample_rate:
        return None
    if (first.sequence, second.sequence) != tuple(range(_HEADER_PAGES)) or second.serial != first.serial:
        return None
    return OpusHead(sample_rate, pre_skip * sample_rate // GRANULE_RATE)


def packet_samples(packet: bytes, sample_rate: int) -> int:
    """Samples in a packet, by its first bytes (RFC 6716, section 3.1). Raises ValueError for an empty one."""
    if not packet:
        raise ValueError("an Opus packet cannot be empty")
    code = packet[0] & 3
    if code == 3 and len(packet) < 2:
        raise ValueError("an Opus packet of many frames says how many")
    frames = (1, 2, 2, packet[1] & 63 if code == 3 else 0)[code]
    return _FRAME_SAMPLES[packet[0] >> 3] * frames * sample_rate // GRANULE_RATE
