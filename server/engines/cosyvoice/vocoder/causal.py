"""Version 3 of the vocoder: its convolutions see what came before, and 4 frames ahead at the very beginning."""

from math import ceil

import torch
from torch import Tensor, nn
from torch.nn import functional

from server.engines.cosyvoice.config import VocoderConfig
from server.engines.cosyvoice.vocoder.hift import HiftNetwork
from server.engines.cosyvoice.vocoder.layers import Conv, Derived, ResBlock, Tails, weights


class CausalUpsample(Derived[tuple[Tensor, Tensor]]):
    """Each sample `rate` times, and a convolution over them.

    Many of that convolution's taps fall on copies of one sample. They are summed once, for each of the `rate` places
    that an output can have: a convolution at the lower rate that makes `rate` samples at once, for a fifth of the work.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int, rate: int) -> None:
        super().__init__()
        self.weight, self.bias = weights(outputs, inputs, kernel), weights(outputs)
        self.inputs, self.outputs, self.rate = inputs, outputs, rate
        self.reach = ceil((kernel - 1) / rate)

    @property
    def tail(self) -> int:
        """Numbers it keeps in `Tails`."""
        return self.inputs * self.reach

    def derive(self) -> tuple[Tensor, Tensor]:
        """The weight `[outputs * rate, inputs, reach + 1]` and the bias."""
        kernel = self.weight.shape[2]
        summed = self.weight.new_zeros(self.outputs, self.rate, self.inputs, self.reach + 1)
        for place in range(self.rate):
            for tap in range(kernel):
                summed[:, place, :, (place - kernel + 1 + tap) // self.rate + self.reach] += self.weight[:, :, tap]
        return summed.flatten(0, 1), self.bias.repeat_interleave(self.rate)

    def forward(self, x: Tensor, tails: Tails) -> Tensor:
        """`[B, inputs, n]` to `[B, outputs, rate n]`."""
        weight, bias = self.derived
        made = functional.conv1d(tails.extend(x, self.reach), weight, bias)
        batch, _, length = made.shape
        return made.view(batch, self.outputs, self.rate, length).transpose(2, 3).reshape(batch, self.outputs, -1)


class CausalHift(HiftNetwork):
    """Version 3."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__(config)
        self.lead = max(self.downs) - 1  # columns before a frame's own that its samples see
        self.spare = config.n_fft // config.hop - 1  # columns that the next samples lie in, too
        blocks = [*self.ups, *self.source_resblocks, *self.resblocks]
        self.tail = sum(b.tail for b in blocks if isinstance(b, ResBlock | CausalUpsample))
        self.tail += self.conv_post.reach * self.conv_post.weight.shape[1]
        """Numbers that a session keeps of what came before, `Tails`."""

    def upsample(self, inputs: int, outputs: int, kernel: int, rate: int) -> nn.Module:
        return CausalUpsample(inputs, outputs, kernel, rate)

    @torch.inference_mode()
    def decode(self, mel: Tensor, source: Tensor) -> Tensor:
        """Samples `[B, 480 n]` of a whole mel `[B, mels, n]` and its source `[B, 1, 480 n]` (or `[B, 480 n]`)."""
        batch = mel.shape[0]
        columns = self.spectrum.analyse(source.reshape(batch, -1), first=True)
        tails = Tails(mel.new_zeros(batch, self.tail, dtype=self.conv_pre.weight.dtype))
        bins = self.advance(functional.pad(mel, (0, self.config.lookahead)), columns, tails, first=True)
        return self.finish(bins, first=True, last=True)

    @torch.inference_mode()
    def inference(self, mel: Tensor, *, final: bool = True, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Samples and their source `[B, 1, m]` of a mel `[B, mels, n]` from the beginning. Unless `final`, the last
        frames are look-ahead: upstream's 8, of which our `Vocoder` needs 5.
        """
        hz = self.predict(mel)
        if final:
            source = self.source(hz, noise)
            return self.decode(mel, source), source
        frames = mel.shape[2] - self.f0_predictor.after
        source = self.source(hz[:, :frames], noise)
        # Upstream holds one frame more back than it must.
        decoded = self.decode_some(mel[:, :, :frames], source)
        return decoded[:, : (frames - self.config.lookahead - 1) * self.samples], source

    def decode_some(self, mel: Tensor, source: Tensor) -> Tensor:
        """As `decode`, less what the look-ahead is missing for."""
        batch, _, frames = mel.shape
        columns = self.spectrum.analyse(source.reshape(batch, -1), first=True)
        columns = columns[:, :, : (frames - self.config.lookahead) * self.columns + 1]
        tails = Tails(mel.new_zeros(batch, self.tail, dtype=self.conv_pre.weight.dtype))
        return self.finish(self.advance(mel, columns, tails, first=True), first=True, last=False)

    def advance(self, mel: Tensor, columns: Tensor, tails: Tails, *, first: bool) -> Tensor:
        """The next frames' spectrum, fp32.

        `mel` is `[B, mels, n + lookahead]`. `columns` are the source's, from `lead` columns before the frames' own
        first one (from that one if it is the `first` of all) up to and with the first of the frame behind them. Returns
        `[B, 2 bins, 120 n]`, with `first` one column more.
        """
        dtype = self.conv_pre.weight.dtype
        columns = columns.to(dtype)
        if first:
            columns = functional.pad(columns, (self.lead, 0))
        x: Tensor = self.conv_pre(mel.to(dtype))
        for level, down in enumerate(self.downs):
            x = self.ups[level](functional.leaky_relu_(x, self.config.slope), tails)
            if down > 1:
                seen = columns[:, :, self.lead - down + 1 :]
            elif first:
                # The spectrum has one column more than the frames give: the first is a mirror image of the third.
                x, seen = functional.pad(x, (1, 0), mode="reflect"), columns[:, :, self.lead :]
            else:
                seen = columns[:, :, self.lead + 1 :]
            own: Tensor = self.source_resblocks[level](self.source_downs[level](seen), tails)
            x = self.blend(level, own.add_(x), tails)
        x = functional.leaky_relu_(x, 0.01)
        assert isinstance(self.conv_post, Conv)
        return self.bins(self.conv_post(tails.extend(x, self.conv_post.reach)))

    def finish(self, bins: Tensor, *, first: bool, last: bool) -> Tensor:
        """Samples of columns, see `Spectrum.synthesise`; unless `first` with the `spare` ones that came before."""
        samples = self.spectrum.synthesise(bins, first=first, last=last)
        return samples.clamp_(-self.config.limit, self.config.limit)
