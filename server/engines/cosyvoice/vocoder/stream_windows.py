"""Version 2 as the frames come. Its convolutions look about 17 frames ahead, too long to wait: samples are made of
windows that end before all is known, and joined where neighbouring windows overlap.
"""

from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from server.engines.cosyvoice.vocoder.hift import Hift, Window
from server.engines.cosyvoice.vocoder.source import draw_noise


@dataclass(slots=True)
class WindowState:
    """What later frames need of earlier ones."""

    seed: int
    before: int  # frames that a window begins before its samples
    ahead: int  # frames behind them, which are held back
    mel: Tensor  # [mels, m]: the last frames
    hz: Tensor  # [m]: f0 of the last frames of which it is known
    cycles: Tensor  # [m]: of the fundamental at those
    faded: Tensor  # [m]: samples of the last window that the next one's are joined to
    frames: int = 0  # pushed
    made: int = 0  # of which samples were given
    ended: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Utterances for which this is equal can be packed."""
        kept = self.mel.shape[1]
        return self.ahead, kept, self.frames == kept, self.hz.shape[0], self.frames - self.made, self.faded.shape[0]

    @property
    def bytes(self) -> int:
        """What it holds."""
        return sum(t.nbytes for t in (self.mel, self.hz, self.cycles, self.faded))


BEFORE, AHEAD = 12, 8
"""Of a window, where samples are awaited: 8 of the 17 frames that the convolutions look ahead tell nearly all."""
FADE = 120
"""Samples (5 ms) over which two windows' results are blended: enough to leave no step. Over more of them the older
result knows less and less of what comes."""


class WindowStream:
    """f0, phase and noise are carried on exactly, so that the source is the whole's up to `ahead - 6` frames into what
    is held back: windows differ by what the convolutions do not see. With random weights the result is that of the
    whole to -55 dB; upstream's 8 frames before and behind, blended over all 8, to -26 dB. A patient one is exact.
    """

    def __init__(self, network: Hift) -> None:
        self.network = network
        self.held_back = AHEAD
        # Beyond what the convolutions reach, the source itself is not known: f0 looks ahead, and its line to the next.
        self._reach = network.reach + network.f0_predictor.after + 1

    def start(self, seed: int, patient: bool) -> WindowState:
        """The state before the first frame."""
        options: dict[str, Any] = {"device": self.network.conv_pre.weight.device, "dtype": torch.float32}
        none = torch.zeros(0, **options)
        before, ahead = (self.network.reach, self._reach) if patient else (BEFORE, AHEAD)
        mel = torch.zeros(self.network.config.mels, 0, **options)
        return WindowState(seed, before, ahead, mel, hz=none, cycles=none.double(), faded=none)

    def push(self, states: list[WindowState], mel: Tensor, last: bool) -> list[Tensor]:
        """The next frames `[B, mels, n]` of utterances of one shape."""
        net, samples = self.network, self.network.samples
        model = states[0]
        mel = torch.cat([torch.stack([s.mel for s in states]), mel], 2)
        frames = model.frames + mel.shape[2] - model.mel.shape[1]
        kept = frames - mel.shape[2]  # the number of the first frame that is there
        made = model.made
        until = frames if last else frames - model.ahead
        for state in states:
            state.frames, state.ended = frames, last
        if until <= made:
            for state, row in zip(states, mel, strict=True):
                state.mel = row.clone()
            return [mel.new_zeros(0) for _ in states]

        begin = max(0, made - model.before)
        hz, cycles, known = self._pitch(states, mel, kept, frames, last)
        # The source begins one frame before the window, so that its columns are whole from the window's first one on.
        cut = max(0, begin - 1)
        voiced_from = frames - hz.shape[1]
        noise = torch.stack([torch.from_numpy(draw_noise(s.seed, cut, frames - cut, samples)) for s in states]).to(
            mel.device
        )
        source = net.m_source(hz[:, cut - voiced_from :], cycles[:, cut - voiced_from :], noise)
        window = Window(begin, frames, made, until if last else until + ceil(FADE / samples), last)
        wave = net.part(mel[:, :, begin - kept :], source, window)
        if model.faded.shape[0]:
            wave = self._join(torch.stack([s.faded for s in states]), wave)
        length = (until - made) * samples
        if not last:
            start = max(0, until - model.before)
            first_hz = max(0, start - 1)
            for row, state in enumerate(states):
                # f0 of the frames that are new next time needs those before them.
                state.mel = mel[row, :, max(0, min(start, known - net.f0_predictor.before) - kept) :].clone()
                state.hz = hz[row, first_hz - voiced_from : known - voiced_from].clone()
                state.cycles = cycles[row, first_hz - voiced_from : known - voiced_from].clone()
                state.faded = wave[row, length : length + FADE].clone()
                state.made = until
        return list(wave[:, :length])

    def _pitch(
        self, states: list[WindowState], mel: Tensor, kept: int, frames: int, last: bool
    ) -> tuple[Tensor, Tensor, int]:
        """f0 and cycles up to the last frame, beginning where the states' begin, and up to which frame they are
        final."""
        net = self.network
        old = torch.stack([s.hz for s in states])
        turns = torch.stack([s.cycles for s in states])
        right = net.f0_predictor.after
        new = net.predict(mel if last else functional.pad(mel, (0, right), mode="replicate"))[:, : mel.shape[2]]
        first = max(0, states[0].made - states[0].before - 1)
        at = first + old.shape[1]  # the first frame whose f0 is not known
        new = new[:, at - kept :]
        before = turns[:, -1] if turns.shape[1] else turns.new_zeros(len(states))
        turns = torch.cat([turns, net.m_source.advance(new, before)], 1)
        known = frames if last else max(at, frames - right)
        return torch.cat([old, new], 1), turns, known

    def _join(self, old: Tensor, new: Tensor) -> Tensor:
        """`new`, blended in from `old` over its length."""
        length = min(old.shape[1], new.shape[1])
        way = (torch.arange(length, device=new.device) + 0.5) / length
        rise = 0.5 - 0.5 * torch.cos(torch.pi * way)
        new[:, :length] = torch.lerp(old[:, :length], new[:, :length], rise)
        return new
