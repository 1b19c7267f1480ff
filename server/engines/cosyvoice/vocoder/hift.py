"""The vocoder's network (HiFT-Net: a neural source filter that ends in an inverse transform): what both versions share,
and version 2, whose convolutions look both ways.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from server.engines.cosyvoice.config import VocoderConfig
from server.engines.cosyvoice.vocoder.f0 import F0Predictor
from server.engines.cosyvoice.vocoder.layers import Conv, ResBlock, weights
from server.engines.cosyvoice.vocoder.source import Source
from server.engines.cosyvoice.vocoder.spectrum import Spectrum

MORE = 3  # frames on either side that the first convolution sees
LOUDEST = 100.0  # magnitude of a bin


class Upsample(nn.Module):
    """A transposed convolution that makes `rate` samples of each one."""

    def __init__(self, inputs: int, outputs: int, kernel: int, rate: int) -> None:
        super().__init__()
        self.weight, self.bias = weights(inputs, outputs, kernel), weights(outputs)
        self.rate, self.padding = rate, (kernel - rate) // 2

    def forward(self, x: Tensor) -> Tensor:
        """`[B, inputs, n]` to `[B, outputs, rate n]`."""
        return functional.conv_transpose1d(x, self.weight, self.bias, self.rate, self.padding)


class HiftNetwork(nn.Module):
    """Layers under the checkpoint's names, and what comes before and after them."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        if len({len(config.upsample_rates), len(config.upsample_kernels), len(config.source_kernels)}) != 1:
            raise ValueError("the vocoder's upsample_rates, upsample_kernels and source_kernels differ in length")
        self.config = config
        self.causal = causal = config.version == 3
        self.rates = config.upsample_rates
        self.columns = prod(self.rates)  # of the spectrum for each frame
        self.samples = self.columns * config.hop  # for each frame
        self.downs = [prod(self.rates[level + 1 :]) for level in range(len(self.rates))]
        widths = [config.base_channels // 2**level for level in range(len(self.rates) + 1)]
        bins = config.n_fft + 2
        self.m_source = Source(config)
        reach = config.lookahead + 1 if causal else 7
        self.conv_pre = Conv(config.mels, widths[0], reach, padding=0 if causal else MORE)
        self.ups = nn.ModuleList(
            self.upsample(inputs, outputs, kernel, rate)
            for (inputs, outputs), kernel, rate in zip(
                pairwise(widths), config.upsample_kernels, self.rates, strict=True
            )
        )
        self.source_downs = nn.ModuleList(
            Conv(bins, width, 2 * down if down > 1 else 1, stride=down)
            for width, down in zip(widths[1:], self.downs, strict=True)
        )
        self.source_resblocks = nn.ModuleList(
            ResBlock(width, kernel, dilations, causal=causal)
            for width, kernel, dilations in zip(widths[1:], config.source_kernels, config.source_dilations, strict=True)
        )
        self.resblocks = nn.ModuleList(
            ResBlock(width, kernel, dilations, causal=causal)
            for width in widths[1:]
            for kernel, dilations in zip(config.kernels, config.dilations, strict=True)
        )
        self.conv_post = Conv(widths[-1], bins, 7, padding=0 if causal else 3)
        self.f0_predictor = F0Predictor(config)
        self._spectrum: Spectrum | None = None

    def upsample(self, inputs: int, outputs: int, kernel: int, rate: int) -> nn.Module:
        """The layer that makes a level of the one before."""
        return Upsample(inputs, outputs, kernel, rate)

    @property
    def spectrum(self) -> Spectrum:
        """The transforms, on the model's device."""
        device = self.conv_pre.weight.device
        if self._spectrum is None or self._spectrum.device != device:
            self._spectrum = Spectrum(self.config.n_fft, self.config.hop, device)
        return self._spectrum

    @torch.inference_mode()
    def f0(self, mel: Tensor) -> Tensor:
        """Hz `[B, n]`, fp32, of a whole mel `[B, mels, n]`."""
        return self.predict(mel).float()

    def predict(self, mel: Tensor) -> Tensor:
        """f0 in the type that it is worked out in."""
        hz: Tensor = self.f0_predictor(mel)
        return hz

    @torch.inference_mode()
    def source(self, f0: Tensor, noise: Tensor | None = None) -> Tensor:
        """Samples `[B, 1, 480 n]` of f0 `[B, n]` and standard normal noise `[B, 480 n]`, None: without noise."""
        samples: Tensor = self.m_source(f0, self.m_source.advance(f0, f0.new_zeros(f0.shape[0]).double()), noise)
        return samples[:, None]

    def blend(self, level: int, x: Tensor, tails: object = None) -> Tensor:
        """The mean of a level's residual blocks."""
        count = len(self.config.kernels)
        total: Tensor | None = None
        for block in self.resblocks[level * count : (level + 1) * count]:
            part: Tensor = block(x, tails)
            total = part if total is None else total.add_(part)
        assert total is not None
        return total.mul_(1 / count)

    def bins(self, x: Tensor) -> Tensor:
        """The spectrum `[B, 2 bins, n]`, fp32, of the last layer's result: logarithm of the magnitude, and phase."""
        magnitude, phase = x.float().chunk(2, 1)
        magnitude, phase = magnitude.exp().clamp_(max=LOUDEST), phase.sin()
        return torch.cat([magnitude * phase.cos(), magnitude * phase.sin_()], 1)


@dataclass(frozen=True, slots=True)
class Window:
    """Which part of an utterance is worked out, in frames: from mel of `begin` to `end`, the samples of `wanted` to
    `until`. `last`: the utterance ends at `end`.
    """

    begin: int
    end: int
    wanted: int
    until: int
    last: bool


class Hift(HiftNetwork):
    """Version 2."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__(config)
        # How far beyond what is wanted of it a level must be known: its convolutions', and all later ones' reach.
        self._margins: list[int] = []
        margin = config.n_fft // config.hop + 3  # the last convolution, and the columns that a sample lies in
        count = len(config.kernels)
        for level in reversed(range(len(self.rates))):
            self._margins.insert(0, margin)
            blocks = [b.radius for b in self.resblocks[level * count : (level + 1) * count] if isinstance(b, ResBlock)]
            own = self.source_resblocks[level]
            assert isinstance(own, ResBlock)
            margin = -(-(margin + max(blocks) + own.radius) // self.rates[level]) + 2
        self.reach = margin + MORE
        """Frames on either side that samples depend on, f0 aside."""

    @torch.inference_mode()
    def decode(self, mel: Tensor, source: Tensor) -> Tensor:
        """Samples `[B, 480 n]` of a whole mel `[B, mels, n]` and its source `[B, 1, 480 n]` (or `[B, 480 n]`)."""
        frames = mel.shape[2]
        return self.part(mel, source.reshape(mel.shape[0], -1), Window(0, frames, 0, frames, last=True))

    @torch.inference_mode()
    def inference(
        self, mel: Tensor, cached_source: Tensor | None = None, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Samples `[B, 480 n]` and their source `[B, 1, 480 n]` of a mel `[B, mels, n]` on its own; `cached_source`
        `[B, 1, m]` replaces the source's beginning.
        """
        source = self.source(self.predict(mel), noise)
        if cached_source is not None:
            source[:, :, : cached_source.shape[2]] = cached_source
        return self.decode(mel, source), source

    def part(self, mel: Tensor, source: Tensor, window: Window) -> Tensor:
        """Samples `[B, 480 (until - wanted)]` of mel `[B, mels, end - begin]` and the source from one frame before
        `begin` (from `begin` if that is 0) to `end`. What is not known is taken for zero.
        """
        dtype = self.conv_pre.weight.dtype
        columns = self.spectrum.analyse(source, first=window.begin == 0).to(dtype)
        known = (
            0 if window.begin == 0 else (window.begin - 1) * self.columns + self.config.n_fft // self.config.hop // 2
        )
        mel = mel.to(dtype)
        if not window.last:
            # A spectrogram goes on as it is rather than with zeros, which are loud in a logarithm.
            mel = functional.pad(mel, (0, MORE), mode="replicate")
        x: Tensor = self.conv_pre(mel)[:, :, : window.end - window.begin]
        low, high, rate = window.begin, window.end, 1
        for level, (up, down) in enumerate(zip(self.rates, self.downs, strict=True)):
            x = self.ups[level](functional.leaky_relu_(x, self.config.slope))
            low, high, rate = low * up, high * up, rate * up
            if down == 1:
                # The spectrum has one column more than the frames give: the first is a mirror image of the third.
                x = functional.pad(x, (1, 0), mode="reflect") if low == 0 else x
                low, high = low + (low > 0), high + 1
            x = self._add_source(level, x, columns, known, low, high)
            x = self.blend(level, x)
            first = max(low, window.wanted * rate - self._margins[level])
            end = min(high, window.until * rate + self._margins[level])
            x = x[:, :, first - low : end - low]
            low, high = first, end
        x = self.conv_post(functional.leaky_relu(x, 0.01))
        at_end = window.last and high == window.end * self.columns + 1
        samples = self.spectrum.synthesise(self.bins(x), first=low == 0, last=at_end)
        hop, half = self.config.hop, self.config.n_fft // 2
        at = 0 if low == 0 else hop * low + self.config.n_fft - hop - half
        start = window.wanted * self.samples - at
        samples = samples[:, start : start + (window.until - window.wanted) * self.samples]
        return samples.clamp(-self.config.limit, self.config.limit)

    def _add_source(self, level: int, x: Tensor, columns: Tensor, known: int, low: int, high: int) -> Tensor:
        """Add what the source is at samples `low` to `high` of a level; `known` is the number of the first column."""
        down = self.downs[level]
        kernel = 2 * down if down > 1 else 1
        first = low * down - (down // 2 if down > 1 else 0) - known
        end = first + (high - low - 1) * down + kernel
        length = columns.shape[2]
        seen = columns[:, :, max(first, 0) : min(end, length)]
        seen = functional.pad(seen, (max(-first, 0), max(end - length, 0)))
        own: Tensor = self.source_resblocks[level](self.source_downs[level](seen))
        return own.add_(x)
