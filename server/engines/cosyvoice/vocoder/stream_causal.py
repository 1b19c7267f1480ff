"""Version 3 as the frames come: every convolution goes on where it stopped, nothing is worked out twice."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from server.engines.cosyvoice.vocoder.causal import CausalHift
from server.engines.cosyvoice.vocoder.layers import Tails
from server.engines.cosyvoice.vocoder.source import draw_noise


@dataclass(slots=True)
class CausalState:
    """What later frames need of earlier ones."""

    seed: int
    mel: Tensor  # [mels, m]: the last frames
    cycles: Tensor  # []: of the fundamental at the last frame whose f0 is known
    source: Tensor  # [m]: of the last frame that samples were made of, and those behind it
    tails: Tensor  # [CausalHift.tail]
    bins: Tensor  # [2 bins, spare]
    frames: int = 0  # pushed
    voiced: int = 0  # whose f0 is known
    made: int = 0  # that went through the network
    ended: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Utterances for which this is equal can be packed."""
        return (
            self.mel.shape[1],
            self.frames - self.voiced,
            self.frames - self.made,
            self.source.shape[0],
            self.made == 0,
        )

    @property
    def bytes(self) -> int:
        """What it holds."""
        return sum(t.nbytes for t in (self.mel, self.cycles, self.source, self.tails, self.bins))


class CausalStream:
    """Holds back 4 frames, which the first convolution looks ahead, and the 4 samples that the next column adds to."""

    def __init__(self, network: CausalHift) -> None:
        self.network = network
        self.held_back = network.config.lookahead + 1

    def start(self, seed: int, patient: bool) -> CausalState:
        """The state before the first frame; patience gains nothing."""
        weight = self.network.conv_pre.weight
        floats: dict[str, Any] = {"device": weight.device, "dtype": torch.float32}
        return CausalState(
            seed,
            mel=torch.zeros(self.network.config.mels, 0, **floats),
            cycles=torch.zeros((), device=weight.device, dtype=torch.float64),
            source=torch.zeros(0, **floats),
            tails=weight.new_zeros(self.network.tail),
            bins=torch.zeros(self.network.config.n_fft + 2, self.network.spare, **floats),
        )

    def push(self, states: list[CausalState], mel: Tensor, last: bool) -> list[Tensor]:
        """The next frames `[B, mels, n]` of utterances of one shape."""
        net, samples = self.network, self.network.samples
        model = states[0]
        ahead, right = net.config.lookahead, net.f0_predictor.after
        mel = torch.cat([torch.stack([s.mel for s in states]), mel], 2)
        frames = model.frames + mel.shape[2] - model.mel.shape[1]
        begin = frames - mel.shape[2]
        end = frames if last else frames - ahead
        voiced, made = model.voiced, model.made
        for state in states:
            state.frames, state.ended = frames, last
        if end <= made:
            for state, row in zip(states, mel, strict=True):
                state.mel = row.clone()
            return [mel.new_zeros(0) for _ in states]

        hz = net.predict(mel)[:, voiced - begin : None if last else mel.shape[2] - right]
        now = voiced + hz.shape[1]
        cycles = net.m_source.advance(hz, torch.stack([s.cycles for s in states]))
        noise = torch.stack([torch.from_numpy(draw_noise(s.seed, voiced, now - voiced, samples)) for s in states]).to(
            mel.device
        )
        source = torch.cat([torch.stack([s.source for s in states]), net.m_source(hz, cycles, noise)], 1)

        first = made == 0
        columns = net.spectrum.analyse(source, first=first)
        # The source begins one frame before those to be made; its first whole column lies half a window behind that.
        skipped = 0 if first else net.columns - net.lead - net.config.n_fft // net.config.hop // 2
        until = net.columns * (end - made) + 1 + (0 if first else net.lead)
        tails = Tails(torch.stack([s.tails for s in states]))
        part = mel[:, :, made - begin : end - begin + ahead]
        if last:
            part = functional.pad(part, (0, ahead))
        bins = net.advance(part, columns[:, :, skipped : skipped + until], tails, first=first)
        if not first:
            bins = torch.cat([torch.stack([s.bins for s in states]), bins], 2)
        made_samples = net.finish(bins, first=first, last=last)
        if not last:
            kept_from = min(now - net.f0_predictor.before, end)
            for row, state in enumerate(states):
                state.mel = mel[row, :, max(0, kept_from - begin) :].clone()
                state.cycles = cycles[row, -1].clone()
                state.source = source[row, source.shape[1] - (now - end + 1) * samples :].clone()
                state.tails = tails.after[row].clone() if len(states) > 1 else tails.after[row]
                state.bins = bins[row, :, -net.spare :].clone()
                state.voiced, state.made = now, end
        return list(made_samples)
