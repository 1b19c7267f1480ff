"""The short transforms at both ends of the vocoder, as products with a matrix: frames of 16 samples are too short for
an FFT to pay, and only so can they begin and end anywhere.

Column `c` of a spectrum is centred at sample `hop * c`; a whole signal of `hop * n` samples has `n + 1` columns.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional


class Spectrum:
    """Transforms with a periodic Hann window of `n_fft` samples each `hop` (a divisor); `2 * bins` rows: the real
    parts, then the imaginary ones.
    """

    def __init__(self, n_fft: int, hop: int, device: torch.device) -> None:
        if n_fft % (2 * hop):
            raise ValueError(f"n_fft must be a multiple of twice the hop: {n_fft}, {hop}")
        self.n_fft, self.hop, self.bins = n_fft, hop, n_fft // 2 + 1
        self.overlap = n_fft // hop  # columns that a sample lies in
        time = torch.arange(n_fft, dtype=torch.float64)
        angle = 2 * math.pi * time * torch.arange(self.bins, dtype=torch.float64)[:, None] / n_fft
        window = 0.5 - 0.5 * torch.cos(2 * math.pi * time / n_fft)
        forward = torch.cat([angle.cos(), -angle.sin()]) * window
        # Every bin but the first and the last stands for its mirror image, too.
        twice = torch.full((self.bins, 1), 2.0, dtype=torch.float64)
        twice[0] = twice[-1] = 1.0
        backward = torch.cat([twice * angle.cos(), -twice * angle.sin()]) * window / n_fft
        self._forward = forward.float()[:, None].to(device)
        self._backward = backward.float().T.contiguous().to(device)
        self.device = device
        self._envelope = window.square().float()[:, None].to(device)

    def analyse(self, samples: Tensor, *, first: bool) -> Tensor:
        """Columns `[B, 2 bins, n]` of `[B, samples]`. With `first` they begin with column 0, the signal mirrored
        before it; else with the first column that lies in the samples, `overlap / 2` after theirs. At the end it is
        mirrored.
        """
        half = self.n_fft // 2
        padded = functional.pad(samples[:, None], (half if first else 0, half), mode="reflect")
        return functional.conv1d(padded, self._forward, stride=self.hop)

    def synthesise(self, columns: Tensor, *, first: bool, last: bool) -> Tensor:
        """Samples of `[B, 2 bins, n]`, fp32. Let `c` be the number of the first column and `e` that behind the last:
        from sample 0 with `first` (c = 0), else from `hop (c + overlap - 1) - n_fft / 2`, up to `hop (e - 1)` with
        `last`, else `hop e - n_fft / 2`: those that nothing more can be added to.
        """
        more = self.overlap // 2 - 1 if last else 0
        frames = torch.matmul(self._backward, columns)
        if not first and not last:
            return self._add(frames)[:, self.hop * (self.overlap - 1) :] / (1.5 * self.overlap / 4)
        if more:
            frames = functional.pad(frames, (0, more))
        envelope = self._envelope.expand(1, self.n_fft, columns.shape[2])
        samples = self._add(frames) / self._add(functional.pad(envelope, (0, more)))
        return samples[:, self.n_fft // 2 if first else self.hop * (self.overlap - 1) :]

    def _add(self, frames: Tensor) -> Tensor:
        """Overlap and add `[B, n_fft, n]`: the first `hop n` samples."""
        batch, _, length = frames.shape
        parts = frames.view(batch, self.overlap, self.hop, length)
        total = parts[:, 0].clone()
        for late in range(1, min(self.overlap, length)):
            total[:, :, late:] += parts[:, late, :, : length - late]
        return total.transpose(1, 2).reshape(batch, length * self.hop)
