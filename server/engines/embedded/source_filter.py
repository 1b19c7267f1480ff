"""The English network's spectrum turned into samples, and where in it words begin and end. The arithmetic is that of
hibari's own `dsp.synth`, a stretch of frames at a time."""

from typing import Final

import numpy as np
import numpy.typing as npt
from hibari import dsp

from server.engines.base import Samples
from server.engines.embedded.shaping import HOP

LEAD_FRAMES = 3  # silence kept before speech
SILENT_RMS = 0.003
_BINS = dsp.N_FFT // 2 + 1
_NOISE_BLOCK = 32  # frames of noise drawn at once
_CONTEXT = dsp.N_FFT // HOP // 2  # frames each side that overlap a frame
_WORD_LEADS: Final = (
    9,
    6,
    4,
)  # frames by which, inside a phrase, sounds come before their durations: most, usual, least
_PAUSE_BEFORE, _PAUSE_AFTER = 14, 2  # frames around a duration's place in which the silence of a mark lies

Floats = npt.NDArray[np.float32]


class SourceFilter:
    """One piece's spectrum, turned into samples where asked, by the arithmetic of `dsp.synth`."""

    def __init__(self, spectrum: list[Floats], f0: Floats, noise_seed: tuple[int, int]) -> None:
        self._harmonic, self._rotation, self._noise, self._rest, self._phase = spectrum
        self.frames = len(f0)
        self._pulses = np.pad(dsp.pulses(f0), dsp.N_FFT // 2, mode="reflect")
        self._noise_seed = noise_seed
        self._noise_blocks: dict[int, npt.NDArray[np.complex64]] = {}

    def samples(self, first: int, end: int) -> Samples:
        """Samples of frames `[first, end)`."""
        low, high = max(0, first - _CONTEXT), min(self.frames, end + _CONTEXT)
        windows = np.lib.stride_tricks.sliding_window_view(self._pulses, dsp.N_FFT)[low * HOP : high * HOP : HOP]
        spectrum = np.ascontiguousarray(dsp.rfft(windows * dsp.WIN_SRC, 1).T)
        rotation = np.tanh(self._rotation[:, low:high]) * np.float32(np.pi)
        spectrum *= dsp.ex(self._harmonic[:, low:high]) * _turn(rotation)
        spectrum += self._noise_rows(low, high) * dsp.ex(self._noise[:, low:high])
        spectrum += dsp.ex(self._rest[:, low:high]) * _turn(self._phase[:, low:high])
        audio: Samples = dsp.ola(spectrum)
        return audio[(first - low) * HOP : (end - low) * HOP]

    def _noise_rows(self, low: int, high: int) -> npt.NDArray[np.complex64]:
        """Unit noise `[bins, high - low]`; a frame's values depend on the seed and its number alone."""
        first = low // _NOISE_BLOCK
        blocks = [self._noise_block(number) for number in range(first, (high - 1) // _NOISE_BLOCK + 1)]
        return np.concatenate(blocks)[low - first * _NOISE_BLOCK : high - first * _NOISE_BLOCK].T

    def _noise_block(self, number: int) -> npt.NDArray[np.complex64]:
        if number not in self._noise_blocks:
            rng = np.random.default_rng([*self._noise_seed, number])
            drawn = rng.standard_normal((_NOISE_BLOCK, 2 * _BINS), dtype=np.float32)
            self._noise_blocks[number] = drawn.view(np.complex64)
        return self._noise_blocks[number]

    def onset(self, first_phoneme: int) -> int:
        """Where a piece begins that nothing comes before, from the loudness near the frame where its first phoneme is
        said to begin. The network puts about 300 ms before each piece.
        """
        loud = np.flatnonzero(self._levels(0, min(self.frames, first_phoneme + 24)) > SILENT_RMS)
        return max(0, min(int(loud[0]) if len(loud) else first_phoneme, first_phoneme + 12) - LEAD_FRAMES)

    def end(self, begin: int, last_phoneme: int, tail: int) -> int:
        """Where a piece ends that nothing comes after, `tail` frames behind its sound. The network puts about 400 ms
        after each piece.
        """
        tail_start = max(begin + 1, min(last_phoneme, self.frames) - 4)
        loud = np.flatnonzero(self._levels(tail_start, self.frames) > SILENT_RMS)
        return max(begin + 1, min(self.frames, tail_start + (int(loud[-1]) + 1 if len(loud) else 0) + tail))

    def between_words(self, last: int, first: int, earliest: int = 0) -> int:
        """The quietest frame between two words, not before `earliest`. The durations place the last phoneme of the one
        at frame `last`, the first of the other at `first`; inside a phrase both sound earlier.
        """
        most, usual, least = _WORD_LEADS
        low = min(max(earliest, first - most, last - usual + 1), self.frames - 1)
        return low + int(np.argmin(self._levels(low, max(low + 1, first - least + 1))))

    def after_pause(self, word: int) -> int:
        """Where the first word after a mark begins, with at most `LEAD_FRAMES` of the silence before it."""
        low, high = max(0, word - _PAUSE_BEFORE), min(self.frames, word + _PAUSE_AFTER)
        levels = self._levels(low, high)
        quiet = np.flatnonzero(levels <= SILENT_RMS)
        if not len(quiet):
            return low + int(np.argmin(levels))
        last = int(quiet[-1])
        run = next((i for i in range(LEAD_FRAMES) if i > last or levels[last - i] > SILENT_RMS), LEAD_FRAMES)
        return low + last + 1 - run

    def _levels(self, first: int, end: int) -> Floats:
        """Root mean square of each frame in `[first, end)`."""
        if end <= first:
            return np.empty(0, np.float32)
        blocks = self.samples(first, end).reshape(-1, HOP)
        levels: Floats = np.sqrt((blocks * blocks).mean(axis=1))
        return levels


def _turn(angle: Floats) -> npt.NDArray[np.complex64]:
    """exp(i * angle)."""
    turned = np.empty(angle.shape, np.complex64)
    np.cos(angle, out=turned.real)
    np.sin(angle, out=turned.imag)
    return turned
