"""FLAC, made here: frames that stand alone, so that a file ends, and goes on, at any of them."""

import os
from typing import BinaryIO, Final

from client.items import Audio
from client.sinks.base import CannotContinue
from protocol.media.flac import (
    BLOCK,
    HEADER_BYTES,
    SYNC,
    FlacEncoder,
    crc16,
    frame_start,
    read_stream_header,
    stream_header,
)
from protocol.media.flac_reading import FrameHead, decode_frame, read_frame_head

_READ_BYTES: Final = 1 << 20
_FRAME_BYTES: Final = 2 * BLOCK + 64  # more than any frame has
_TAIL_BYTES: Final = 4 * _FRAME_BYTES


class FlacEncoding:
    """The header gets the length while the file grows, and the digest in the end (not where it was gone on with). In a
    pipe both stay unknown.
    """

    def __init__(self) -> None:
        self._rate = 0
        self._encoder: FlacEncoder | None = None
        self._flushed = 0  # samples with those of a provisional frame
        self._md5 = bytes(16)

    @property
    def replaces_flushed(self) -> bool:
        """Only the last frame of a file may be short: until there are more samples, a short one ends it."""
        return True

    @property
    def samples(self) -> int:
        """What is in frames."""
        return max(self._flushed, self._encoder.samples) if self._encoder is not None else 0

    def head(self, sample_rate: int, pre_skip: int) -> bytes:
        """The header, of unknown length."""
        self._rate = sample_rate
        self._encoder = FlacEncoder(sample_rate)
        return stream_header(sample_rate)

    def resume(self, file: BinaryIO, sample_rate: int, pre_skip: int, at_sample: int) -> tuple[int, bytes]:
        """Cuts before the frame in which that sample lies, and takes the frame's first part up again."""
        rate = _rate_of(file)
        if rate != sample_rate:
            raise CannotContinue(f"has {rate} samples a second, not {sample_rate}")
        number = (at_sample - 1) // BLOCK  # the frame in which the last sample that stays is
        needed = at_sample - number * BLOCK
        found = _find(file, number, rate)
        if found is None:
            raise CannotContinue(f"holds {kept(file)[1]} samples, not {at_sample}")
        offset, data = found
        head = read_frame_head(data, rate)
        assert head is not None
        try:
            pcm, size = decode_frame(data[:_FRAME_BYTES], head)
        except ValueError as error:
            raise CannotContinue(f"is damaged at sample {number * BLOCK}: {error}") from error
        if head.count < needed:
            raise CannotContinue(f"holds {number * BLOCK + head.count} samples, not {at_sample}")
        self._rate = rate
        if needed == BLOCK:
            self._encoder = FlacEncoder(rate, number + 1)
            return offset + size, b""
        self._encoder = FlacEncoder(rate, number)
        self._encoder.push(pcm[: 2 * needed])
        return offset, self.flush()

    def body(self, audio: Audio) -> bytes:
        """The frames that are full."""
        assert self._encoder is not None
        return self._encoder.push(audio.pcm)

    def flush(self) -> bytes:
        """A short frame."""
        assert self._encoder is not None
        data = self._encoder.last_frame()
        self._flushed = self._encoder.samples + self._encoder.waiting
        return data

    def tail(self, samples: int | None) -> bytes:
        """The last frame."""
        assert self._encoder is not None
        data = self._encoder.finish()
        self._md5 = self._encoder.md5
        return data

    def header(self) -> bytes:
        """With the true length."""
        return stream_header(self._rate, self.samples, self._md5)


def kept(file: BinaryIO) -> tuple[int, int]:
    """The sample rate, and how many samples whole frames hold. Raises CannotContinue."""
    rate = _rate_of(file)
    size = file.seek(0, os.SEEK_END)
    begin = max(HEADER_BYTES, size - _TAIL_BYTES)
    file.seek(begin)
    tail = file.read(_TAIL_BYTES)
    heads: list[tuple[int, FrameHead]] = []
    at = -1
    while (at := tail.find(SYNC, at + 1)) >= 0:
        if (head := read_frame_head(tail[at : at + 16], rate)) is not None:
            heads.append((at, head))
    ends = [at for at, _ in heads]
    for at, head in reversed(heads):
        if any(end > at and not crc16(tail[at:end]) for end in ends) or _is_whole(tail[at:], head):
            return rate, head.number * BLOCK + head.count
    return rate, 0


def _is_whole(data: bytes, head: FrameHead) -> bool:
    """Whether the last frame is; a few bytes of the next one may follow it."""
    try:
        decode_frame(data, head)
    except ValueError:
        return False
    return True


def _rate_of(file: BinaryIO) -> int:
    file.seek(0)
    rate = read_stream_header(file.read(HEADER_BYTES))
    if rate is None:
        raise CannotContinue("is no FLAC file that this program began")
    return rate


def _find(file: BinaryIO, number: int, rate: int) -> tuple[int, bytes] | None:
    """Where a frame begins, and the bytes from there on, at least as many as a frame has. Its head is like no other."""
    starts = [frame_start(number, rate, is_full=is_full) for is_full in (True, False)]
    file.seek(HEADER_BYTES)
    offset, data = HEADER_BYTES, b""
    while True:
        more = file.read(_READ_BYTES)
        data += more
        for start in starts:
            at = data.find(start)
            while at >= 0 and (len(data) - at >= _FRAME_BYTES or not more):
                if read_frame_head(data[at : at + 16], rate) is not None:
                    return offset + at, data[at:]
                at = data.find(start, at + 1)
        if not more:
            return None
        drop = max(0, len(data) - _FRAME_BYTES)
        offset, data = offset + drop, data[drop:]
