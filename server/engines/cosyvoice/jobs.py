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
from server.engines.cosyvoice.hops import next_piece
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
    silence: SilentRuns = field(default_factory=lambda: SilentRuns(()))
    heard: list[int] = field(default_factory=list)  # of its codes, those that the flow model gets
    looked_at: int = 0  # of its codes
    pieces: int = 0  # begun
    cut: int = 0  # codes of `heard` that are in them
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
    def piece(self) -> tuple[int, bool] | None:
        """Where the next piece ends, and whether it is the last; None while it takes more codes to tell."""
        work = self.work
        if work is None:
            return None
        self.heard += self.silence.heard(work.codes[self.looked_at :])
        self.looked_at = len(work.codes)
        if self.whole:
            return (len(self.heard), True) if work.done else None
        return next_piece(self.pieces, self.cut, len(self.heard), complete=work.done, chunk_ms=self.plan.chunk_ms)

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

    def flow_codes(self, begin: int, end: int, device: torch.device) -> Tensor:
        """Some of its codes as the flow model takes them, behind those of the lead where it begins."""
        lead = self.lead_codes if begin == 0 else ()
        return torch.tensor([*lead, *self.heard[begin:end]], dtype=torch.int64, device=device)

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
