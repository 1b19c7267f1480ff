"""A recording that somebody sent in: read with care, and looked at before anything is learnt of it.

Every refusal is one line for the sender: what is wrong and what is allowed.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import soundfile

from server.audio.resample import Resampler

Floats: TypeAlias = npt.NDArray[np.float32]

LEAST_S: Final = 3.0
MOST_S: Final = 30.0
RATES: Final = (16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 88_200, 96_000, 176_400, 192_000)
"""Samples a second. Others between them would need filters of hundreds of megabytes."""
_FORMATS: Final = frozenset({"WAV", "WAVEX", "RF64", "FLAC"})
_MOST_CHANNELS: Final = 8
_MOST_SAMPLES_S: Final = 768_000  # of all channels together: 8 at 96,000
_UNTOLD: Final = 1 << 62  # frames: what is told where a header tells none
_MOST_READ_S: Final = 60  # with the silence at the ends, which does not count
_QUIETEST_DB: Final = -40.0  # of the loudest part
_NOISE_DB: Final = -70.0  # what is below is silence, however quiet the rest is
_RANGE_DB: Final = 35.0  # what is so much quieter than the loudest part is a pause
_LEAST_SPEECH_S: Final = 1.5
_MARGIN_S: Final = 0.2  # of silence that stays at the ends
_FRAME_S: Final = 0.02
_LOUDEST_FRAMES: Final = 10  # so long must be loud what is taken for speech, not for a click
_FULL_SCALE: Final = 0.999
_CLIPPED_MOST: Final = 0.001  # share of the samples
_PLATEAU: Final = 4  # equal samples in a row at the peak: cut off there, and made quieter afterwards
_PLATEAU_LEVEL: Final = 0.5  # below, equal neighbours are but the coarseness of 16 bits


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Mono samples `[n]`, float32, at `rate` a second."""

    samples: Floats
    rate: int

    @property
    def seconds(self) -> float:
        """How long it is."""
        return len(self.samples) / self.rate

    def at(self, rate: int) -> Floats:
        """Its samples at another rate."""
        if rate == self.rate:
            return self.samples
        return Resampler(self.rate, rate).process(self.samples, last=True)


def read_recording(data: bytes) -> Recording:
    """The speech in a WAV or FLAC file: channels mixed, silence at the ends taken off, checked. Raises ValueError."""
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            return checked(*_mixed(file))
    except soundfile.SoundFileError as error:
        raise ValueError("the recording is no whole WAV or FLAC file") from error


def checked(samples: Floats, rate: int, full_scale: float = 0.0) -> Recording:
    """Mono samples as a recording, if they are one. `full_scale`: the share of samples that were at full scale before
    channels were mixed. Raises ValueError.
    """
    if rate not in RATES:
        raise ValueError(
            f"the recording has {rate:,} samples a second; allowed are {', '.join(f'{r:,}' for r in RATES)}"
        )
    if len(samples) > _MOST_READ_S * rate:
        raise ValueError(f"the recording is longer than {_MOST_READ_S} s; {_allowed()}")
    if not np.isfinite(samples).all():
        raise ValueError("the recording holds numbers that are no sound")
    samples = samples - np.float32(samples.mean(dtype=np.float64)) if len(samples) else samples
    levels = _levels(samples, rate)
    loudest = float(np.sort(levels)[-_LOUDEST_FRAMES:][0]) if len(levels) else -120.0
    if len(levels) >= _LOUDEST_FRAMES and loudest < _QUIETEST_DB:
        raise ValueError(
            f"the recording is silent or too quiet: its loudest part is at {loudest:.0f} dBFS; at least"
            f" {_QUIETEST_DB:.0f} is needed"
        )
    clipped = max(full_scale, _clipped_share(samples))
    if clipped > _CLIPPED_MOST:
        raise ValueError(
            f"the recording is clipped: {clipped:.2%} of its samples are cut off at the top; at most"
            f" {_CLIPPED_MOST:.1%} may be: record it with less gain"
        )
    speech = np.flatnonzero(levels > max(_NOISE_DB, loudest - _RANGE_DB))
    first, end = (int(speech[0]), int(speech[-1]) + 1) if len(speech) else (0, 0)
    frame, margin = round(_FRAME_S * rate), round(_MARGIN_S * rate)
    recording = Recording(np.ascontiguousarray(samples[max(0, first * frame - margin) : end * frame + margin]), rate)
    if not LEAST_S <= recording.seconds <= MOST_S:
        raise ValueError(f"the recording has {recording.seconds:.1f} s of speech; {_allowed()}")
    if len(speech) * _FRAME_S < _LEAST_SPEECH_S:
        raise ValueError(
            f"the recording is almost all silence: {len(speech) * _FRAME_S:.1f} s of it are not; at least"
            f" {_LEAST_SPEECH_S} s must be speech"
        )
    return recording


def _allowed() -> str:
    return f"{LEAST_S:.0f} to {MOST_S:.0f} s are allowed"


def _mixed(file: Any) -> tuple[Floats, int, float]:
    """Samples, rate, and the largest share of samples at full scale in a channel."""
    if file.format not in _FORMATS:
        raise ValueError(f"the recording is of the kind {file.format}; allowed are WAV and FLAC")
    rate, channels = int(file.samplerate), int(file.channels)
    if rate not in RATES:
        checked(np.zeros(0, np.float32), rate)  # raises
    if channels > _MOST_CHANNELS or channels * rate > _MOST_SAMPLES_S:
        raise ValueError(
            f"the recording has {channels:,} channels of {rate:,} samples a second; allowed are at most"
            f" {_MOST_CHANNELS} channels, and {_MOST_SAMPLES_S:,} samples of all channels together"
        )
    if _MOST_READ_S * rate < file.frames < _UNTOLD:  # nothing is decoded; a header may say less than there is
        raise ValueError(f"the recording is longer than {_MOST_READ_S} s; {_allowed()}")
    full = np.zeros(channels, np.int64)
    parts: list[Floats] = []
    for block in _blocks(file, rate):
        full += (np.abs(block) >= _FULL_SCALE).sum(axis=0)
        parts.append(block.mean(axis=1, dtype=np.float32))
    samples = np.concatenate([*parts, np.zeros(0, np.float32)])
    return samples, rate, float(full.max()) / max(1, len(samples))


def _blocks(file: Any, rate: int) -> Iterator[Floats]:
    """A second at a time, `[n, channels]`, and one more than is allowed: what a header says may be anything."""
    for _ in range(_MOST_READ_S + 1):
        block = file.read(rate, dtype="float32", always_2d=True)
        if not len(block):
            return
        yield block


def _levels(samples: Floats, rate: int) -> npt.NDArray[np.float64]:
    """Of each 20 ms, in dB of full scale."""
    frame = round(_FRAME_S * rate)
    whole = samples[: len(samples) // frame * frame].reshape(-1, frame)
    levels: npt.NDArray[np.float64] = 10.0 * np.log10(np.square(whole, dtype=np.float64).mean(axis=1) + 1e-12)
    return levels


def _clipped_share(samples: Floats) -> float:
    """Of the samples with which a row of equal ones at the peak begins: about how many are cut off."""
    size = np.abs(samples)
    peak = float(size.max(initial=0.0))
    if peak < _PLATEAU_LEVEL:
        return 0.0
    same = (np.diff(samples) == 0.0) & (size[1:] >= 0.9 * peak)
    rows = np.lib.stride_tricks.sliding_window_view(same, _PLATEAU - 1).all(axis=1)
    return float(rows.mean())
