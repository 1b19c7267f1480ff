"""A streaming resampler that holds back almost nothing.

Every output sample is one dot product of the input around it with a windowed sinc (a polyphase filter), so it is ready
as soon as half a filter length of later input is there: 2 to 4 ms from 24 kHz to 16 kHz and above, 7 ms to 8 kHz.
Resamplers that filter block by block with an FFT compute faster but hold back a block: soxr's streams keep 37 to 40 ms
(74 ms to 8 kHz) at its qualities MQ and HQ, as much as an engine's first chunk leaves to play while the second is made.
Error and aliasing stay 90 dB below the signal, about what 16 bits can carry.
"""

import functools
import math
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float32]

_STOPBAND_DB: Final = 90.0  # attenuation of aliases and images
_TRANSITION: Final = 0.1  # of the lower Nyquist frequency: flat up to 0.9 of it, nothing left from 1.0 on
_BLOCK: Final = 256  # output samples computed at a time: what they need stays in the processor's cache


def scale_position(sample: int, in_rate: int, out_rate: int) -> int:
    """The output sample that lies nearest to input sample `sample`; halves go up. Exact for any length."""
    return (2 * sample * out_rate + in_rate) // (2 * in_rate)


class Resampler:
    """Resamples one mono signal that comes in pieces; any cutting into pieces gives exactly the same samples.

    The output begins where the input begins (no delay in it) and a signal of `n` samples becomes
    `scale_position(n, in_rate, out_rate)` samples. Beyond both ends the signal is taken to be silent.

    One that begins at output sample `start` gives exactly what one from the beginning would give from there on, and
    takes its input from sample `first_input` on.
    """

    def __init__(self, in_rate: int, out_rate: int, start: int = 0) -> None:
        self._in_rate = in_rate
        self._out_rate = out_rate
        divisor = math.gcd(in_rate, out_rate)
        self._up = out_rate // divisor
        self._down = in_rate // divisor
        self._filters = _filters(self._up, self._down)
        self._taps: int = self._filters.shape[1]
        self._half: int = self._taps // 2
        # Output k needs the input from here on; where that is before the signal's beginning, silence.
        self._window_start = start * self._down // self._up - self._half + 1
        self.first_input: int = max(0, self._window_start)
        self._window: Floats = np.zeros(self.first_input - self._window_start, np.float32)  # what later output needs
        self._received = self.first_input  # input position: what came, and what was left out before it
        self._produced = start  # output position

    @property
    def delay(self) -> int:
        """Input samples that must follow an instant before its output comes."""
        return self._half

    def process(self, samples: Floats, last: bool = False) -> Floats:
        """Take float32 samples of shape `[n]`; return what can be computed now. After `last` nothing may follow."""
        half = self._half
        self._received += len(samples)
        parts = [self._window, samples, np.zeros(half if last else 0, np.float32)]
        self._window = np.concatenate(parts)
        if last:
            end = scale_position(self._received, self._in_rate, self._out_rate)
        else:
            # Output k lies at input k * down / up and needs `half` samples after the one at or before it.
            end = -((half - self._received) * self._up // self._down)
        if end <= self._produced:
            return np.zeros(0, np.float32)
        output = np.empty(end - self._produced, np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(self._window, self._taps)
        for begin in range(0, len(output), _BLOCK):
            block = output[begin : begin + _BLOCK]
            position = np.arange(len(block), dtype=np.int64)
            position += self._produced + begin
            position *= self._down
            rows = windows[position // self._up - half + 1 - self._window_start]
            # Not a matrix product: BLAS may add up in another order when there are more rows.
            np.einsum("ij,ij->i", rows, self._filters[position % self._up], out=block)
        self._produced = end
        unused = end * self._down // self._up - half + 1 - self._window_start
        self._window = self._window[unused:].copy()
        self._window_start += unused
        return output


@functools.lru_cache(maxsize=32)
def _filters(up: int, down: int) -> Floats:
    """The low-pass filter at each of the `up` places that an output sample can have between two input samples.

    Shape `[up, taps]`, `taps` even. Row `p` serves an output that lies `p / up` behind an input sample, and weighs the
    input from `taps / 2 - 1` samples before that one to `taps / 2` after it. A sinc in a Kaiser window, whose length
    and shape follow Kaiser's formulas (Oppenheim and Schafer, Discrete-Time Signal Processing, section 7.5.3).
    """
    nyquist = min(1.0, up / down) / 2  # the lower one, in cycles per input sample
    transition = _TRANSITION * nyquist
    half = math.ceil((_STOPBAND_DB - 8) / (2.285 * 2 * math.pi * transition) / 2)
    beta = 0.1102 * (_STOPBAND_DB - 8.7)
    place = np.arange(up)[:, np.newaxis] / up
    distance = np.arange(1 - half, half + 1)[np.newaxis, :] - place
    window = np.i0(beta * np.sqrt(np.maximum(0.0, 1 - (distance / half) ** 2))) / np.i0(beta)
    filters = np.sinc((2 * nyquist - transition) * distance) * window
    filters /= filters.sum(axis=1, keepdims=True)  # a constant stays constant, whatever the place
    result = filters.astype(np.float32)
    result.flags.writeable = False
    return result
