"""The vocoders' networks: against the reference vectors, and their parts against the same written out plainly."""

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from server.engines.cosyvoice.config import ModelVersion, VocoderConfig
from server.engines.cosyvoice.synthetic import full, read_manifest, state_by_rule, tiny
from server.engines.cosyvoice.vocoder.causal import CausalHift, CausalUpsample
from server.engines.cosyvoice.vocoder.hift import Hift
from server.engines.cosyvoice.vocoder.layers import Tails
from server.engines.cosyvoice.vocoder.source import Source, draw_noise
from server.engines.cosyvoice.vocoder.spectrum import Spectrum
from server.engines.cosyvoice.vocoder.streaming import make_network
from server.engines.cosyvoice.weights import fold_weight_norm

VECTORS = Path(__file__).parents[2] / "data" / "cosyvoice"
WAVE = 1e-3

Golden = dict[str, npt.NDArray[np.float32]]


def golden(version: ModelVersion) -> Golden:
    with np.load(VECTORS / f"cosyvoice{version}_golden.npz") as found:
        return {name: found[name] for name in found.files if name.startswith("hift_")}


def reference_network(version: ModelVersion) -> Hift | CausalHift:
    entries = read_manifest(VECTORS / f"cosyvoice{version}_manifest.json")["hift"]
    network = make_network(tiny(version).vocoder)
    network.load_state_dict(fold_weight_norm(state_by_rule("hift", entries)))
    return network


def apart(found: Tensor, expected: npt.NDArray[np.float32]) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found.numpy() - expected).max())


@pytest.fixture(scope="module")
def two() -> Hift:
    network = reference_network(2)
    assert isinstance(network, Hift)
    return network


@pytest.fixture(scope="module")
def three() -> CausalHift:
    network = reference_network(3)
    assert isinstance(network, CausalHift)
    return network


@pytest.mark.parametrize("name", ["two", "three"])
def test_f0_source_and_wave_are_the_reference(name: str, request: pytest.FixtureRequest) -> None:
    network: Hift | CausalHift = request.getfixturevalue(name)
    vectors = golden(network.config.version)
    mel = torch.from_numpy(vectors["hift_mel"])

    f0 = network.f0(mel)
    assert apart(f0, vectors["hift_f0"]) < 1e-5
    assert apart(network.source(f0), vectors["hift_source"]) < 1e-5
    assert apart(network.decode(mel, torch.from_numpy(vectors["hift_source"])), vectors["hift_wav"]) < WAVE
    wave, source = network.inference(mel)
    assert apart(wave, vectors["hift_wav"]) < WAVE
    assert apart(source, vectors["hift_source"]) < 1e-5


def test_a_chunk_of_version_2_goes_on_with_the_source_of_the_last_one(two: Hift) -> None:
    vectors = golden(2)
    mel = torch.from_numpy(vectors["hift_mel"])

    wave, source = two.inference(mel[:, :, :40])
    assert apart(wave, vectors["hift_chunk1"]) < WAVE
    assert apart(two.inference(mel[:, :, 32:], source[:, :, -3840:])[0], vectors["hift_chunk2"]) < WAVE


def test_a_chunk_of_version_3_that_is_not_the_last_looks_ahead(three: CausalHift) -> None:
    vectors = golden(3)
    wave, _ = three.inference(torch.from_numpy(vectors["hift_mel"][:, :, :40]), final=False)
    assert apart(wave, vectors["hift_chunk1"]) < WAVE


@pytest.mark.parametrize("version", [2, 3])
def test_official_checkpoints_have_the_keys_and_shapes_of_the_network(version: ModelVersion) -> None:
    entries = read_manifest(VECTORS / f"cosyvoice{version}_full_manifest.json")["hift"]
    expected = {
        key.replace(".parametrizations.weight.original1", ".weight"): entry.shape
        for key, entry in entries.items()
        if not key.endswith(".original0")
    }
    with torch.device("meta"):
        network = make_network(full(version).vocoder)
    assert {key: tuple(value.shape) for key, value in network.state_dict().items()} == expected


def plain_source(config: VocoderConfig, weight: Tensor, bias: Tensor, f0: Tensor) -> Tensor:
    """As upstream describes it: f0 of samples, brought down to frames, summed up and brought up again; in fp64."""
    scale = 480
    hz = f0.double().repeat_interleave(scale, 1)[:, None] * torch.arange(1, config.harmonics + 2)[:, None]
    turns = functional.interpolate((hz / config.sample_rate) % 1, scale_factor=1 / scale, mode="linear")
    phase = torch.cumsum(turns, 2) * 2 * math.pi * scale
    if config.version == 2:
        phase = functional.interpolate(phase, scale_factor=scale, mode="linear")
    else:
        phase = functional.interpolate(phase, scale_factor=scale, mode="nearest")
    voiced = (f0 > config.voiced_above).repeat_interleave(scale, 1)[:, None]
    sines = config.sine_level * phase.sin() * voiced
    return torch.tanh((sines * weight.double()[0][:, None]).sum(1) + bias.double()).float()


@pytest.mark.parametrize("version", [2, 3])
def test_a_voiced_source_is_the_plain_formula_at_any_length(version: ModelVersion) -> None:
    config = tiny(version).vocoder
    source = Source(config)
    generator = torch.Generator().manual_seed(version)
    source.l_linear.weight.copy_(torch.randn(1, 9, generator=generator))
    source.l_linear.bias.fill_(0.01)
    f0 = torch.rand(2, 400, generator=generator) * 300
    f0[:, 100:130] = 3.0  # unvoiced
    f0[1, 7] = 3_000.0  # its last harmonics turn more than once a sample

    found = source(f0, source.advance(f0, torch.zeros(2).double()), None)
    assert torch.allclose(found, plain_source(config, source.l_linear.weight, source.l_linear.bias, f0), atol=1e-4)


@pytest.mark.parametrize("version", [2, 3])
def test_a_sources_noise_has_the_mean_and_the_deviation_of_harmonics_drawn_apart(version: ModelVersion) -> None:
    config = tiny(version).vocoder
    source = Source(config)
    weight = torch.linspace(-0.2, 0.6, 9)
    source.l_linear.weight.copy_(weight[None])
    source.l_linear.bias.zero_()
    f0 = torch.zeros(1, 200)  # unvoiced
    noise = torch.from_numpy(draw_noise(5, 0, 200, 480))[None]

    found = torch.atanh(source(f0, f0.double(), noise))
    generator = torch.Generator().manual_seed(1)
    apart_ = torch.rand if version == 3 else torch.randn
    expected = (apart_(96_000, 9, generator=generator) * weight).sum(1) * config.sine_level / 3
    assert found.mean().item() == pytest.approx(expected.mean().item(), abs=4e-4)
    assert found.std().item() == pytest.approx(expected.std().item(), rel=0.02)


def test_noise_is_normal_and_depends_on_the_seed_and_the_frame_alone() -> None:
    whole = draw_noise(7, 0, 100, 480)
    assert np.array_equal(draw_noise(7, 30, 20, 480), whole[30 * 480 : 50 * 480])
    assert not np.array_equal(draw_noise(8, 0, 100, 480), whole)
    assert abs(whole.mean()) < 0.02
    assert whole.std() == pytest.approx(1, abs=0.02)
    frames = whole.reshape(100, 480)
    assert abs((frames[1:] * frames[:-1]).mean()) < 0.02
    assert np.array_equal(draw_noise(-1, 0, 1, 480), draw_noise((1 << 64) - 1, 0, 1, 480))


def test_the_transforms_are_those_of_torch() -> None:
    spectrum = Spectrum(16, 4, torch.device("cpu"))
    samples = torch.randn(2, 480, generator=torch.Generator().manual_seed(0))
    window = torch.hann_window(16)
    expected = torch.stft(samples, 16, 4, window=window, return_complex=True)

    columns = spectrum.analyse(samples, first=True)
    assert torch.allclose(columns, torch.cat([expected.real, expected.imag], 1), atol=1e-5)
    # What is no transform of any signal, too: the ends are scaled as torch does it.
    columns = torch.randn(columns.shape, generator=torch.Generator().manual_seed(1))
    expected = torch.istft(torch.complex(columns[:, :9], columns[:, 9:]), 16, 4, window=window)
    whole = spectrum.synthesise(columns, first=True, last=True)
    assert torch.allclose(whole, expected, atol=1e-5)

    pieces = [spectrum.synthesise(columns[:, :, :50], first=True, last=False)]
    pieces.append(spectrum.synthesise(columns[:, :, 47:90], first=False, last=False))
    pieces.append(spectrum.synthesise(columns[:, :, 87:], first=False, last=True))
    assert torch.allclose(torch.cat(pieces, 1), whole, atol=1e-5)
    with pytest.raises(ValueError, match="multiple of twice the hop"):
        Spectrum(16, 5, torch.device("cpu"))


@pytest.mark.parametrize(("kernel", "rate"), [(16, 8), (11, 5), (7, 3), (4, 4), (3, 1)])
def test_upsampling_at_the_lower_rate_is_the_convolution_of_repeated_samples(kernel: int, rate: int) -> None:
    generator = torch.Generator().manual_seed(kernel)
    layer = CausalUpsample(6, 4, kernel, rate)
    layer.weight.copy_(torch.randn(4, 6, kernel, generator=generator))
    layer.bias.copy_(torch.randn(4, generator=generator))
    x = torch.randn(2, 6, 20, generator=generator)

    repeated = functional.pad(x.repeat_interleave(rate, 2), (kernel - 1, 0))
    expected = functional.conv1d(repeated, layer.weight, layer.bias)
    tails = Tails(torch.zeros(2, layer.tail))
    pieces = [layer(x[:, :, :7], tails)]
    pieces.append(layer(x[:, :, 7:], Tails(tails.after)))
    assert torch.allclose(torch.cat(pieces, 2), expected, atol=1e-5)


def test_what_follows_from_weights_follows_new_ones(three: CausalHift) -> None:
    network = reference_network(3)
    mel = torch.from_numpy(golden(3)["hift_mel"])
    before = network.inference(mel)[0]

    changed = {k: v * 1.2 for k, v in network.state_dict().items()}
    network.load_state_dict(changed)
    fresh = make_network(network.config)
    fresh.load_state_dict(changed)
    assert torch.equal(network.inference(mel)[0], fresh.inference(mel)[0])
    assert not torch.allclose(network.inference(mel)[0], before, atol=1e-3)


def test_a_shorter_type_leaves_f0_and_the_source_as_they_are(three: CausalHift) -> None:
    network = reference_network(3).to(torch.bfloat16)
    vectors = golden(3)
    mel = torch.from_numpy(vectors["hift_mel"])

    assert network.conv_pre.weight.dtype == torch.bfloat16
    assert apart(network.f0(mel), vectors["hift_f0"]) < 1e-5
    wave, source = network.inference(mel)
    assert apart(source, vectors["hift_source"]) < 1e-5
    assert wave.dtype == torch.float32
    assert bool(wave.isfinite().all())


def test_lists_of_different_lengths_are_refused() -> None:
    config = tiny(2).vocoder
    with pytest.raises(ValueError, match="differ in length"):
        make_network(VocoderConfig(**{**{f: getattr(config, f) for f in config.__slots__}, "source_kernels": (7,)}))
