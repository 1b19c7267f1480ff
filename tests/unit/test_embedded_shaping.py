"""Fades and pauses: independent of how samples are cut into chunks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engines.embedded.shaping import HOP, fade_edges, pause_samples
from server.engines.embedded.transpose import reach, read_at


@given(st.integers(1, 3000), st.lists(st.integers(1, 700), max_size=8))
def test_fades_do_not_depend_on_the_cuts(total: int, lengths: list[int]) -> None:
    whole = np.ones(total, np.float32)
    parts, start = [], 0
    for length in [*lengths, total]:
        end = min(total, start + length)
        if end > start:
            parts.append(fade_edges(whole[start:end], start, total))
        start = end
    assert np.array_equal(np.concatenate(parts), fade_edges(whole, 0, total))


def test_fades_reach_down_at_both_ends_only() -> None:
    faded = fade_edges(np.ones(2400, np.float32), 0, 2400)
    assert faded[0] < 0.001
    assert faded[-1] < 0.001
    assert np.all(faded[120:-240] == 1)


def test_pauses_scale_with_speed_and_count_the_silence_already_there() -> None:
    assert pause_samples(400, 1.0, 0) == 9600
    assert pause_samples(400, 2.0, 0) == 4800
    assert pause_samples(400, 1.0, 5) == 9600 - 5 * HOP
    assert pause_samples(0, 1.0, 5) == 0


@pytest.mark.parametrize("ratio", [0.7, 1.3, 1.7])
def test_reading_at_another_speed_moves_a_tone_and_keeps_its_level(ratio: float) -> None:
    tone = np.sin(2 * np.pi * 440 / 24_000 * np.arange(24_000)).astype(np.float32)
    count = int(24_000 / ratio) - 1
    read = read_at(tone, 0, 0, count, ratio)
    inner = slice(200, count - 200)
    expected = np.sin(2 * np.pi * 440 * ratio / 24_000 * np.arange(count))
    assert np.abs(read[inner] - expected[inner]).max() < 5e-3


def test_reading_faster_does_not_fold_high_tones_over() -> None:
    tone = np.sin(2 * np.pi * 11_000 / 24_000 * np.arange(24_000)).astype(np.float32)
    assert np.abs(read_at(tone, 0, 500, 13_000, 1.7)).max() < 0.02


@given(st.floats(0.6, 1.8), st.integers(0, 5000), st.integers(1, 3000))
def test_parts_read_one_by_one_equal_the_whole(ratio: float, first: int, length: int) -> None:
    samples = np.random.default_rng(0).standard_normal(20_000).astype(np.float32)
    whole = read_at(samples, 0, 0, 8_000, ratio)
    low = max(0, int(first * ratio) - reach(ratio) - 1)
    high = int((first + length) * ratio) + reach(ratio) + 2
    part = read_at(samples[low:high], low, first, first + length, ratio)
    assert np.allclose(part, whole[first : first + length], atol=1e-5)
