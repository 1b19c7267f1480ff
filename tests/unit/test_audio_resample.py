"""The resampler against soxr's best quality, its stopband and its delay."""

import numpy as np
import numpy.typing as npt
import pytest
import soxr

from server.audio.resample import Resampler, scale_position

PAIRS = [
    (24_000, 48_000),
    (24_000, 44_100),
    (24_000, 22_050),
    (24_000, 16_000),
    (24_000, 12_000),
    (24_000, 8_000),
    (22_050, 24_000),
    (16_000, 44_100),
    (44_100, 48_000),
    (48_000, 8_000),
]


def band_limited(sample_rate: int, highest: float, samples: int) -> npt.NDArray[np.float32]:
    """Noise without anything above `highest` Hz, silent at both ends."""
    spectrum = np.fft.rfft(np.random.default_rng(5).standard_normal(samples))
    spectrum[np.fft.rfftfreq(samples, 1 / sample_rate) > highest] = 0
    sound = np.fft.irfft(spectrum, samples) * np.hanning(samples)
    return np.asarray(0.5 * sound / np.abs(sound).max(), np.float32)


def level_db(error: npt.NDArray[np.float32], signal: npt.NDArray[np.float32]) -> float:
    return float(10 * np.log10(np.mean(error.astype(float) ** 2) / np.mean(signal.astype(float) ** 2)))


@pytest.mark.parametrize(("in_rate", "out_rate"), PAIRS)
def test_equals_another_resampler(in_rate: int, out_rate: int) -> None:
    sound = band_limited(in_rate, 0.85 * min(in_rate, out_rate) / 2, in_rate // 2)
    expected = soxr.resample(sound, in_rate, out_rate, quality="VHQ")
    result = Resampler(in_rate, out_rate).process(sound, last=True)
    assert len(result) == len(expected) == scale_position(len(sound), in_rate, out_rate)
    assert level_db(result - expected, expected) < -85


@pytest.mark.parametrize(("in_rate", "out_rate"), [pair for pair in PAIRS if pair[1] < pair[0]])
def test_what_the_output_cannot_hold_is_gone(in_rate: int, out_rate: int) -> None:
    for part in (0.001, 0.3, 0.9):
        hertz = out_rate / 2 + part * (in_rate - out_rate) / 2
        sound = np.sin(2 * np.pi * hertz * np.arange(in_rate // 2) / in_rate).astype(np.float32)
        result = Resampler(in_rate, out_rate).process(sound)[out_rate // 20 :]  # past the abrupt beginning
        assert level_db(result, sound) < -88


@pytest.mark.parametrize(("in_rate", "out_rate"), [pair for pair in PAIRS if pair[1] > pair[0]])
def test_no_images(in_rate: int, out_rate: int) -> None:
    sound = band_limited(in_rate, 0.45 * in_rate, in_rate // 2)
    result = Resampler(in_rate, out_rate).process(sound, last=True)
    power = np.abs(np.fft.rfft(result.astype(float))) ** 2
    images = np.fft.rfftfreq(len(result), 1 / out_rate) > in_rate / 2
    assert 10 * np.log10(power[images].sum() / power.sum()) < -85


@pytest.mark.parametrize(("in_rate", "out_rate"), PAIRS)
def test_only_the_delay_is_held_back(in_rate: int, out_rate: int) -> None:
    resampler = Resampler(in_rate, out_rate)
    assert resampler.delay / in_rate <= 0.0075
    produced = 0
    for received in range(1, 2000):
        produced += len(resampler.process(np.zeros(1, np.float32)))
        ready = received - resampler.delay  # input positions below this one can be computed
        assert (produced - 1) * in_rate < max(0, ready) * out_rate or produced == 0
        assert produced * in_rate >= ready * out_rate


@pytest.mark.parametrize(("in_rate", "out_rate"), PAIRS)
def test_one_that_begins_late_needs_only_its_filters_reach(in_rate: int, out_rate: int) -> None:
    sound = band_limited(in_rate, in_rate / 2, 4000)
    whole = Resampler(in_rate, out_rate).process(sound, last=True)
    for start in (0, 1, 2, 147, 1000, len(whole) - 1, len(whole), len(whole) + 3, len(whole) + 9000):
        late = Resampler(in_rate, out_rate, start)
        assert 0 <= start * in_rate / out_rate - late.first_input <= late.delay
        assert np.array_equal(late.process(sound[late.first_input :], last=True), whole[start:])


def test_a_constant_keeps_its_level() -> None:
    result = Resampler(24_000, 44_100).process(np.full(24_000, 0.25, np.float32))
    assert np.abs(result[1000:-1000] - 0.25).max() < 1e-6


def test_positions_far_into_a_book_stay_exact() -> None:
    hours = 24_000 * 3600 * 1000
    assert scale_position(hours + 1, 24_000, 22_050) == hours * 22_050 // 24_000 + 1
    assert [scale_position(n, 2, 1) for n in range(5)] == [0, 1, 1, 2, 2]
