"""WAV headers for mono s16le PCM: a known length, an unknown one, and the correction once it is known."""

import struct
from typing import BinaryIO, Final

HEADER_BYTES: Final = 44

_BYTES_PER_SAMPLE: Final = 2
_UNKNOWN: Final = 0xFFFFFFFF  # the size that common players read as "until the file ends"
_RIFF_EXTRA: Final = HEADER_BYTES - 8  # a RIFF size counts everything after itself
_RIFF_SIZE_OFFSET: Final = 4
_DATA_SIZE_OFFSET: Final = 40


def wav_header(sample_rate: int, samples: int | None = None) -> bytes:
    """The 44 bytes before the samples. `samples` None: a stream whose length nobody knows yet.

    A file over 4 GiB cannot state its size in a WAV header (24 hours at 24 kHz are 3.9 GiB): it gets the header of a
    stream, which players read to the end of the file.
    """
    riff_size, data_size = _sizes(samples)
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF",
        riff_size,
        b"WAVE",
        b"fmt ",
        16,  # bytes of this chunk
        1,  # PCM
        1,  # channel
        sample_rate,
        sample_rate * _BYTES_PER_SAMPLE,
        _BYTES_PER_SAMPLE,
        8 * _BYTES_PER_SAMPLE,
        b"data",
        data_size,
    )


def patch_sizes(file: BinaryIO, samples: int) -> None:
    """Write the sizes for `samples` samples into the header at the start of `file`; its position stays where it was.

    The file must be seekable and begin with a header from `wav_header`.
    """
    riff_size, data_size = _sizes(samples)
    position = file.tell()
    file.seek(_RIFF_SIZE_OFFSET)
    file.write(struct.pack("<I", riff_size))
    file.seek(_DATA_SIZE_OFFSET)
    file.write(struct.pack("<I", data_size))
    file.seek(position)


def _sizes(samples: int | None) -> tuple[int, int]:
    """The RIFF chunk's and the data chunk's size fields."""
    if samples is None:
        return _UNKNOWN, _UNKNOWN
    data_size = samples * _BYTES_PER_SAMPLE
    if data_size + _RIFF_EXTRA >= _UNKNOWN:
        return _UNKNOWN, _UNKNOWN
    return data_size + _RIFF_EXTRA, data_size
