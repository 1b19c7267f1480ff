"""Measurements on samples: loudness, onsets, pauses, pitch, clicks. Samples are float64 of shape [n] in [-1, 1]."""

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

SPEECH_DBFS: Final = -45.0  # louder than this is speech, quieter a pause: the voices' own noise lies near -80
_FLOOR: Final = 1e-12  # -120 dBFS


def levels(samples: Floats, rate: int, window_ms: float = 5.0) -> Floats:
    """RMS of successive windows, dBFS; a rest shorter than a window is left out."""
    size = round(rate * window_ms / 1000)
    windows = samples[: len(samples) // size * size].reshape(-1, size)
    result: Floats = 10 * np.log10((windows**2).mean(axis=1) + _FLOOR)
    return result


def onset_s(samples: Floats, rate: int, threshold_dbfs: float = SPEECH_DBFS) -> float:
    """When the level first rises above the threshold; infinity if it never does."""
    loud = np.flatnonzero(levels(samples, rate) > threshold_dbfs)
    return float(loud[0]) * 0.005 if len(loud) else float("inf")


def active_level(samples: Floats, rate: int) -> float:
    """RMS over the windows of 20 ms in which someone speaks, dBFS."""
    found = levels(samples, rate, 20.0)
    power = 10 ** (found[found > SPEECH_DBFS] / 10)
    return float(10 * np.log10(power.mean())) if len(power) else float("-inf")


def longest_pause_s(samples: Floats, rate: int) -> float:
    """The longest stretch that is quieter than speech."""
    longest = current = 0
    for quiet in levels(samples, rate) <= SPEECH_DBFS:
        current = current + 1 if quiet else 0
        longest = max(longest, current)
    return longest * 0.005


def speech_s(samples: Floats, rate: int) -> float:
    """From the first to the last window in which someone speaks."""
    loud = np.flatnonzero(levels(samples, rate) > SPEECH_DBFS)
    return float(loud[-1] - loud[0] + 1) * 0.005 if len(loud) else 0.0


def median_pitch(samples: Floats, rate: int, low: float = 80.0, high: float = 500.0) -> float:
    """Median fundamental frequency, Hz, by autocorrelation of voiced windows of 40 ms."""
    size, step = round(rate * 0.04), round(rate * 0.01)
    shortest, longest = int(rate / high), int(rate / low)
    window = np.hanning(size)
    found = []
    for start in range(0, len(samples) - size, step):
        frame = samples[start : start + size]
        if 10 * np.log10((frame**2).mean() + _FLOOR) < SPEECH_DBFS + 15:
            continue
        spectrum = np.fft.rfft((frame - frame.mean()) * window, 2 * size)
        correlation = np.fft.irfft(np.abs(spectrum) ** 2)[:size]
        correlation = correlation[shortest:longest] / (1 - np.arange(shortest, longest) / size) / correlation[0]
        best = int(correlation.argmax())
        near = np.flatnonzero(correlation > 0.85 * correlation[best])  # the shortest good period, no multiple of it
        if correlation[best] > 0.5:
            peak = int(near[0])
            while peak + 1 < len(correlation) and correlation[peak + 1] > correlation[peak]:
                peak += 1
            found.append(rate / (peak + shortest))
    return float(np.median(found)) if found else float("nan")


def above(samples: Floats, rate: int, frequency: float) -> Floats:
    """What lies above a frequency, Hz."""
    spectrum = np.fft.rfft(samples)
    spectrum[np.fft.rfftfreq(len(samples), 1 / rate) < frequency] = 0
    result: Floats = np.fft.irfft(spectrum, len(samples))
    return result


def curvature(samples: Floats) -> Floats:
    """Absolute second differences: a click stands out here, speech does not. Shape [n - 2]."""
    result: Floats = np.abs(np.diff(samples, 2))
    return result


def longest_clipped_run(pcm: npt.NDArray[np.int16]) -> int:
    """How many successive samples stand at full scale."""
    longest = current = 0
    for clipped in (pcm >= 32_767) | (pcm <= -32_768):
        current = current + 1 if clipped else 0
        longest = max(longest, current)
    return longest
