"""What stands for a text that nothing could speak: a soft tone, then silence, as long as the text would take."""

from typing import Final

import numpy as np

from server.audio.chain import soft_limit

TONE_S: Final = 0.4
_TONE_HZ: Final = 523.25
_TONE_LEVEL: Final = 0.03  # about -30 dBFS: heard beside speech, startling nobody
_FULL_SCALE: Final = 32768.0


def clip_pcm(first: int, end: int, length: int, rate: int, volume: float = 1.0) -> bytes:
    """Samples [first, end) of a clip of `length` samples, s16le mono at `rate`. The same samples in any pieces."""
    end = min(end, length)
    if first >= end:
        return b""
    samples = np.zeros(end - first, np.float64)
    tone = min(length, round(TONE_S * rate))  # of a short clip it is all there is
    at = np.arange(first, min(end, tone), dtype=np.float64)
    swell = np.sin(np.pi * (at + 0.5) / tone) ** 2
    samples[: len(at)] = _TONE_LEVEL * volume * swell * np.sin(2 * np.pi * _TONE_HZ / rate * at)
    pcm = np.rint(soft_limit(samples.astype(np.float32)) * np.float32(_FULL_SCALE)).astype("<i2")
    return bytes(pcm.tobytes())
