"""What is done to a voice's samples before they leave: fades and pauses. All of it depends on a sample's own position
only, so that chunks of any size give the same result. Peaks above full scale are left to the server's limiter, which
comes after the resampler."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from server.engines.base import Samples

SAMPLE_RATE = 24_000
HOP = 300  # samples a frame, for both voices
FADE_IN = 120  # samples: 5 ms, inside the silence kept before speech
FADE_OUT = 240  # samples: 10 ms


@lru_cache(maxsize=4)
def _ramp(length: int) -> npt.NDArray[np.float32]:
    """The rising half of a raised cosine."""
    return (0.5 - 0.5 * np.cos(np.pi * (np.arange(length) + 0.5) / length)).astype(np.float32)


def fade_edges(samples: Samples, first: int, total: int) -> Samples:
    """Apply the fades of a piece of `total` samples to the part that begins at sample `first`."""
    end = first + len(samples)
    fade_in, fade_out = min(FADE_IN, total // 2), min(FADE_OUT, total // 2)
    if first >= fade_in and end <= total - fade_out:
        return samples
    gain = np.ones(len(samples), np.float32)
    if first < fade_in:
        stop = min(end, fade_in)
        gain[: stop - first] *= _ramp(fade_in)[first:stop]
    if end > total - fade_out:
        start = max(first, total - fade_out)
        falling = _ramp(fade_out)[::-1]
        gain[start - first :] *= falling[start - (total - fade_out) : end - (total - fade_out)]
    return samples * gain


def pause_samples(pause_ms: float, speed: float, kept_frames: int) -> int:
    """Zeros to append so that silence from speech to speech is `pause_ms / speed`, `kept_frames` of it being there."""
    return max(0, round(pause_ms / speed * SAMPLE_RATE / 1000) - kept_frames * HOP)
