"""What the models of a voice hear: Whisper's and the flow's mel spectrograms, and Kaldi's filter bank. Pure.

Each is what the models were trained on, down to the window and the floor under the logarithm.
"""

import functools
from typing import Final, TypeAlias

import kaldi_native_fbank as kaldi
import numpy as np
import numpy.typing as npt
import torch

Floats: TypeAlias = npt.NDArray[np.float32]

SPEECH_RATE: Final = 16_000
"""Hz: of what the speech tokenizer and the speaker model hear."""
MEL_RATE: Final = 24_000
"""Hz: of what the flow continues."""
_SPEECH_BINS: Final = 128
_SPEECH_WINDOW: Final = 400
_SPEECH_HOP: Final = 160
_SPEECH_RANGE: Final = 8.0  # decades below the loudest that are told apart
_MELS: Final = 80
_MEL_WINDOW: Final = 1920
_MEL_HOP: Final = 480
_LINEAR_BELOW: Final = 1000.0  # Hz: Slaney's mel scale is linear up to here, 15 mels, and logarithmic above
_HZ_PER_MEL: Final = 200.0 / 3.0
_LOG_STEP: Final = np.log(6.4) / 27.0


def speech_features(samples: Floats) -> Floats:
    """Whisper's log-mel of `[n]` samples at 16 kHz: `[1, 128, n // 160]`, for the speech tokenizer."""
    window = torch.hann_window(_SPEECH_WINDOW)
    signal = torch.from_numpy(np.ascontiguousarray(samples, np.float32))
    spectrum = torch.stft(signal, _SPEECH_WINDOW, _SPEECH_HOP, window=window, return_complex=True)
    power = spectrum[:, :-1].abs() ** 2
    mel = torch.clamp(_filters(_SPEECH_BINS, _SPEECH_WINDOW, SPEECH_RATE, None) @ power, min=1e-10).log10()
    mel = torch.maximum(mel, mel.max() - _SPEECH_RANGE)
    return _array((mel + 4.0) / 4.0)[np.newaxis]


def speaker_features(samples: Floats) -> Floats:
    """Kaldi's filter bank of `[n]` samples at 16 kHz, the mean of each bin taken off: `[frames, 80]`."""
    options = kaldi.FbankOptions()
    options.frame_opts.samp_freq = SPEECH_RATE
    options.frame_opts.dither = 0.0
    options.mel_opts.num_bins = _MELS
    bank = kaldi.OnlineFbank(options)
    bank.accept_waveform(SPEECH_RATE, np.ascontiguousarray(samples, np.float32))
    bank.input_finished()
    frames: Floats = np.stack([bank.get_frame(at) for at in range(bank.num_frames_ready)]).astype(np.float32)
    mean: Floats = frames.mean(axis=0, dtype=np.float64).astype(np.float32)
    return frames - mean


def flow_mel(samples: Floats, top_hz: float | None) -> Floats:
    """The log-mel of `[n]` samples at 24 kHz that the flow makes and continues: `[n // 480, 80]`. `top_hz`: where its
    highest bin ends; None: at half the rate.
    """
    signal = torch.from_numpy(np.ascontiguousarray(samples, np.float32))
    edge = (_MEL_WINDOW - _MEL_HOP) // 2
    padded = torch.nn.functional.pad(signal[None, None], (edge, edge), mode="reflect")[0, 0]
    window = torch.hann_window(_MEL_WINDOW)
    spectrum = torch.stft(padded, _MEL_WINDOW, _MEL_HOP, window=window, center=False, return_complex=True)
    size = torch.sqrt(torch.view_as_real(spectrum).pow(2).sum(-1) + 1e-9)
    mel = torch.clamp(_filters(_MELS, _MEL_WINDOW, MEL_RATE, top_hz) @ size, min=1e-5).log()
    return _array(mel.T)


def _array(tensor: torch.Tensor) -> Floats:
    array: Floats = np.ascontiguousarray(tensor.numpy(), np.float32)
    return array


@functools.lru_cache(maxsize=4)
def _filters(bins: int, window: int, rate: int, top_hz: float | None) -> torch.Tensor:
    """Triangles on Slaney's mel scale, each of area one: `[bins, window // 2 + 1]`."""
    edges = _hz(np.linspace(0.0, _mel(top_hz or rate / 2), bins + 2))
    frequencies = np.linspace(0.0, rate / 2, window // 2 + 1)
    widths = np.diff(edges)
    slopes = edges[:, np.newaxis] - frequencies[np.newaxis]
    rising, falling = -slopes[:-2] / widths[:-1, np.newaxis], slopes[2:] / widths[1:, np.newaxis]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return torch.from_numpy((triangles * (2.0 / (edges[2:] - edges[:-2]))[:, np.newaxis]).astype(np.float32))


def _mel(hz: float) -> float:
    if hz < _LINEAR_BELOW:
        return hz / _HZ_PER_MEL
    return float(_LINEAR_BELOW / _HZ_PER_MEL + np.log(hz / _LINEAR_BELOW) / _LOG_STEP)


def _hz(mels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    start = _LINEAR_BELOW / _HZ_PER_MEL
    return np.where(mels < start, mels * _HZ_PER_MEL, _LINEAR_BELOW * np.exp(_LOG_STEP * (mels - start)))
