"""Read samples faster or slower than they were written: pitch and length change together, by a windowed sinc."""

from functools import lru_cache

import numpy as np

from server.engines.base import Samples

_ZERO_CROSSINGS = 12  # of the sinc, each side
_PHASES = 512  # positions between two samples; the nearest is taken


def reach(ratio: float) -> int:
    """Samples of input needed each side of a position."""
    return int(np.ceil(_ZERO_CROSSINGS * max(1.0, ratio)))


def read_at(samples: Samples, origin: int, first: int, end: int, ratio: float) -> Samples:
    """Output samples `[first, end)`, where output `n` lies at position `n * ratio` of the input.

    `samples[0]` is input sample `origin`; what lies outside counts as silence. A value depends on its own number alone,
    so parts read one by one equal the whole. With `ratio` above 1 the input is low-passed first, so nothing folds over.
    """
    half = reach(ratio)
    positions = np.rint(np.arange(first, end, dtype=np.float64) * (ratio * _PHASES)).astype(np.int64)
    whole, phase = positions // _PHASES, positions % _PHASES
    start = int(whole[0]) - half + 1
    stop = int(whole[-1]) + half + 1
    padded = np.zeros(stop - start, np.float32)
    low, high = max(start, origin), min(stop, origin + len(samples))
    if high > low:
        padded[low - start : high - start] = samples[low - origin : high - origin]
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * half)[whole - whole[0]]
    read: Samples = np.einsum("ij,ij->i", windows, _kernel(half, min(1.0, 1 / ratio))[phase])
    return read


@lru_cache(maxsize=16)
def _kernel(half: int, cutoff: float) -> Samples:
    """`[phases, taps]`: weights of the samples around a position, each row summing to 1."""
    distance = np.arange(-half + 1, half + 1)[None, :] - (np.arange(_PHASES) / _PHASES)[:, None]
    window = np.cos(np.clip(distance / half, -1, 1) * np.pi / 2) ** 2
    weights = np.sinc(distance * cutoff) * window
    kernel: Samples = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return kernel
