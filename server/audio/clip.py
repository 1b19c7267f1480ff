"""What repairs a segment: a clip for a text that nothing could speak (a soft tone, then silence, as long as the text
would take), and the seam where another voice takes over in the middle of a sound.
"""

from typing import Final

import numpy as np

from server.audio.chain import soft_limit

TONE_S: Final = 0.4
_TONE_HZ: Final = 523.25
_TONE_LEVEL: Final = 0.03  # about -30 dBFS: heard beside speech, startling nobody
_FULL_SCALE: Final = 32768.0
_SEAM_S: Final = 0.002  # as long as segments fade in


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


def seam_length(rate: int) -> int:
    """Samples of a seam."""
    return max(1, round(rate * _SEAM_S))


def with_seam(pcm: bytes, first: int, last_value: int, rate: int) -> bytes:
    """Samples `first`, `first` + 1, ... of what begins after a sound that broke off at `last_value` (16 bits): that
    value fades away beneath them, so that nothing clicks.
    """
    count = min(seam_length(rate) - first, len(pcm) // 2)
    if count <= 0 or not last_value:
        return pcm
    at = first + np.arange(count) + 0.5
    fade = np.rint(last_value * np.cos(at * (np.pi / 2 / seam_length(rate))) ** 2)
    samples = np.frombuffer(pcm, "<i2", count) + fade
    return bytes(np.clip(samples, -32768, 32767).astype("<i2").tobytes()) + pcm[2 * count :]
