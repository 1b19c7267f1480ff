"""Moves many utterances on together: one call of the model draws the next code of each."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from server.engines.base import EngineError
from server.engines.cosyvoice.config import SamplingConfig
from server.engines.cosyvoice.llm.accelerated import SlotDecoder
from server.engines.cosyvoice.llm.ids import code_id
from server.engines.cosyvoice.llm.jobs import CodeJob, Seat, VoicePrefix
from server.engines.cosyvoice.llm.qwen2 import Part
from server.engines.cosyvoice.llm.sampling import allowed_table, draw
from server.engines.cosyvoice.llm.slots import SlotCache
from server.engines.cosyvoice.llm.speech_lm import SpeechLm

PIECE: Final = 128  # positions that are read in one tick besides the decoding


class Decoder:
    """Use it from one thread at a time. `release` every job that is dropped before it is done."""

    def __init__(
        self,
        lm: SpeechLm,
        slots: SlotCache,
        sampling: SamplingConfig,
        piece: int = PIECE,
        *,
        fixed_shapes: bool | None = None,
        aside_bytes: int | None = None,
    ) -> None:
        """`piece`: positions of waiting input that one tick reads at most. `fixed_shapes`: decode as `accelerated.py`
        does (None: not on a CPU). `aside_bytes`: of main memory, for keys and values of jobs that have no slot now
        (None: as much as all slots take).
        """
        lm.prepare()
        self.lm, self.slots, self.sampling, self.piece = lm, slots, sampling, piece
        self._allowed = allowed_table(lm.config, lm.device)
        self._holders: dict[int, CodeJob] = {}
        self._aside: dict[CodeJob, int] = {}  # bytes that are saved for a job, the first to be saved first
        self._most_aside = slots.bytes if aside_bytes is None else aside_bytes
        self._tick = 0
        fixed = lm.device.type != "cpu" if fixed_shapes is None else fixed_shapes
        self._by_slot = SlotDecoder(lm, slots) if fixed else None

    @property
    def aside_bytes(self) -> int:
        """What is kept of jobs that have no slot now."""
        return sum(list(self._aside.values()))

    def warm_up(self) -> None:
        """Do what is slow the first time. Before any job."""
        if self._by_slot is not None:
            self._by_slot.warm_up()

    def prefix(self, ids: Sequence[int]) -> VoicePrefix:
        """Keys and values of `turns.voice_ids(...)`, for `CodeJob(prefix=...)`: a job whose input begins so takes them
        instead of computing them (the result may differ by rounding, 1e-5 in fp32).
        """
        cache = SlotCache(self.lm.config, 1, len(ids), self.lm.device, self.lm.dtype)
        slot = cache.alloc()
        assert slot is not None
        for start in range(0, len(ids), self.piece):
            part = ids[start : start + self.piece]
            self.lm.run(self.lm.embed(part), cache, [Part(slot, start, len(part))])
        return VoicePrefix(tuple(ids), cache.save(slot))

    def advance(self, jobs: Sequence[CodeJob]) -> None:
        """One tick. Of the jobs' waiting input, the first `piece` positions are read, in the order of `jobs`; all that
        have none left but their last code are moved on by one code, in one call. Jobs that are done or wait for text
        are passed over. A job that needs a slot takes a free one, or that of the job that was served longest ago and is
        not served now (it is kept aside and gets one again later); where all are taken by jobs of this call, it waits.
        Where too much is kept aside, what was put there first is dropped, and computed again when its job goes on (the
        result may differ by rounding, as behind a prefix).
        Whatever is raised, the jobs can go on with another call.
        """
        self._tick += 1
        running = [job for job in jobs if not (job.done or job.waits_for_text)]
        for job in running:
            job.seat.served = self._tick
        seated = [job for job in running if self._seat(job)]
        ready, rows = self._read(seated)
        single = [job for job in seated if job.pending == 1]
        if single:
            parts = [Part(_slot(job.seat), job.seat.fed, 1) for job in single]
            x = self.lm.embed([job.ahead(1)[0] for job in single])
            rows.append(self._by_slot.run(x, parts) if self._by_slot else self.lm.run(x, self.slots, parts))
            ready += single
        if rows:
            self._draw(ready, torch.cat(rows) if len(rows) > 1 else rows[0])
        for job in running:
            if job.done:
                self.release(job)

    def release(self, job: CodeJob) -> None:
        """Free what the job holds. Harmless when it holds nothing; a job that is not done cannot go on after it."""
        seat, job.seat = job.seat, Seat()
        self._aside.pop(job, None)
        if seat.slot is not None:
            self._vacate(seat.slot, clean=job.done and job.error is None)
        if not job.done:
            job.fail(EngineError("the job was released"))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _read(self, jobs: Sequence[CodeJob]) -> tuple[list[CodeJob], list[Tensor]]:
        """Waiting input, one job after the other: a job's pieces do not depend on its neighbours. Returns those whose
        next draw is due, with their rows `[1, hidden]`.
        """
        left, ready, rows = self.piece, list[CodeJob](), list[Tensor]()
        for job in jobs:
            while (count := min(job.pending, self.piece)) > 1:
                if count > left and not job.rereads:
                    return ready, rows
                left -= count
                again = job.rereads
                made = self.lm.run(
                    self.lm.embed(job.ahead(count)), self.slots, [Part(_slot(job.seat), job.seat.fed, count)]
                )
                if count == job.pending:
                    ready.append(job)
                    rows.append(made[-1:])
                    break
                job.feed(count)
                if not again:
                    break
        return ready, rows

    def _draw(self, jobs: Sequence[CodeJob], rows: Tensor) -> None:
        scores = self.lm.logits(rows)
        finite = scores.isfinite().all(dim=-1)
        scores = scores.log_softmax(dim=-1)
        allowed = self._allowed[[int(job.allowed) for job in jobs]]
        masked = scores.masked_fill(~(allowed & finite[:, None]), -torch.inf)
        masked[:, 0].masked_fill_(~finite, 0.0)  # something to draw; it is not used
        device = scores.device
        steps = [job.draws.at(len(job.drawn)) for job in jobs]
        recent = torch.tensor([job.recent(self.sampling.window) for job in jobs], device=device)
        drawn = draw(masked, recent, torch.tensor(steps, dtype=torch.float32, device=device), self.sampling)
        if any(job.manner.greedy for job in jobs):
            greedy = torch.tensor([job.manner.greedy for job in jobs], device=device)
            drawn = torch.where(greedy, scores[:, : self.lm.config.codes].argmax(dim=-1), drawn)
        for number, (job, code) in enumerate(zip(jobs, torch.where(finite, drawn, -1).tolist(), strict=True)):
            job.feed(job.pending)  # only now: if anything was raised before, it is read again
            if code < 0:
                message = "the language model made numbers that are none"
                job.fail(EngineError(message, transient=True, kind="not_finite"))
                continue
            if job.manner.keep_scores:
                job.scores.append(scores[number].cpu())
            job.take(code)

    def _seat(self, job: CodeJob) -> bool:
        """Find the job a slot, and room in it for its next input. False where it has to wait, or cannot go on."""
        seat = job.seat
        if seat.fed + job.pending > self.slots.length:
            self._overflow(job)
            return False
        if seat.slot is not None:
            return True
        slot = self.slots.alloc()
        if slot is None:
            slot = self._take_away()
        if slot is None:
            return False
        self._holders[slot], seat.slot = job, slot
        prefix = job.prefix
        if seat.saved is not None:
            self.slots.load(slot, seat.saved)
            seat.saved = None
            del self._aside[job]
        elif prefix is not None and len(prefix.ids) < job.pending and job.ahead(len(prefix.ids)) == list(prefix.ids):
            self.slots.load(slot, prefix.saved)
            job.feed(len(prefix.ids))
        return True

    def _take_away(self) -> int | None:
        """A slot, of a job that is not served now."""
        others = [job for job in self._holders.values() if job.seat.served < self._tick]
        if not others:
            return None
        job = min(others, key=lambda job: job.seat.served)
        slot = _slot(job.seat)
        saved = self.slots.save(slot, "cpu")
        job.seat.slot, job.seat.saved, self._aside[job] = None, saved, saved.bytes
        self._vacate(slot, clean=False)
        while self._aside and self.aside_bytes > self._most_aside:
            dropped = next(iter(self._aside))
            del self._aside[dropped]
            dropped.rewind()
        return self.slots.alloc()

    def _vacate(self, slot: int, *, clean: bool) -> None:
        """Give a slot back. Fixed shapes compute with what the next owner does not use, so nothing may be left there
        that is no number; only what was drawn from is known to be all numbers (`clean`).
        """
        if self._by_slot is not None and not clean:
            self.slots.wipe(slot)
        del self._holders[slot]
        self.slots.free(slot)

    def _overflow(self, job: CodeJob) -> None:
        """A slot is full: plain speech ends there, also where all of it was known; a text that does not even fit is an
        error.
        """
        if job.codes and job.ahead(job.pending)[-1] == code_id(job.codes[-1]):
            job.done = True
        else:
            need = job.seat.fed + job.pending
            job.fail(
                EngineError(
                    f"text and voice take {need} positions of the language model, at most {self.slots.length} (engine"
                    " option length)"
                )
            )


def _slot(seat: Seat) -> int:
    assert seat.slot is not None, "only seated jobs are computed"
    return seat.slot
