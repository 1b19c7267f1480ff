"""s16le samples: after a WAV header, or bare."""

import os
from typing import BinaryIO

from client.items import Audio
from client.sinks.base import CannotContinue
from protocol.media.wav import FILE_HEADER_BYTES, read_wav_file, wav_file_header, wav_header

_BYTES_PER_SAMPLE = 2


class PcmEncoding:
    """`wav` False: bare samples. `live`: a listener waits, the header says that the length is unknown."""

    def __init__(self, *, wav: bool, live: bool = False) -> None:
        self._wav = wav
        self._live = live
        self._rate = 0
        self._samples = 0

    @property
    def replaces_flushed(self) -> bool:
        """It stays."""
        return False

    @property
    def samples(self) -> int:
        """All that came."""
        return self._samples

    def head(self, sample_rate: int, pre_skip: int) -> bytes:
        """A WAV header, or nothing."""
        self._rate = sample_rate
        if self._wav and self._live:
            return wav_header(sample_rate)
        return self.header()

    def resume(self, file: BinaryIO, sample_rate: int, pre_skip: int, at_sample: int) -> tuple[int, bytes]:
        """Cuts behind that sample."""
        self._rate, self._samples = sample_rate, at_sample
        rate, held = kept(file, self._wav)
        if rate not in (None, sample_rate):
            raise CannotContinue(f"has {rate} samples a second, not {sample_rate}")
        if held < at_sample:
            raise CannotContinue(f"holds {held} samples, not {at_sample}")
        return (FILE_HEADER_BYTES if self._wav else 0) + at_sample * _BYTES_PER_SAMPLE, b""

    def body(self, audio: Audio) -> bytes:
        """The samples."""
        self._samples += audio.count
        return audio.pcm

    def flush(self) -> bytes:
        """Nothing is kept."""
        return b""

    def tail(self, samples: int | None) -> bytes:
        """Nothing."""
        return b""

    def header(self) -> bytes:
        """The true sizes."""
        return wav_file_header(self._rate, self._samples) if self._wav else b""


def kept(file: BinaryIO, wav: bool) -> tuple[int | None, int]:
    """The sample rate, where the file says it, and how many samples it holds. Raises CannotContinue."""
    size = file.seek(0, os.SEEK_END)
    if not wav:
        return None, size // _BYTES_PER_SAMPLE
    file.seek(0)
    found = read_wav_file(file.read(FILE_HEADER_BYTES), size)
    if found is None:
        raise CannotContinue("is no WAV file that this program began")
    return found.sample_rate, found.samples
