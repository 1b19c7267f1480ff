"""The vocoder as frames come: however they are cut, whatever they are packed with, and at the joins."""

import math
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from server.engines.cosyvoice.config import ModelVersion
from server.engines.cosyvoice.synthetic import fill_randomly, tiny
from server.engines.cosyvoice.vocoder import streaming
from server.engines.cosyvoice.vocoder.streaming import Vocoder, VocoderState, make_network

EXACT = 1e-4


def make(version: ModelVersion, *, far: bool = False) -> Vocoder:
    """A small vocoder that voices; `far`: with the kernels of the official ones, which reach far."""
    config = replace(tiny(version).vocoder, base_channels=16)
    if far:
        dilations = ((1, 3, 5),) * 3
        config = replace(config, kernels=(3, 7, 11), dilations=dilations, source_dilations=dilations)
    network = make_network(config)
    fill_randomly(network, 1)
    with torch.inference_mode():
        network.f0_predictor.classifier.weight.mul_(30)
        network.f0_predictor.classifier.bias.fill_(150.0)
        network.m_source.l_linear.weight.fill_(0.5)
        for name, value in network.named_parameters():
            if "convs2" in name and value.dim() == 3:
                value.mul_(0.5)
        vocoder = Vocoder(network)
        network.conv_post.bias[:9].sub_(3.0)  # far below the limit
        network.conv_post.bias[:9].add_(math.log(0.05 / vocoder.whole(mel_of(70), 3).std().item()))
    return vocoder


def mel_of(frames: int, seed: int = 0) -> Tensor:
    """Something like a logarithmic spectrogram: smooth in time, far from zero."""
    generator = torch.Generator().manual_seed(seed)
    rough = torch.randn(1, 80, frames // 4 + 2, generator=generator)
    smooth = torch.nn.functional.interpolate(rough, size=frames, mode="linear")[0].T
    return smooth + 0.3 * torch.randn(frames, 80, generator=generator) - 1.0


def pushed(vocoder: Vocoder, mel: Tensor, lengths: list[int], seed: int = 3, *, patient: bool = False) -> list[Tensor]:
    state = vocoder.start(seed, patient=patient)
    edges = list(accumulate(lengths, initial=0))
    assert edges[-1] == len(mel)
    return [vocoder.push(state, mel[a:b], n == len(lengths)) for n, (a, b) in enumerate(pairwise(edges), 1)]


def decibels(found: Tensor, expected: Tensor) -> float:
    return float(20 * torch.log10((found - expected).pow(2).mean().sqrt() / expected.pow(2).mean().sqrt()))


CUTS = [[70], [30, 30, 10], [1] * 70, [4, 1, 1, 3, 50, 2, 9], [66, 4], [69, 1]]


@pytest.fixture(scope="module")
def two() -> Vocoder:
    return make(2)


@pytest.fixture(scope="module")
def far_two() -> Vocoder:
    return make(2, far=True)


@pytest.fixture(scope="module")
def three() -> Vocoder:
    return make(3)


@pytest.mark.parametrize("cuts", CUTS, ids=lambda cuts: "+".join(map(str, cuts[:5])))
def test_version_3_is_the_whole_however_it_is_cut(three: Vocoder, cuts: list[int]) -> None:
    mel = mel_of(70)
    whole = three.whole(mel, 3)
    assert whole.shape == (70 * 480,)
    assert 0.01 < whole.std().item() < 0.5
    assert torch.allclose(torch.cat(pushed(three, mel, cuts)), whole, atol=EXACT)


def test_version_3_with_the_official_kernels_is_the_whole() -> None:
    vocoder, mel = make(3, far=True), mel_of(40)
    assert torch.allclose(torch.cat(pushed(vocoder, mel, [15, 20, 5])), vocoder.whole(mel, 3), atol=EXACT)


@pytest.mark.parametrize("cuts", CUTS, ids=lambda cuts: "+".join(map(str, cuts[:5])))
def test_version_2_gives_all_samples_however_it_is_cut(two: Vocoder, cuts: list[int]) -> None:
    mel = mel_of(70)
    whole = two.whole(mel, 3)
    found = torch.cat(pushed(two, mel, cuts))
    assert whole.shape == found.shape == (70 * 480,)
    assert 0.01 < whole.std().item() < 0.5
    assert decibels(found, whole) < -60  # small kernels: its windows see nearly all they need


def test_a_patient_version_2_is_the_whole(far_two: Vocoder) -> None:
    mel = mel_of(120)
    found = pushed(far_two, mel, [50, 50, 20], patient=True)
    assert torch.allclose(torch.cat(found), far_two.whole(mel, 3), atol=EXACT)
    assert all(len(samples) for samples in found)


@pytest.mark.parametrize("version", [2, 3])
def test_a_long_whole_is_made_in_pieces_that_nobody_can_tell(
    version: ModelVersion, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocoder: Vocoder = request.getfixturevalue("far_two" if version == 2 else "three")
    mel = mel_of(90)
    at_once = vocoder.whole(mel, 3)
    monkeypatch.setattr(streaming, "PIECE", 45)
    in_pieces = vocoder.whole(mel, 3)
    assert torch.allclose(in_pieces, at_once, atol=EXACT)
    assert not torch.equal(in_pieces[45 * 480 :], vocoder.whole(mel[45:], 3))


def high_band(samples: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
    """What is above 6 kHz, dB: where a step is heard as a click."""
    power = np.abs(np.fft.rfft(samples * np.hanning(len(samples)))) ** 2
    return float(10 * np.log10(power[len(power) // 2 :].sum()))


def test_joins_of_version_2_are_not_heard(far_two: Vocoder) -> None:
    mel = mel_of(150)
    whole = far_two.whole(mel, 3)
    pieces = pushed(far_two, mel, [30] * 5)
    found = torch.cat(pieces)

    assert decibels(found, whole) < -45
    for join in list(accumulate(map(len, pieces)))[:-1]:
        near, expected = (wave[join - 128 : join + 128].numpy() for wave in (found, whole))
        assert abs(high_band(near) - high_band(expected)) < 1
        step, usual = float(abs(found[join] - found[join - 1])), expected[1:] - expected[:-1]
        assert step < 4 * float(np.abs(usual).max())
        assert abs(step - float(abs(whole[join] - whole[join - 1]))) < 0.02 * float(whole.abs().max())


@pytest.mark.parametrize("version", [2, 3])
def test_neighbours_make_no_difference(version: ModelVersion, request: pytest.FixtureRequest) -> None:
    vocoder: Vocoder = request.getfixturevalue("two" if version == 2 else "three")
    lengths = [[20, 20, 20], [20, 20, 20], [3, 20, 37], [20, 40, 0], [0, 0, 60]]
    mels = [mel_of(60, seed) for seed in range(5)]
    alone = [
        torch.cat(pushed(vocoder, m, cuts, seed)) for seed, (m, cuts) in enumerate(zip(mels, lengths, strict=True))
    ]

    states: list[VocoderState] = [vocoder.start(seed) for seed in range(5)]
    together: list[list[Tensor]] = [[] for _ in states]
    for turn in range(3):
        items = []
        for state, mel, cuts in zip(states, mels, lengths, strict=True):
            begin = sum(cuts[:turn])
            items.append((state, mel[begin : begin + cuts[turn]], turn == 2))
        for got, samples in zip(together, vocoder.push_many(items), strict=True):
            got.append(samples)
    for got, expected in zip(together, alone, strict=True):
        assert torch.allclose(torch.cat(got), expected, atol=EXACT)


@pytest.mark.parametrize("version", [2, 3])
def test_little_is_held_back(version: ModelVersion, request: pytest.FixtureRequest) -> None:
    vocoder: Vocoder = request.getfixturevalue("two" if version == 2 else "three")
    first = pushed(vocoder, mel_of(40), [30, 10])[0]
    assert vocoder.held_back == (8 if version == 2 else 5)
    assert (30 - vocoder.held_back) * 480 <= len(first) < (31 - vocoder.held_back) * 480


@pytest.mark.parametrize("version", [2, 3])
def test_a_state_does_not_grow_and_shares_nothing_with_a_batch(
    version: ModelVersion, request: pytest.FixtureRequest
) -> None:
    vocoder: Vocoder = request.getfixturevalue("two" if version == 2 else "three")
    states = [vocoder.start(seed) for seed in range(4)]
    sizes = []
    for _ in range(5):
        vocoder.push_many([(state, mel_of(20), False) for state in states])
        sizes.append(states[0].bytes)
    assert sizes[1] == sizes[4] < 50_000
    held = [value for name in states[0].__slots__ if isinstance(value := getattr(states[0], name), Tensor)]
    assert sum(value.nbytes for value in held) == sizes[4]
    assert all(value.untyped_storage().nbytes() == value.nbytes for value in held)


@pytest.mark.parametrize("version", [2, 3])
def test_seeds_change_the_noise(version: ModelVersion, request: pytest.FixtureRequest) -> None:
    vocoder: Vocoder = request.getfixturevalue("two" if version == 2 else "three")
    mel = mel_of(20)
    assert torch.equal(vocoder.whole(mel, 1), vocoder.whole(mel, 1))
    assert not torch.allclose(vocoder.whole(mel, 1), vocoder.whole(mel, 2), atol=1e-4)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("frames", [0, 1, 2, 5])
def test_the_shortest_utterances_have_their_samples(
    version: ModelVersion, frames: int, request: pytest.FixtureRequest
) -> None:
    vocoder: Vocoder = request.getfixturevalue("two" if version == 2 else "three")
    mel = mel_of(20)[:frames]
    whole = vocoder.whole(mel, 1)
    assert whole.shape == (480 * frames,)
    assert torch.allclose(torch.cat(pushed(vocoder, mel, [frames, 0], seed=1)), whole, atol=EXACT)


def test_what_is_no_mel_and_what_comes_too_late_is_refused(three: Vocoder) -> None:
    state = three.start(1)
    with pytest.raises(ValueError, match=r"a mel must be \[frames, 80\], not \[80, 10\]"):
        three.push(state, torch.zeros(80, 10), False)
    three.push(state, mel_of(10), True)
    with pytest.raises(ValueError, match="after the last ones"):
        three.push(state, mel_of(10), True)
