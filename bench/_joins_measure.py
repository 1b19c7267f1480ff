"""How a join of two segments differs from the same place of the sentence spoken in one call. Levels in dB full scale,
pitch in semitones, times in ms."""

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

RATE: Final = 24_000
HOP: Final = 120  # samples between two values of the pitch and the level: 5 ms
_WINDOW: Final = 960  # of the pitch: 40 ms
_LOWEST, _HIGHEST = 90.0, 500.0  # Hz
_VOICED: Final = 0.5  # of the normalised autocorrelation
_SPEECH_DB: Final = -45.0
_PAUSE: Final = 4  # hops of silence from which on two words are apart
_BANDS: Final = 40
_FRAME: Final = 300  # samples: 12.5 ms
_NEAR: Final = 10  # frames each side of a join that the mel distance takes in


@dataclass(frozen=True, slots=True)
class Word:
    """Where a word sounds, in samples."""

    first: int
    end: int


class Speech:
    """A sentence's sound with its words."""

    def __init__(self, samples: Floats, words: tuple[Word, ...]) -> None:
        self.samples = samples
        self.words = words
        self.pitch = _pitch(samples)
        rest = len(samples) // HOP * HOP
        self.levels: Floats = 10 * np.log10((samples[:rest].reshape(-1, HOP) ** 2).mean(axis=1) + 1e-12)

    def edges(self, join: int) -> tuple[int, int]:
        """Where the sound before the join ends and where that after it begins, in samples: around the longest silence
        between the middles of the two words; without a silence both are the place where the second word begins.
        """
        before, after = self.words[join - 1], self.words[join]
        low = (before.first + before.end) // 2 // HOP
        quiet = self.levels[low : (after.first + after.end) // 2 // HOP] < _SPEECH_DB
        start, longest, run = 0, 0, 0
        for index, silent in enumerate(quiet):
            run = run + 1 if silent else 0
            if run > longest:
                start, longest = index - run + 1, run
        if longest < _PAUSE:
            return after.first, after.first
        return (low + start) * HOP, (low + start + longest) * HOP

    def voiced(self, first: int, end: int) -> Floats:
        """The pitch where there is one, between two samples."""
        found = self.pitch[first // HOP : max(first // HOP + 1, end // HOP)]
        return found[~np.isnan(found)]

    def mel(self, positions: npt.NDArray[np.int64]) -> Floats:
        """`[positions, bands]`, dB, above -80 dB."""
        padded = np.pad(self.samples, (512, 1024))
        places = np.clip(positions, 0, len(self.samples))
        windows = np.stack([padded[place : place + 1024] for place in places]) * np.hanning(1024)
        power = np.abs(np.fft.rfft(windows, axis=1)) ** 2 @ _mel_bank().T
        result: Floats = 10 * np.log10(power + 1e-3)
        return result


@dataclass(frozen=True, slots=True)
class JoinError:
    """One join against the sentence spoken in one call."""

    pitch_step: float  # difference of the steps of pitch over the join
    pitch_after: float  # root mean square over the four words after it
    pitch_offset: float  # mean over them
    pitch_before: float  # root mean square over the three words before it
    level_step: float  # difference of the steps of level over the join
    mel: float  # root mean square over ten frames each side
    pause: float  # how much longer the silence is
    last_word: float  # length of the word before it, as a share of what it has in one call
    first_word: float


def compare(joined: Speech, whole: Speech, join: int) -> JoinError:
    """Judge the join before word `join`."""
    edges, wanted = joined.edges(join), whole.edges(join)
    after, before = range(join, join + 4), range(join - 3, join)
    pitch_after = _pitch_errors(joined, whole, after)
    pitch_before = _pitch_errors(joined, whole, before)
    near = np.arange(_NEAR) * _FRAME
    mel = [
        s.mel(np.concatenate([e[0] - _FRAME - near[::-1], e[1] + near])) for s, e in ((joined, edges), (whole, wanted))
    ]
    return JoinError(
        abs(_pitch_step(joined, join) - _pitch_step(whole, join)),
        float(np.sqrt(np.mean(pitch_after**2))) if len(pitch_after) else np.nan,
        float(np.mean(pitch_after)) if len(pitch_after) else np.nan,
        float(np.sqrt(np.mean(pitch_before**2))) if len(pitch_before) else np.nan,
        abs(_level_step(joined, edges) - _level_step(whole, wanted)),
        float(np.sqrt(((mel[0] - mel[1]) ** 2).mean())),
        ((edges[1] - edges[0]) - (wanted[1] - wanted[0])) * 1000 / RATE,
        (edges[0] - joined.words[join - 1].first) / max(1, wanted[0] - whole.words[join - 1].first),
        (joined.words[join].end - edges[1]) / max(1, whole.words[join].end - wanted[1]),
    )


def mean_error(errors: list[JoinError]) -> JoinError:
    """The mean of each measure, over the joins where it could be taken."""
    return JoinError(*(float(np.nanmean([getattr(e, f.name) for e in errors])) for f in fields(JoinError)))


def _pitch_step(speech: Speech, join: int) -> float:
    before, after = (speech.voiced(word.first, word.end) for word in speech.words[join - 1 : join + 1])
    if min(len(before), len(after)) < 3:
        return np.nan
    return float(np.median(after[:12]) - np.median(before[-12:]))


def _pitch_errors(joined: Speech, whole: Speech, words: range) -> Floats:
    """Eight values a word, evenly over where it is voiced."""
    errors: list[Floats] = []
    places = np.linspace(0, 1, 8)
    for index in words:
        if 0 <= index < len(whole.words):
            a, b = (s.voiced(s.words[index].first, s.words[index].end) for s in (joined, whole))
            if min(len(a), len(b)) >= 4:
                a, b = (np.interp(places, np.linspace(0, 1, len(track)), track) for track in (a, b))
                errors.append(a - b)
    return np.concatenate(errors) if errors else np.empty(0)


def _level_step(speech: Speech, edges: tuple[int, int]) -> float:
    """From the 60 ms before a join to the 60 ms after it."""
    end, first = edges[0] // HOP, edges[1] // HOP
    before, after = speech.levels[max(0, end - 12) : end], speech.levels[first : first + 12]
    return float(10 * np.log10((10 ** (after / 10)).mean()) - 10 * np.log10((10 ** (before / 10)).mean()))


def _pitch(samples: Floats) -> Floats:
    """Semitones above 200 Hz every 5 ms, by autocorrelation; NaN where nothing is voiced."""
    padded = np.pad(samples, (_WINDOW // 2, _WINDOW))
    windows = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[: len(samples) : HOP]
    shortest, longest = int(RATE / _HIGHEST), int(RATE / _LOWEST)
    power = (windows**2).mean(axis=1)
    shaped = (windows - windows.mean(axis=1, keepdims=True)) * np.hanning(_WINDOW)
    correlation = np.fft.irfft(np.abs(np.fft.rfft(shaped, 2 * _WINDOW, axis=1)) ** 2, axis=1)
    lags = np.arange(shortest, longest)
    found = correlation[:, lags] / (1 - lags / _WINDOW) / (correlation[:, :1] + 1e-12)
    result = np.full(len(windows), np.nan)
    for index in np.flatnonzero((power > 10 ** ((_SPEECH_DB + 12) / 10)) & (found.max(axis=1) > _VOICED)):
        row = found[index]
        lag = int(np.flatnonzero(row > 0.85 * row.max())[0])  # the shortest good period, no multiple of it
        while lag + 1 < len(row) and row[lag + 1] > row[lag]:
            lag += 1
        result[index] = 12 * np.log2(RATE / (lag + shortest) / 200)
    return result


@lru_cache(maxsize=1)
def _mel_bank() -> Floats:
    """Triangles from 60 Hz to 7.6 kHz, `[bands, bins]` of a transform of 1024 samples."""
    frequencies = np.fft.rfftfreq(1024, 1 / RATE)
    mels = np.linspace(_to_mel(60.0), _to_mel(7600.0), _BANDS + 2)
    corners = 700 * (10 ** (mels / 2595) - 1)
    low, middle, high = (corners[i : i + _BANDS, None] for i in range(3))
    rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
    bank: Floats = np.clip(np.minimum(rising, falling), 0, None)
    return bank


def _to_mel(hertz: float) -> float:
    return float(2595 * np.log10(1 + hertz / 700))
