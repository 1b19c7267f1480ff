"""FLAC frames as `protocol.media.flac` makes them, read back: where a file goes on, and what its last frame holds."""

from dataclasses import dataclass

import numpy as np

from protocol.media.flac import (
    BITS,
    BLOCK,
    BLOCK_CODE,
    CONSTANT,
    FIXED,
    FIXED_PREDICTORS,
    LPC,
    SYNC,
    VERBATIM,
    crc16,
    frame_header,
)


@dataclass(frozen=True, slots=True)
class FrameHead:
    """What a frame says of itself; `size` in bytes, of the head alone."""

    number: int
    count: int
    size: int


def read_frame_head(data: bytes, sample_rate: int) -> FrameHead | None:
    """The head of a frame that `encode_frame` made, at the start of `data`; None: that is none."""
    if len(data) < 6 or data[:2] != SYNC:
        return None
    first = data[4]
    if 0x80 <= first < 0xC0 or first == 0xFF:
        return None  # no number begins so: these bytes are samples that look like a frame
    more = 0 if first < 0x80 else 7 - (first ^ 0xFF).bit_length()  # bytes that follow the first one
    number = first if not more else first & (0x3F >> more)
    for byte in data[5 : 5 + more]:
        number = number << 6 | byte & 0x3F
    at = 5 + more
    count = BLOCK if data[2] >> 4 == BLOCK_CODE else int.from_bytes(data[at : at + 2], "big") + 1
    head = frame_header(number, count, sample_rate)
    return FrameHead(number, count, len(head)) if 0 < count <= BLOCK and data[: len(head)] == head else None


def decode_frame(frame: bytes, head: FrameHead) -> tuple[bytes, int]:
    """The s16le samples of a frame that begins with `head`, and its size in bytes; others may follow it.

    Raises ValueError where it is cut short or damaged.
    """
    text = "".join(map(str, np.unpackbits(np.frombuffer(frame, np.uint8, offset=head.size)).tolist()))
    try:
        samples, bits = _decode_subframe(_BitReader(text), head.count)
    except (IndexError, ValueError) as error:
        raise ValueError("a frame is cut short") from error
    end = head.size + -(-bits // 8) + 2
    if len(frame) < end or crc16(frame[:end]):
        raise ValueError("a frame is cut short, or damaged")
    return np.array(samples, "<i2").tobytes(), end


class _BitReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0

    def number(self, width: int) -> int:
        self.at += width
        return int(self._text[self.at - width : self.at], 2) if width else 0

    def signed(self, width: int) -> int:
        value = self.number(width)
        return value - (1 << width) if value >> (width - 1) else value

    def rice(self, parameter: int) -> int:
        one = self._text.index("1", self.at)
        quotient, self.at = one - self.at, one + 1
        folded = quotient << parameter | self.number(parameter)
        return -(folded + 1) // 2 if folded & 1 else folded // 2


def _decode_subframe(reader: _BitReader, count: int) -> tuple[list[int], int]:
    kind = reader.number(8) >> 1
    if kind == CONSTANT:
        return [reader.signed(BITS)] * count, reader.at
    if kind == VERBATIM:
        return [reader.signed(BITS) for _ in range(count)], reader.at
    order = kind - LPC + 1 if kind >= LPC else kind - FIXED
    if not 0 <= order <= (32 if kind >= LPC else 4):
        raise ValueError("no such subframe")
    samples = [reader.signed(BITS) for _ in range(order)]
    coefficients, shift = FIXED_PREDICTORS[order] if kind < LPC else (), 0
    if kind >= LPC:
        width, shift = reader.number(4) + 1, reader.number(5)
        coefficients = tuple(reader.signed(width) for _ in range(order))
    reader.number(2)
    log2 = reader.number(4)
    for partition in range(1 << log2):
        parameter = reader.number(4)
        for _ in range((count >> log2) - (order if partition == 0 else 0)):
            before = zip(coefficients, reversed(samples[-order:] if order else []), strict=True)
            samples.append((sum(c * s for c, s in before) >> shift) + reader.rice(parameter))
    return samples, reader.at
