"""FLAC for mono 16-bit speech (RFC 9639): frames that stand alone, so that a file may end or go on at any of them.

Only what such a file needs: one block size, linear prediction or the fixed predictors, Rice codes. Compared with the
reference encoder at its default the files are a few percent larger; every decoder reads them.
"""

import hashlib
from functools import cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Samples: TypeAlias = NDArray[np.int64]

BLOCK: Final = 4096  # samples in every frame but the last
HEADER_BYTES: Final = 42
SYNC: Final = b"\xff\xf8"  # with blocks of one size: a frame's number counts frames
BLOCK_CODE: Final = 12  # 4096
_BLOCK_CODE_16_BIT: Final = 7  # the size follows the number
_RATE_CODES: Final = {8_000: 4, 16_000: 5, 22_050: 6, 24_000: 7, 32_000: 8, 44_100: 9, 48_000: 10}  # else: STREAMINFO's
_SAMPLE_SIZE_16: Final = 4
BITS: Final = 16
CONSTANT, VERBATIM, FIXED, LPC = 0, 1, 8, 32  # kinds of subframe; the last two plus their order
FIXED_PREDICTORS: Final[tuple[tuple[int, ...], ...]] = ((), (1,), (2, -1), (3, -3, 1), (4, -6, 4, -1))
_LPC_ORDER: Final = 10  # at 24 kHz: two poles for each of the formants below 5 kHz
_LPC_BITS: Final = 13  # of a coefficient
_MAX_RICE: Final = 14
_MAX_PARTITIONS_LOG2: Final = 5  # 128 samples each


def stream_header(sample_rate: int, samples: int = 0, md5: bytes = bytes(16)) -> bytes:
    """The 42 bytes before the frames. 0 `samples`, a zero `md5`: unknown."""
    sizes = BLOCK.to_bytes(2, "big") * 2 + bytes(6)
    counts = sample_rate << 44 | (BITS - 1) << 36 | samples  # 20 bits, 3 for mono, 5 and 36
    return b"fLaC" + b"\x80" + (34).to_bytes(3, "big") + sizes + counts.to_bytes(8, "big") + md5


def read_stream_header(head: bytes) -> int | None:
    """The sample rate; None: `stream_header` did not make that."""
    if len(head) < HEADER_BYTES:
        return None
    counts = int.from_bytes(head[18:26], "big")
    return counts >> 44 if stream_header(counts >> 44)[:18] == head[:18] and counts >> 36 & 0xFF == BITS - 1 else None


class FlacEncoder:
    """Makes frames of s16le samples. `number`: of the first one; then the digest of the whole is not known."""

    def __init__(self, sample_rate: int, number: int = 0) -> None:
        self._rate = sample_rate
        self._number = number
        self._waiting = bytearray()
        self._md5 = None if number else hashlib.md5(usedforsecurity=False)
        self.samples = number * BLOCK
        """Samples in the frames that `push` and `finish` gave out, with those before."""

    def push(self, pcm: bytes | memoryview) -> bytes:
        """The frames that are full."""
        self._waiting += pcm
        size = 2 * BLOCK
        whole = len(self._waiting) // size * size
        frames = [self._frame(bytes(self._waiting[at : at + size])) for at in range(0, whole, size)]
        del self._waiting[:whole]
        return b"".join(frames)

    @property
    def waiting(self) -> int:
        """Samples that no frame given out by `push` holds yet."""
        return len(self._waiting) // 2

    def last_frame(self) -> bytes:
        """What `finish` would give, while more may follow."""
        return self._encode(bytes(self._waiting)) if self._waiting else b""

    def finish(self) -> bytes:
        """The last frame, as short as it must be."""
        rest, self._waiting = bytes(self._waiting), bytearray()
        return self._frame(rest) if rest else b""

    @property
    def md5(self) -> bytes:
        """The digest of all samples in frames, for `stream_header`."""
        return bytes(16) if self._md5 is None else self._md5.digest()

    def _frame(self, pcm: bytes) -> bytes:
        if self._md5 is not None:
            self._md5.update(pcm)
        frame = self._encode(pcm)
        self._number += 1
        self.samples += len(pcm) // 2
        return frame

    def _encode(self, pcm: bytes) -> bytes:
        return encode_frame(np.frombuffer(pcm, "<i2").astype(np.int64), self._number, self._rate)


# --- frames ---------------------------------------------------------------------------------------------------------


def frame_header(number: int, count: int, sample_rate: int) -> bytes:
    """What a frame of `count` samples begins with: no two frames of a file begin alike."""
    size = b"" if count == BLOCK else (count - 1).to_bytes(2, "big")
    head = frame_start(number, sample_rate, is_full=count == BLOCK) + size
    return head + bytes((_crc8(head),))


def frame_start(number: int, sample_rate: int, *, is_full: bool) -> bytes:
    """The same up to where the size of a frame that is not full, and the checksum, follow."""
    code = BLOCK_CODE if is_full else _BLOCK_CODE_16_BIT
    return SYNC + bytes((code << 4 | _RATE_CODES.get(sample_rate, 0), _SAMPLE_SIZE_16 << 1)) + _coded_number(number)


def encode_frame(samples: Samples, number: int, sample_rate: int) -> bytes:
    """1 to 4096 samples as a frame."""
    head = frame_header(number, len(samples), sample_rate)
    frame = head + np.packbits(_subframe(samples)).tobytes()
    return frame + crc16(frame).to_bytes(2, "big")


def _subframe(samples: Samples) -> NDArray[np.uint8]:
    """As bits."""
    if not np.any(samples != samples[0]):
        return np.concatenate((_bits(CONSTANT << 1, 8), _bits(int(samples[0]), BITS)))
    best = np.concatenate((_bits(VERBATIM << 1, 8), _all_bits(samples, BITS)))
    for kind, coefficients, shift in _predictors(samples):
        order = len(coefficients)
        residual = samples[order:] - _predicted(samples, coefficients, shift)
        if np.abs(residual).max(initial=0) >= 1 << 30:
            continue
        parts = [_bits((kind + order - (kind == LPC)) << 1, 8), _all_bits(samples[:order], BITS)]
        if kind == LPC:
            parts += [_bits(_LPC_BITS - 1, 4), _bits(shift, 5), _all_bits(np.array(coefficients), _LPC_BITS)]
        bits = np.concatenate([*parts, _rice(residual, order)])
        if len(bits) < len(best):
            best = bits
    return best


def _predictors(samples: Samples) -> list[tuple[int, tuple[int, ...], int]]:
    """Those worth a try: the best of the fixed ones, and linear prediction."""
    differences, sums = samples, []
    for _ in FIXED_PREDICTORS:
        sums.append(int(np.abs(differences).sum()))
        differences = np.diff(differences)
    found: list[tuple[int, tuple[int, ...], int]] = []
    if len(samples) > len(FIXED_PREDICTORS):
        found.append((FIXED, FIXED_PREDICTORS[int(np.argmin(sums))], 0))
    if len(samples) > 4 * _LPC_ORDER and (lpc := _linear_prediction(samples)) is not None:
        found.append((LPC, *lpc))
    return found


def _linear_prediction(samples: Samples) -> tuple[tuple[int, ...], int] | None:
    """Whole-number coefficients, for the sample before first, and how many bits to shift their sum."""
    x = samples * np.hanning(len(samples) + 2)[1:-1]
    lags = [float(x[lag:] @ x[: len(x) - lag]) for lag in range(_LPC_ORDER + 1)]
    error, a = lags[0] * (1 + 1e-9), np.zeros(_LPC_ORDER)
    for i in range(_LPC_ORDER):  # Levinson and Durbin
        reflection = (lags[i + 1] - float(a[:i] @ np.array(lags[i:0:-1]))) / error
        a[:i] -= reflection * a[:i][::-1]
        a[i] = reflection
        error *= 1 - reflection * reflection
        if error <= 0:
            return None
    largest = 1 << (_LPC_BITS - 1)
    shift = min(15, _LPC_BITS - 1 - int(np.ceil(np.log2(np.abs(a).max() + 1e-9))))
    if shift < 0:
        return None
    whole = np.clip(np.rint(a * (1 << shift)), -largest, largest - 1).astype(int)
    return tuple(int(c) for c in whole), shift


def _predicted(samples: Samples, coefficients: tuple[int, ...], shift: int) -> Samples:
    """Of each sample after the first ones, from those before it."""
    order = len(coefficients)
    if not order:
        return np.zeros_like(samples)
    sums = np.convolve(samples, np.array(coefficients, np.int64))
    return np.asarray(sums[order - 1 : len(samples) - 1] >> shift)


def _rice(residual: Samples, order: int) -> NDArray[np.uint8]:
    """The residual of a block in Rice codes, in as many partitions as are worth their parameters."""
    count = len(residual) + order
    folded = np.where(residual < 0, -2 * residual - 1, 2 * residual)
    best: tuple[int, int, NDArray[np.int64], NDArray[np.int64]] | None = None
    for log2 in range(_MAX_PARTITIONS_LOG2 + 1):
        size = count >> log2
        if size << log2 != count or size <= order:
            break
        edges = np.concatenate(([0], np.arange(1, 1 << log2) * size - order))
        sizes = np.diff(np.append(edges, len(folded)))
        sums = np.add.reduceat(folded, edges)
        mean = np.maximum(sums / np.maximum(sizes, 1), 1)
        parameters = np.clip(np.floor(np.log2(mean * 0.75)), 0, _MAX_RICE).astype(np.int64)
        cost = int((sizes * (parameters + 1) + (sums >> parameters)).sum()) + (4 << log2)
        if best is None or cost < best[0]:
            best = cost, log2, parameters, sizes
    assert best is not None
    _, log2, parameters, sizes = best
    k = np.repeat(parameters, sizes)
    partition = np.repeat(np.arange(1 << log2), sizes)
    quotients = folded >> k
    lengths = quotients + 1 + k
    ends = np.cumsum(lengths) + 4 * (partition + 1)
    bits = np.zeros(int(lengths.sum()) + (4 << log2), np.uint8)
    starts = ends - lengths
    bits[starts + quotients] = 1
    for bit in range(int(parameters.max())):
        has = k > bit
        bits[ends[has] - 1 - bit] = folded[has] >> bit & 1
    firsts = np.cumsum(sizes) - sizes
    before = np.concatenate(([0], np.cumsum(lengths)))[firsts] + 4 * np.arange(1 << log2)
    for bit in range(4):
        bits[before + 3 - bit] = parameters >> bit & 1
    return np.concatenate((_bits(0, 2), _bits(log2, 4), bits))


def _bits(value: int, width: int) -> NDArray[np.uint8]:
    return _all_bits(np.array([value]), width)


def _all_bits(values: Samples, width: int) -> NDArray[np.uint8]:
    return (values[:, None] >> np.arange(width - 1, -1, -1) & 1).astype(np.uint8).ravel()


def _coded_number(number: int) -> bytes:
    """Like UTF-8, for up to 36 bits."""
    if number < 0x80:
        return bytes((number,))
    tail = []
    limit = 0x20  # what fits beside the marks of the first byte
    while True:
        tail.append(0x80 | number & 0x3F)
        number >>= 6
        if number < limit:
            break
        limit >>= 1
    marks = 0xFF & ~(2 * limit - 1)
    return bytes((marks & 0xFF | number, *reversed(tail)))


# --- checksums ------------------------------------------------------------------------------------------------------

_ROW: Final = 128


@cache
def _crc8_table() -> list[int]:
    return [_crc_of_byte(byte, 8, 0x07) for byte in range(256)]


def _crc_of_byte(byte: int, width: int, polynomial: int) -> int:
    crc, top, mask = byte << (width - 8), 1 << (width - 1), (1 << width) - 1
    for _ in range(8):
        crc = (crc << 1 ^ (polynomial if crc & top else 0)) & mask
    return crc


def _crc8(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc = _crc8_table()[crc ^ byte]
    return crc


@cache
def _crc16_tables() -> NDArray[np.uint16]:
    """[d][b]: the checksum of byte `b` with `d` zero bytes after it."""
    table = np.array([_crc_of_byte(byte, 16, 0x8005) for byte in range(256)], np.uint16)
    rows = [table]
    for _ in range(_ROW - 1):
        last = rows[-1]
        rows.append((last << np.uint16(8)) ^ table[last >> np.uint16(8)])
    return np.array(rows, np.uint16)


def crc16(data: bytes) -> int:
    """FLAC's checksum (polynomial 0x8005); of data with its checksum behind it: 0.

    It is linear: the checksum of a row is the sum (XOR) of those of its bytes, each with the zeros that follow it.
    """
    tables = _crc16_tables()
    padded = np.frombuffer(bytes(-len(data) % _ROW) + data, np.uint8).reshape(-1, _ROW)  # zeros before change nothing
    rows = np.bitwise_xor.reduce(tables[np.arange(_ROW - 1, -1, -1), padded], axis=1)
    crc = 0
    high, low = tables[_ROW - 1], tables[_ROW - 2]  # the checksum so far, moved on by a row
    for row in rows.tolist():
        crc = int(high[crc >> 8]) ^ int(low[crc & 0xFF]) ^ row
    return crc
