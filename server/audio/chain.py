"""From a segment's engine samples to its PCM on the timeline.

Gain -> resample -> soft limiter -> fade of the edges -> 16 bits. The limiter comes after the resampling, which can
raise peaks, so that nothing clips. State lives for one segment: its samples depend on nothing before or after it.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from protocol.limits import VOLUME
from server.audio.resample import Floats, Resampler, scale_position

_KNEE: Final = np.float32(10 ** (-1 / 20))  # -1 dBFS: the limiter leaves everything below untouched
_CEILING: Final = np.float32(32767 / 32768)  # the largest sample that 16 bits can hold
_LOUDEST: Final = 1000.0  # an engine's samples are in [-1, 1]; this far beyond them, something is broken
_FADE_S: Final = 0.002  # long enough that an edge never clicks, too short for a fade to be heard
_FULL_SCALE: Final = np.float32(32768)  # exact both ways for engines whose samples were 16 bits to begin with


class NotSound(ValueError):
    """Samples that cannot be sound: no numbers, or far too large ones."""


class SegmentChain:
    """Turns one segment's samples into s16le PCM. The same samples in any pieces give exactly the same bytes.

    `engine_rate` and `output_rate` in Hz, `volume` a factor. `n` samples become `scale(n)` in all. What comes late is
    only the resampler's `delay` and the fade's 2 ms. Rounding is to nearest, without dither: dither would be another
    state, and in the pauses of speech it is only noise.

    A chain that begins at output sample `start` gives exactly what is left of the whole segment's bytes from there on,
    and takes the engine's samples from `first_input` on. With a `start` beyond the segment's end it gives nothing.
    """

    def __init__(self, engine_rate: int, output_rate: int, volume: float = 1.0, start: int = 0) -> None:
        if engine_rate <= 0 or output_rate <= 0:
            raise ValueError(f"sample rates must be positive, not {engine_rate} and {output_rate}")
        lowest, highest = VOLUME
        if not lowest <= volume <= highest:
            raise ValueError(f"volume must be {lowest} to {highest}, not {volume}")
        if start < 0:
            raise ValueError(f"a segment has no sample {start}")
        self._engine_rate = engine_rate
        self._output_rate = output_rate
        self._volume = np.float32(volume)
        self._resampler = None if engine_rate == output_rate else Resampler(engine_rate, output_rate, start)
        self.first_input: int = start if self._resampler is None else self._resampler.first_input
        length = max(1, round(output_rate * _FADE_S))
        self._fade_in: Floats = np.sin((np.arange(length) + 0.5) * (np.pi / 2 / length)).astype(np.float32) ** 2
        self._position = start  # in the output, of the next sample to pass the fade at the segment's beginning
        self._held: Floats = np.zeros(0, np.float32)  # the newest, which may turn out to be the last
        self._finished = False

    def scale(self, sample: int) -> int:
        """The output-rate position of an engine-rate position, both counted from the segment's first sample."""
        return scale_position(sample, self._engine_rate, self._output_rate)

    def process(self, samples: Floats, last: bool = False) -> bytes:
        """Take float32 samples of shape `[n]`, `n` may be 0; return the PCM that is ready. `last` ends the segment.

        Raises NotSound for samples that cannot be sound, ValueError for another shape or type and after the last.
        """
        if self._finished:
            raise ValueError("the segment has ended")
        if samples.ndim != 1 or samples.dtype != np.float32:
            raise ValueError(f"samples must be float32 of shape [n], not {samples.dtype} of shape {samples.shape}")
        if len(samples) and not np.abs(samples).max() <= _LOUDEST:
            raise NotSound(f"samples must be numbers within [-{_LOUDEST:g}, {_LOUDEST:g}]")
        self._finished = last
        if self._volume != 1:
            samples = samples * self._volume
        if self._resampler is not None:
            samples = self._resampler.process(samples, last)
        return _to_s16(self._fade_edges(soft_limit(samples), last))

    def _fade_edges(self, samples: Floats, last: bool) -> Floats:
        """Fade the segment's first and last 2 ms; a sample waits until it is known whether it is among the last."""
        length = len(self._fade_in)
        if self._position < length and len(samples):
            samples = samples.copy()
            ramp = self._fade_in[self._position : self._position + len(samples)]
            samples[: len(ramp)] *= ramp
        self._position += len(samples)
        samples = np.concatenate([self._held, samples])
        if last:
            ramp = self._fade_in[: len(samples)][::-1]
            samples[len(samples) - len(ramp) :] *= ramp
            return samples
        ready = max(0, len(samples) - length)
        self._held = samples[ready:]
        return samples[:ready]


def soft_limit(samples: Floats) -> Floats:
    """Bend what is louder than -1 dBFS smoothly towards full scale, so that nothing clips; memoryless.

    Above the knee `k`, `|x|` becomes `k + r * u / sqrt(1 + u^2)` with `r` the room above the knee and
    `u = (|x| - k) / r`: slope 1 and no bend at the knee, full scale at infinity. Made of operations that round the same
    way on every processor, unlike `tanh`.
    """
    magnitude = np.abs(samples)
    if not len(magnitude) or magnitude.max() <= _KNEE:
        return samples
    room = _CEILING - _KNEE
    excess = np.maximum(magnitude - _KNEE, np.float32(0)) / room
    bent = _KNEE + room * (excess / np.sqrt(1 + excess * excess))
    return np.where(magnitude > _KNEE, np.copysign(bent, samples), samples)


def _to_s16(samples: Floats) -> bytes:
    """Nearest 16-bit values, halves to even, little-endian. `samples` lie within the ceiling."""
    pcm: npt.NDArray[np.int16] = np.rint(samples * _FULL_SCALE).astype("<i2")
    return pcm.tobytes()
