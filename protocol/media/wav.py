"""WAV headers for mono s16le PCM: of a stream, whose length nobody knows, and of a file, which may outgrow 4 GiB."""

import struct
from dataclasses import dataclass
from typing import Final

HEADER_BYTES: Final = 44
FILE_HEADER_BYTES: Final = 80

_BYTES_PER_SAMPLE: Final = 2
_UNKNOWN: Final = 0xFFFFFFFF  # the size that common players read as "until the file ends"; in RF64: see the ds64 chunk
_FORMAT: Final = struct.Struct("<4sIHHIIHH")  # the fmt chunk
_DS64: Final = struct.Struct("<4sIQQQI")  # the ds64 chunk: sizes of file and data, samples, entries of a table (none)


def wav_header(sample_rate: int, samples: int | None = None) -> bytes:
    """The 44 bytes before the samples. `samples` None: a stream whose length nobody knows yet.

    A stream over 4 GiB cannot state its size in this header (24 hours at 24 kHz are 3.9 GiB): it gets that of an
    unknown length, which players read to the end.
    """
    data_size = _UNKNOWN if samples is None else samples * _BYTES_PER_SAMPLE
    riff_size = data_size + HEADER_BYTES - 8  # counts everything after itself
    if riff_size >= _UNKNOWN:
        riff_size = data_size = _UNKNOWN
    return b"RIFF" + struct.pack("<I", riff_size) + b"WAVE" + _format(sample_rate) + _data(data_size)


def wav_file_header(sample_rate: int, samples: int) -> bytes:
    """The 80 bytes before the samples of a file: its true length, whatever it is.

    Up to 4 GiB this is a plain WAV with a JUNK chunk that readers skip. Above, the same room holds the ds64 chunk of
    RF64 (EBU Tech 3306), whose sizes have 64 bits. So a file that grows only ever has its first 80 bytes replaced.
    """
    data_size = samples * _BYTES_PER_SAMPLE
    riff_size = data_size + FILE_HEADER_BYTES - 8
    chunk_size = _DS64.size - 8
    if riff_size < _UNKNOWN:
        start = b"RIFF" + struct.pack("<I", riff_size) + b"WAVE" + _DS64.pack(b"JUNK", chunk_size, 0, 0, 0, 0)
        return start + _format(sample_rate) + _data(data_size)
    start = b"RF64" + struct.pack("<I", _UNKNOWN) + b"WAVE"
    start += _DS64.pack(b"ds64", chunk_size, riff_size, data_size, samples, 0)
    return start + _format(sample_rate) + _data(_UNKNOWN)


@dataclass(frozen=True, slots=True)
class WavFile:
    """A file that begins with `wav_file_header`. `samples`: what it holds whole, whatever its header says."""

    sample_rate: int
    samples: int


def read_wav_file(head: bytes, size: int) -> WavFile | None:
    """What a file of `size` bytes is that begins with `head`; None: `wav_file_header` did not make that."""
    if len(head) < FILE_HEADER_BYTES or size < FILE_HEADER_BYTES:
        return None
    sample_rate = int.from_bytes(head[60:64], "little")
    known = wav_file_header(sample_rate, 0)
    if head[:4] not in (b"RIFF", b"RF64") or head[8:12] != b"WAVE" or head[12:16] not in (b"JUNK", b"ds64"):
        return None
    if head[48:76] != known[48:76]:  # the fmt chunk, and where the data begins
        return None
    return WavFile(sample_rate, (size - FILE_HEADER_BYTES) // _BYTES_PER_SAMPLE)


def _format(sample_rate: int) -> bytes:
    pcm, channels = 1, 1
    return _FORMAT.pack(
        b"fmt ",
        _FORMAT.size - 8,
        pcm,
        channels,
        sample_rate,
        sample_rate * _BYTES_PER_SAMPLE,
        _BYTES_PER_SAMPLE,
        8 * _BYTES_PER_SAMPLE,
    )


def _data(size: int) -> bytes:
    return b"data" + struct.pack("<I", size)
