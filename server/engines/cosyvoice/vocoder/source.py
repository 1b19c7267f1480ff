"""The source that the vocoder shapes into speech: sines of the fundamental and its harmonics, and noise.

A harmonic's phase grows by `480 h f0 / 24000` cycles a frame. It is counted in fp64 and kept below one cycle, so that a
long utterance is as exact as a short one. (Upstream also draws a first phase for each harmonic; its downsampling to
frames never reads it, so there is none here.)
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from server.engines.cosyvoice.config import VocoderConfig
from server.engines.cosyvoice.vocoder.layers import Exact, weights


def draw_noise(seed: int, first: int, count: int, samples: int) -> npt.NDArray[np.float32]:
    """Normal noise of frames `first` to `first + count`, `samples` each: a function of the seed and the frame's
    number."""
    noise = np.empty((count, samples), np.float32)
    for row in range(count):
        # The low word of the counter counts draws, the next one frames: no two frames share any.
        bits = np.random.Philox(key=seed & (1 << 64) - 1, counter=(first + row) << 64)
        np.random.Generator(bits).standard_normal(dtype=np.float32, out=noise[row])
    return noise.reshape(-1)


class Line(nn.Module):
    """How the harmonics are mixed."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.weight, self.bias = weights(1, inputs), weights(1)


class Source(Exact):
    """Makes samples of f0. Version 2 joins the phases of frames by lines from centre to centre; in version 3 the phase
    stands still for a frame, as its checkpoints are used to.

    Upstream's noise is drawn for each harmonic and mixed as they are: normal in version 2, uniform in [0, 1) in
    version 3. Here one normal draw a sample is given the mean and the deviation of the mixture.
    """

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.config = config
        self.l_linear = Line(config.harmonics + 1)
        self.samples = config.hop
        for rate in config.upsample_rates:
            self.samples *= rate

    def advance(self, f0: Tensor, before: Tensor) -> Tensor:
        """Cycles of the fundamental at each frame, fp64 in [0, 1): `f0` Hz `[B, n]`, `before` `[B]` the cycles
        before."""
        share = torch.remainder(f0.double() / self.config.sample_rate, 1.0) * self.samples
        return torch.remainder(torch.cumsum(share, 1) + before[:, None], 1.0)

    def forward(self, f0: Tensor, cycles: Tensor, noise: Tensor | None) -> Tensor:
        """Samples `[B, 480 n]`, fp32, of f0 `[B, n]` in Hz, the cycles at the frames (`advance`) and standard normal
        noise `[B, 480 n]` (None: no noise at all). Version 2: the first half of the first frame and the second half of
        the last one are those of an utterance that begins and ends there.
        """
        weight, bias = self.l_linear.weight.float()[0], self.l_linear.bias.float()
        voiced = (f0 > self.config.voiced_above).float()
        waves = self._held(cycles, weight) if self.config.version == 3 else self._ramps(f0, cycles, weight)
        result = waves.mul_((voiced * self.config.sine_level)[..., None])
        if noise is not None:
            mean = 0.5 * weight.sum() if self.config.version == 3 else weight.new_zeros(())
            deviation = weight.norm() / (12**0.5 if self.config.version == 3 else 1.0)
            level = voiced * self.config.noise_level + (1 - voiced) * (self.config.sine_level / 3)
            result = result + (noise.view(*f0.shape, self.samples) * deviation + mean) * level[..., None]
        return (result + bias).tanh_().flatten(1)

    def _harmonics(self, device: torch.device) -> Tensor:
        return torch.arange(1, self.config.harmonics + 2, dtype=torch.float64, device=device)

    def _held(self, cycles: Tensor, weight: Tensor) -> Tensor:
        """One number for each frame: `[B, n, 1]`."""
        turns = torch.remainder(cycles[..., None] * self._harmonics(cycles.device), 1.0).float()
        return torch.matmul((turns * (2 * torch.pi)).sin_(), weight)[..., None].repeat(1, 1, self.samples)

    def _ramps(self, f0: Tensor, cycles: Tensor, weight: Tensor) -> Tensor:
        """Between the centres of two frames the phase is a line; before the first and behind the last it stands
        still."""
        harmonics = self._harmonics(f0.device)
        share = torch.remainder(f0.double()[..., None] * harmonics / self.config.sample_rate, 1.0) * self.samples
        turns = torch.remainder(cycles[..., None] * harmonics, 1.0)
        start = torch.cat([turns[:, :1], turns], 1).float()
        slope = torch.zeros_like(start)
        slope[:, 1:-1] = share[:, 1:]
        way = (torch.arange(self.samples, device=f0.device) + 0.5) / self.samples
        waves = torch.addcmul(start[..., None], slope[..., None], way).mul_(2 * torch.pi).sin_()  # [B, n + 1, 9, 480]
        mixed = torch.matmul(weight, waves).flatten(1)
        half = self.samples // 2
        return mixed[:, half:-half].reshape(*f0.shape, self.samples)
