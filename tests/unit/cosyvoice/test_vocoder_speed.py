"""Speed: frames that come in pieces are stretched as the whole is."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from server.engines.cosyvoice.vocoder.speed import MelSpeed


def stretched(mel: Tensor, speed: float, lengths: list[int]) -> Tensor:
    changer = MelSpeed(speed)
    pieces, at = [], 0
    for length in lengths:
        pieces.append(changer.push(mel[at : at + length], False))
        at += length
    pieces.append(changer.push(mel[at:], True))
    return torch.cat(pieces)


def mel_of(frames: int) -> Tensor:
    return torch.randn(frames, 80, generator=torch.Generator().manual_seed(frames))


@given(
    speed=st.floats(0.25, 4.0),
    frames=st.integers(1, 200),
    lengths=st.lists(st.integers(0, 60), max_size=6),
)
def test_pieces_make_what_the_whole_makes(speed: float, frames: int, lengths: list[int]) -> None:
    mel = mel_of(frames)
    found = stretched(mel, speed, lengths)
    assert found.shape == (int(frames / speed), 80)
    assert torch.allclose(found, stretched(mel, speed, []), atol=1e-6)


@pytest.mark.parametrize("speed", [0.5, 0.8, 1.0, 1.25, 1.5, 2.0])
def test_the_whole_is_torchs_interpolation(speed: float) -> None:
    mel = mel_of(120)  # a multiple of every speed here
    expected = functional.interpolate(mel.T[None], size=int(120 / speed), mode="linear", align_corners=False)[0].T
    assert torch.allclose(stretched(mel, speed, [7, 30, 1]), expected, atol=1e-4)


@pytest.mark.parametrize("speed", [0.7, 1.1, 1.3, 1.9])
def test_a_length_that_does_not_divide_is_read_at_the_same_speed(speed: float) -> None:
    mel = mel_of(101)
    expected = functional.interpolate(mel.T[None], scale_factor=1 / speed, mode="linear", align_corners=False)[0].T
    assert torch.allclose(stretched(mel, speed, [50]), expected, atol=1e-4)


def test_frames_come_as_soon_as_both_that_they_are_made_of_are_there() -> None:
    changer = MelSpeed(0.8)
    assert len(changer.push(mel_of(25), False)) >= int(24 / 0.8)


@pytest.mark.parametrize("speed", [0.0, -1.0, float("nan"), float("inf")])
def test_what_is_no_speed_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="speed must be a number above 0"):
        MelSpeed(speed)
