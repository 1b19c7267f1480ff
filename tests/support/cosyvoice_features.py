"""What other programs compute of a signal, for the tests of our features: torchaudio's Kaldi filter bank, transformers'
Whisper features, and the flow's mel of transformers' spectrogram and filters.

`python -m tests.support.cosyvoice_features` compares our own with them and, with `--write`, keeps theirs for the tests,
which need neither program. It wants `pip install torchaudio transformers` of the versions that fit the installed torch.
"""

import importlib
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from server.engines.cosyvoice.voice.features import Floats, flow_mel, speaker_features, speech_features

FILE: Final = Path(__file__).parents[1] / "data" / "cosyvoice" / "features.npz"
TOPS: Final[dict[str, float | None]] = {"mel_8000": 8000.0, "mel": None}


def signal(rate: int, seconds: float = 0.6) -> Floats:
    """A rising buzz that swells and fades, with some noise of its own in it; silent at the end."""
    time = np.arange(round(seconds * rate)) / rate
    phase = 2 * np.pi * (120 * time + 60 * time**2)
    buzz = sum(np.sin(n * phase) / n for n in range(1, 24))
    hiss = np.sin(1e4 * np.sin(97.0 * np.arange(len(time))))
    swell = np.clip(np.sin(np.pi * time / (0.8 * seconds)), 0, None)
    samples: Floats = (swell * (0.2 * buzz + 0.02 * hiss)).astype(np.float32)
    return samples


def ours() -> dict[str, Floats]:
    """Each of our features of the signal."""
    mels = {name: flow_mel(signal(24_000), top) for name, top in TOPS.items()}
    return {"speech": speech_features(signal(16_000)), "speaker": speaker_features(signal(16_000)), **mels}


def theirs() -> dict[str, Floats]:
    """The same by the other programs."""
    kaldi: Any = importlib.import_module("torchaudio.compliance.kaldi")
    transformers: Any = importlib.import_module("transformers")
    tools: Any = importlib.import_module("transformers.audio_utils")
    speech = signal(16_000)
    bank = kaldi.fbank(torch.from_numpy(speech)[None], num_mel_bins=80, dither=0, sample_frequency=16_000)
    whisper = transformers.WhisperFeatureExtractor(feature_size=128)
    told = {
        "speech": whisper(speech, sampling_rate=16_000, padding="do_not_pad", return_tensors="np").input_features,
        "speaker": (bank - bank.mean(dim=0, keepdim=True)).numpy(),
    }
    for name, top in TOPS.items():
        filters = tools.mel_filter_bank(961, 80, 0.0, top or 12_000.0, 24_000, norm="slaney", mel_scale="slaney")
        window = tools.window_function(1920, "hann", periodic=True)
        padded = np.pad(signal(24_000), 720, mode="reflect")
        power = tools.spectrogram(padded, window, 1920, 480, power=2.0, center=False)
        told[name] = np.log(np.maximum(np.sqrt(power + 1e-9).T @ filters, 1e-5)).astype(np.float32)
    return told


def main() -> None:
    """Compare, and write if asked to."""
    own, reference = ours(), theirs()
    for name, values in reference.items():
        far = np.abs(values - own[name]).max()
        sys.stdout.write(f"{name:10} {values.shape!s:16} largest difference {far:.2g}\n")
    if "--write" in sys.argv[1:]:
        np.savez_compressed(FILE, **reference)  # type: ignore[arg-type]
        sys.stdout.write(f"{FILE}: {FILE.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
