"""One segment on its way through the three models: codes, then mel piece by piece, then samples."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from torch import Tensor

from server.cache.keys import BlockKey
from server.engines.base import Job, Samples
from server.engines.cosyvoice.flow.matching import FlowPass, FlowState
from server.engines.cosyvoice.hops import LOOKAHEAD, next_piece
from server.engines.cosyvoice.llm.jobs import CodeJob
from server.engines.cosyvoice.llm.watching import SilentRuns
from server.engines.cosyvoice.shelf import KeptVoice
from server.engines.cosyvoice.vocoder.speed import MelSpeed
from server.engines.cosyvoice.vocoder.streaming import VocoderState
from server.text.tokens import Token

AHEAD: Final = 64  # codes that are made beyond the last piece, where others are decoded anyway
VOCODER_FRAMES: Final = 100  # that the vocoder takes in one step
NOTHING: Final[Samples] = np.zeros(0, np.float32)


@dataclass(eq=False, slots=True)
class Lead:
    """What was said just before the segment in the same sentence: spoken first, and never heard. `then` makes the
    segment's own work of its codes.
    """

    work: CodeJob
    then: Callable[[tuple[int, ...]], CodeJob]
    key: BlockKey


@dataclass(eq=False, slots=True)
class CosyVoiceJob(Job):
    """What a segment is at. `voice` is None where there is nothing to say."""

    voice: KeptVoice | None = None
    lead: Lead | None = None  # until its codes are known
    work: CodeJob | None = None  # from then on
    lead_codes: tuple[int, ...] = ()
    prefix_ids: tuple[int, ...] = field(default=(), repr=False)  # what the language model reads of the voice first
    key: BlockKey | None = field(default=None, repr=False)  # what its codes are kept under
    flow: FlowState | None = None
    vocoder: VocoderState | None = None
    speed: MelSpeed | None = None
    current: FlowPass | None = None  # the piece that is being solved
    current_is_last: bool = False
    current_is_known: bool = False  # it was spoken before, and is solved once more for the flow's state alone
    in_flow: int = 0  # pieces that the flow's state has taken in
    stepped: int = 0  # the step in which it was last at work
    waits_since: int | None = None  # the step from which on there was no room for its flow's state
    silence: SilentRuns = field(default_factory=lambda: SilentRuns(()))
    heard: list[int] = field(default_factory=list)  # of its codes, those that the flow model gets
    looked_at: int = 0  # of its codes
    cuts: list[int] = field(default_factory=list)  # where pieces that were begun end, in `heard`
    piece: tuple[int, bool] | None = None  # see `look`
    mel: Tensor | None = None  # made, and not yet turned into samples
    mel_is_last: bool = False
    late: list[Token] | None = None  # the text of a job that may still get more
    late_read: int = 0  # pieces of it that the language model has
    told: int = 0  # of what was drawn
    skip: int = 0  # samples still to be left out
    pause: int = 0  # samples of silence at the end
    over: bool = False

    @property
    def whole(self) -> bool:
        """Whether it is spoken in one piece."""
        return self.plan.mode == "block"

    @property
    def decoding(self) -> CodeJob | None:
        """What the language model works on."""
        return self.lead.work if self.lead is not None else self.work

    @property
    def cut(self) -> int:
        """Codes of `heard` that are in the pieces that were begun."""
        return self.cuts[-1] if self.cuts else 0

    def look(self) -> None:
        """Take notice of new codes, once a round. `piece` then says where the next piece ends, and whether it is the
        last; None while it takes more codes to tell.
        """
        work = self.work
        if work is None:
            return
        self.heard += self.silence.heard(work.codes[self.looked_at :])
        self.looked_at = len(work.codes)
        if self.whole:
            self.piece = (len(self.heard), True) if work.done else None
        else:
            known, done = len(self.heard), work.done
            self.piece = next_piece(len(self.cuts), self.cut, known, complete=done, chunk_ms=self.plan.chunk_ms)

    def begin(self, solving: FlowPass) -> None:
        """The next piece is begun."""
        assert self.piece is not None
        self.current, self.current_is_known = solving, False
        end, self.current_is_last = self.piece
        self.cuts.append(end)
        self.piece = None

    def begin_again(self) -> bool:
        """Begin the next of the pieces that a flow's state made anew must take in. False where there is none."""
        if self.flow is None or self.in_flow >= len(self.cuts):
            return False
        begin, end = self.cuts[self.in_flow - 1] if self.in_flow else 0, self.cuts[self.in_flow]
        self.current, self.current_is_known = self.flow.hop(self.flow_codes(begin, end), self.ahead_of(end)), True
        return True

    def solved(self) -> None:
        """The current piece is done."""
        assert self.current is not None
        mel, self.current = self.current.mel, None
        lead = 0 if self.in_flow else 2 * len(self.lead_codes)
        self.in_flow += 1
        if not self.current_is_known:
            self.mel, self.mel_is_last = mel[lead:], self.current_is_last
            if self.speed is not None:
                self.mel = self.speed.push(self.mel, self.mel_is_last)

    def drop_flow(self) -> None:
        """Let go of the flow's state. When the segment goes on, it is made again of the same pieces."""
        if self.current is not None and not self.current_is_known:
            self.cuts.pop()
        self.flow = self.current = None
        self.in_flow = 0

    @property
    def hungry(self) -> bool:
        """Whether nothing goes on without more codes."""
        return not self.over and self.current is None and self.mel is None and self.piece is None

    @property
    def idle(self) -> bool:
        """Whether nothing can be done for it now: it is over, or its text is late."""
        return self.over or (self.hungry and self.work is not None and self.work.waits_for_text)

    @property
    def may_decode(self) -> bool:
        """Whether another code is of use."""
        work = self.decoding
        if self.over or work is None or work.done:
            return False
        return self.lead is not None or self.whole or self.piece is None or len(self.heard) < self.cut + AHEAD

    def new_codes(self) -> tuple[int, ...]:
        """What was drawn for it since it was asked last."""
        if self.work is None:
            return ()
        codes = tuple(self.work.drawn[self.told :])
        self.told += len(codes)
        return codes

    def flow_codes(self, begin: int, end: int) -> Tensor:
        """Some of its codes as the flow model takes them, behind those of the lead where it begins."""
        assert self.voice is not None
        lead = self.lead_codes if begin == 0 else ()
        return torch.tensor([*lead, *self.heard[begin:end]], dtype=torch.int64, device=self.voice.prompt.codes.device)

    def ahead_of(self, end: int) -> Tensor:
        """The codes behind a piece, at which the flow model looks; `end` is not the last code's."""
        return self.flow_codes(end, end + LOOKAHEAD)

    def next_frames(self) -> tuple[Tensor, bool]:
        """The next frames for the vocoder, and whether they are the last."""
        assert self.mel is not None
        mel = self.mel[:VOCODER_FRAMES]
        rest = self.mel[VOCODER_FRAMES:]
        self.mel = rest if len(rest) else None
        return mel, self.mel_is_last and self.mel is None

    def wanted(self, samples: Samples) -> Samples:
        """Those of the samples that are to be given out."""
        dropped = min(self.skip, len(samples))
        self.skip -= dropped
        return samples[dropped:] if dropped else samples
