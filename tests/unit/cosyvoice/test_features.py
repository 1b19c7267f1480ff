"""What the models of a voice hear, against what other programs made of the same signal."""

import numpy as np
import pytest

from server.engines.cosyvoice.voice.features import flow_mel, speaker_features, speech_features
from tests.support.cosyvoice_features import FILE, ours, signal


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("speech", 1e-5),  # transformers' WhisperFeatureExtractor
        ("speaker", 1e-3),  # torchaudio's Kaldi filter bank: its own float32 FFT, and logarithms of almost nothing
        ("mel", 1e-4),  # transformers' spectrogram and filters
        ("mel_8000", 1e-4),
    ],
)
def test_features_are_those_of_other_programs(name: str, bound: float) -> None:
    with np.load(FILE) as theirs:
        mine, reference = ours()[name], theirs[name]
    assert mine.shape == reference.shape
    assert mine.dtype == np.float32
    assert reference.std() > 0.1
    assert np.abs(mine - reference).max() < bound


@pytest.mark.parametrize("samples", [48_000, 48_159, 48_479])
def test_lengths(samples: int) -> None:
    heard = np.resize(signal(16_000), samples)
    assert speech_features(heard).shape == (1, 128, samples // 160)
    assert speaker_features(heard).shape == ((samples - 400) // 160 + 1, 80)
    assert flow_mel(heard, None).shape == (samples // 480, 80)


def test_the_top_of_the_bins_matters() -> None:
    assert np.abs(flow_mel(signal(24_000), None) - flow_mel(signal(24_000), 8000.0)).max() > 0.1
