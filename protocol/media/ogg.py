"""Ogg Opus files (RFC 3533, RFC 7845), written page by page as the packets come."""

import binascii
import struct
from collections.abc import Sequence
from typing import Final

GRANULE_RATE: Final = 48_000  # Hz; positions count samples at this rate, whatever the session's (RFC 7845, section 4)

_CONTINUED_NEVER: Final = 0x00
_FIRST_PAGE: Final = 0x02
_LAST_PAGE: Final = 0x04
_MAX_SEGMENTS: Final = 255
_SEGMENT_BYTES: Final = 255
_NO_GRANULE: Final = -1  # "no packet ends on this page" (RFC 3533, section 6)
_PAGE_HEADER: Final = struct.Struct("<4sBBqIIIB")
_CHECKSUM_OFFSET: Final = 22
_VENDOR: Final = b"cosystream"

_BIT_REVERSED: Final = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def ogg_crc(data: bytes | bytearray) -> int:
    """Ogg's checksum: CRC-32 with polynomial 0x04C11DB7, most significant bit first, starting at 0, not inverted.

    `binascii.crc32` has the same polynomial, least significant bit first and inverted at both ends. Mirroring the bits
    of each byte going in and of the result coming out makes one of the other, far faster than any loop in Python.
    """
    mirrored = binascii.crc32(data.translate(_BIT_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int.from_bytes(mirrored.to_bytes(4, "big").translate(_BIT_REVERSED), "little")


class OggOpusWriter:
    """Turns one mono Opus stream into the bytes of an Ogg file; append what each call returns.

    `sample_rate` and `pre_skip` (samples at that rate) are the encoder's, `serial` any 32-bit number for the stream.
    A page holds at most `packets_per_page` packets: fewer cost 27 bytes or more each time, more delay the listener.
    """

    def __init__(self, sample_rate: int, pre_skip: int, serial: int, packets_per_page: int = 1) -> None:
        if sample_rate <= 0 or GRANULE_RATE % sample_rate:
            raise ValueError(f"sample rate {sample_rate} does not divide {GRANULE_RATE}")
        if packets_per_page < 1:
            raise ValueError("packets_per_page must be at least 1")
        self._scale = GRANULE_RATE // sample_rate
        self._sample_rate = sample_rate
        self._pre_skip = pre_skip * self._scale
        self._serial = serial & 0xFFFFFFFF
        self._packets_per_page = packets_per_page
        self._sequence = 0
        self._granule = 0  # end of the last packet taken
        self._given = 0  # end of the last packet on a page
        self._lacing = bytearray()
        self._body: list[bytes] = []
        self._finished = False

    @property
    def samples_given(self) -> int:
        """Coded samples (session rate) on the pages given out; after `finish` without the last packet's padding."""
        return self._given // self._scale

    def go_on(self, sequence: int, coded_samples: int) -> None:
        """The stream has its header pages and others already: the next page's number, and where it begins."""
        if self._sequence:
            raise ValueError("a stream goes on before anything else is written")
        self._sequence = sequence
        self._granule = self._given = coded_samples * self._scale

    def headers(self) -> bytes:
        """The two header pages (RFC 7845, section 5). First of all, once."""
        if self._sequence:
            raise ValueError("headers come first, and once")
        head = struct.pack("<8sBBHIhB", b"OpusHead", 1, 1, self._pre_skip, self._sample_rate, 0, 0)
        tags = struct.pack("<8sI", b"OpusTags", len(_VENDOR)) + _VENDOR + struct.pack("<I", 0)
        pages = b""
        for packet, flags in ((head, _FIRST_PAGE), (tags, _CONTINUED_NEVER)):
            self._add(packet)
            pages += self._page(flags)
        return pages

    def write(self, packets: Sequence[bytes], samples_per_packet: int) -> bytes:
        """Take packets of `samples_per_packet` samples (session rate); return the pages that are full."""
        self._expect_open()
        pages = []
        for packet in packets:
            if self._body and len(self._lacing) + len(packet) // _SEGMENT_BYTES + 1 > _MAX_SEGMENTS:
                pages.append(self._page())
            self._add(packet)
            self._granule += samples_per_packet * self._scale
            if len(self._body) >= self._packets_per_page:
                pages.append(self._page())
        return b"".join(pages)

    def flush(self) -> bytes:
        """A page of what waits for a full one; nothing where nothing waits."""
        self._expect_open()
        return self._page() if self._body else b""

    def finish(self, packets: Sequence[bytes], samples_per_packet: int, samples: int) -> bytes:
        """The encoder's last packets and the end of the stream, which is `samples` timeline samples long.

        The last page's position says how many samples to play (RFC 7845, section 4.4), so the last packet must be given
        here and not to `write`; an encoder's `finish` always gives one. An empty stream ends with an empty page.
        """
        pages = self.write(packets[:-1], samples_per_packet)
        if packets:
            if len(self._lacing) + len(packets[-1]) // _SEGMENT_BYTES + 1 > _MAX_SEGMENTS:
                pages += self._page()
            self._add(packets[-1])
            self._granule = self._pre_skip + samples * self._scale
        elif samples:
            raise ValueError("the last packet of a stream that is not empty goes to finish()")
        pages += self._page(_LAST_PAGE)
        self._finished = True
        return pages

    def _expect_open(self) -> None:
        if self._finished:
            raise ValueError("the stream is finished")
        if not self._sequence:
            raise ValueError("headers come first")

    def _add(self, packet: bytes) -> None:
        if len(packet) // _SEGMENT_BYTES >= _MAX_SEGMENTS:
            raise ValueError(f"a packet of {len(packet)} bytes does not fit on one page")
        whole, rest = divmod(len(packet), _SEGMENT_BYTES)
        self._lacing += b"\xff" * whole + bytes((rest,))
        self._body.append(packet)

    def _page(self, flags: int = _CONTINUED_NEVER) -> bytes:
        """Everything taken since the last page, as a page."""
        granule = self._granule if self._body else _NO_GRANULE
        self._given = self._granule
        page = bytearray(
            _PAGE_HEADER.pack(
                b"OggS", 0, flags, granule, self._serial, self._sequence & 0xFFFFFFFF, 0, len(self._lacing)
            )
        )
        page += self._lacing
        page += b"".join(self._body)
        struct.pack_into("<I", page, _CHECKSUM_OFFSET, ogg_crc(page))
        self._sequence += 1
        self._lacing.clear()
        self._body.clear()
        return bytes(page)
