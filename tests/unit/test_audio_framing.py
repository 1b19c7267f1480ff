"""Cutting PCM into frames."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.audio.framing import PcmFramer

PCM = bytes(i * 7 % 251 for i in range(2000))


@given(size=st.integers(1, 300), cuts=st.lists(st.integers(0, 1000), max_size=15))
def test_frames_are_the_timeline_in_order(size: int, cuts: list[int]) -> None:
    framer = PcmFramer(size)
    frames: list[memoryview] = []
    for begin, end in itertools.pairwise([0, *sorted(cuts), 1000]):
        frames += framer.push(PCM[2 * begin : 2 * end])
        assert framer.held_samples < size
    assert all(len(frame) == 2 * size for frame in frames)
    frames += framer.flush()
    assert b"".join(frames) == PCM
    assert len(frames) == -(-1000 // size)
    assert framer.held_samples == 0
    assert framer.flush() == []


@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=8), piece=st.integers(1, 200))
def test_frames_change_length_on_the_way(sizes: list[int], piece: int) -> None:
    framer = PcmFramer(300)
    turns = itertools.cycle(sizes)
    frames: list[memoryview] = []
    for begin in range(0, 2000, 2 * piece):
        size = next(turns)
        framer.set_frame_samples(size)
        assert framer.frame_samples == size
        new = framer.push(PCM[begin : begin + 2 * piece])
        assert all(len(frame) == 2 * size for frame in new)
        frames += new
    assert b"".join([*frames, *framer.flush()]) == PCM


def test_flush_after_frames_became_shorter() -> None:
    framer = PcmFramer(100)
    assert framer.push(PCM[:180]) == []
    framer.set_frame_samples(40)
    assert [len(frame) for frame in framer.flush()] == [80, 80, 20]


def test_frames_inside_a_piece_are_not_copied() -> None:
    framer = PcmFramer(100)
    first, second = framer.push(PCM[:500])
    assert first.obj is second.obj
    assert framer.held_samples == 50


def test_misuse_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        PcmFramer(0)
    with pytest.raises(ValueError, match="3 bytes"):
        PcmFramer(10).push(b"abc")
