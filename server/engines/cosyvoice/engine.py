"""The engine: segments join and leave at any step, and the three models work for all that are there.

A step goes round until something can be heard or its time is up: one code for every segment that can use one, in one
call of the language model; one step of the flow's solver for the most urgent piece (on a GPU: for all of them); samples
of what is solved. Segments are served in the order in which the scheduler names them.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch

from server.engines.base import (
    Capabilities,
    Chunk,
    ContextCache,
    EngineError,
    Job,
    RenderMode,
    RenderPlan,
    Samples,
    Segment,
    SegmentEnd,
    SegmentFailed,
    StepEvent,
)
from server.engines.cosyvoice.flow.matching import step_passes
from server.engines.cosyvoice.jobs import NOTHING, CosyVoiceJob
from server.engines.cosyvoice.loading import Loaded
from server.engines.cosyvoice.preparing import Preparer
from server.engines.cosyvoice.streams import MemoryUse, StreamStates
from server.text.tokens import Boundary, Token

STEP_S: Final = 0.02  # how long a step goes round; a round that has begun is ended
PREFIX_MIN: Final = 4  # input ids that are worth keeping
CODE_BYTES: Final = 36  # of a number in a tuple
_PAUSE_MS: Final = {Boundary.PARAGRAPH: 300}  # besides the silence that the voice makes itself
_MODES: Final[tuple[RenderMode, ...]] = ("stream", "block")


class CosyVoiceEngine:
    """Implements `server.engines.base.Engine`. Steps are asked for one after the other (`Capabilities.lanes`), except
    where one was given up as hanging and goes on after all: the next one waits for it.
    """

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._decoder = loaded.decoder
        self._flow = loaded.model.flow
        self._vocoder = loaded.model.vocoder
        self._shelf = loaded.shelf
        self._device = loaded.device
        self._streams = StreamStates(loaded.model.flow, loaded.shelf, loaded.stream_bytes)
        self._preparer = Preparer(loaded)
        self._cache: ContextCache | None = None
        self._at_work = threading.Lock()
        self._cancelled: deque[CosyVoiceJob] = deque()  # whose slots are still to be freed

    @property
    def capabilities(self) -> Capabilities:
        """What this model can do."""
        return self._loaded.capabilities

    @property
    def memory(self) -> MemoryUse:
        """What it holds now for segments and voices. From any thread."""
        return self._streams.memory_use(self._decoder, voices=self._shelf.bytes)

    def use_context_cache(self, cache: ContextCache) -> None:
        """See `UsesContextCache`: the codes of segments are kept there."""
        self._cache = cache
        self._preparer.cache = cache

    def use_voices(self, read: Callable[[str], bytes | None]) -> None:
        """See `ClonesVoices`."""
        self._shelf.read = read

    def make_voice(self, recording: bytes, text: str) -> bytes:
        """See `ClonesVoices`."""
        return self._loaded.learn(recording, text)

    def forget_voice(self, voice: str) -> None:
        """See `ClonesVoices`."""
        self._shelf.forget(voice)

    def warm_up(self) -> None:
        """Say a word in each voice, both ways: the first call of a model is slow, and what is kept of a voice is made.
        Raises EngineError where that fails.
        """
        self._decoder.warm_up()
        for voice in self.capabilities.voices:
            for mode in _MODES:
                token = Token("hello", 0, 5, "en")
                job = self.prepare(Segment(0, (token,), Boundary.SENTENCE, voice.id), RenderPlan(mode))
                while not isinstance(event := self.step([job])[-1], SegmentEnd):
                    if isinstance(event, SegmentFailed):
                        raise EngineError(f"voice {voice.id} cannot speak: {event.error}") from event.error

    def prepare(self, segment: Segment, plan: RenderPlan, seed: int = 0, start_sample: int = 0) -> CosyVoiceJob:
        """See Engine. Raises EngineError for a voice that is gone, ValueError for what the model cannot do."""
        job = self._preparer.prepare(segment, plan, seed)
        job.skip = start_sample
        job.pause = round(_PAUSE_MS.get(segment.boundary, 0) * self.capabilities.sample_rate / 1000)
        return job

    def prepare_late(self, segment: Segment, plan: RenderPlan, seed: int = 0) -> CosyVoiceJob:
        """See `TakesLateText`: five text tokens and fifteen codes take turns. Raises what `prepare` does."""
        job = self._preparer.prepare_late(segment, plan, seed)
        job.pause = round(_PAUSE_MS.get(segment.boundary, 0) * self.capabilities.sample_rate / 1000)
        return job

    def add_text(self, job: Job, tokens: Sequence[Token]) -> None:
        """See `TakesLateText`. Raises ValueError after the end."""
        assert isinstance(job, CosyVoiceJob)  # made by `prepare_late`
        self._preparer.add_text(job, tokens)

    def end_text(self, job: Job) -> None:
        """See `TakesLateText`."""
        assert isinstance(job, CosyVoiceJob)  # made by `prepare_late`
        self._preparer.end_text(job)

    def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
        """See Engine."""
        with self._at_work:
            self._free_cancelled()
            return self._step([job for job in jobs if isinstance(job, CosyVoiceJob)])

    def cancel(self, job: Job) -> None:
        """See Engine. While a step that was given up goes on, it is left to the step after that: nobody waits here."""
        assert isinstance(job, CosyVoiceJob)  # made by `prepare`
        self._cancelled.append(job)
        if self._at_work.acquire(blocking=False):
            try:
                self._free_cancelled()
            finally:
                self._at_work.release()

    def close(self) -> None:
        """Let go of what is kept for voices; the models go with the engine."""
        self._shelf.clear()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    # ---- one round of a step ----

    def _step(self, batch: list[CosyVoiceJob]) -> list[StepEvent]:
        sounds: dict[CosyVoiceJob, list[Samples]] = {job: [] for job in batch}
        failures: dict[CosyVoiceJob, Exception] = {}
        until = time.perf_counter() + STEP_S
        self._streams.begin_step(batch)
        with torch.inference_mode():
            while True:
                live = [job for job in batch if job not in failures and not job.over]
                for job in live:
                    job.look()
                self._decode(live, failures)
                live = [job for job in live if job not in failures]
                for job in live:
                    self._guarded(self._begin_piece, job, failures)
                self._solve([job for job in live if job not in failures], failures)
                self._speak([job for job in live if job not in failures], sounds, failures)
                if time.perf_counter() >= until or any(map(len, sounds.values())) or not any(map(_goes_on, live)):
                    break
        return [event for job in batch for event in self._events(job, sounds[job], failures.get(job))]

    def _free_cancelled(self) -> None:
        while self._cancelled:
            self._let_go(self._cancelled.popleft())

    def _let_go(self, job: CosyVoiceJob) -> None:
        if (work := job.decoding) is not None:
            self._decoder.release(work)
        job.over = True
        self._streams.let_go(job)
        job.vocoder = job.current = job.mel = None

    def _decode(self, jobs: list[CosyVoiceJob], failures: dict[CosyVoiceJob, Exception]) -> None:
        """A code for everybody who can use one, if anybody has to wait for one."""
        if not any(job.hungry for job in jobs):
            return
        for job in jobs:
            if job.may_decode:
                self._guarded(self._with_prefix, job, failures)
        decoding = [job for job in jobs if job.may_decode and job not in failures]
        self._decoder.advance([work for job in decoding if (work := job.decoding) is not None])
        for job in decoding:
            work = job.decoding
            assert work is not None
            if work.error is not None:
                failures[job] = work.error
            elif work.done:
                self._guarded(self._decoded, job, failures)

    def _with_prefix(self, job: CosyVoiceJob) -> None:
        """Give its text what the language model keeps of the voice's. Always, or results would differ by rounding."""
        work, voice = job.decoding, job.voice
        assert work is not None
        assert voice is not None
        if work.prefix is None and work.seat.fed == 0 and len(job.prefix_ids) >= PREFIX_MIN:
            work.prefix = voice.spoken_prefix(job.prefix_ids, self._decoder.prefix)

    def _decoded(self, job: CosyVoiceJob) -> None:
        """All codes of its lead or of itself are known."""
        lead, work = job.lead, job.decoding
        assert work is not None
        key = job.key if lead is None else lead.key
        if self._cache is not None and key is not None:
            drawn = tuple(work.drawn)
            self._cache.put(key, drawn, CODE_BYTES * len(drawn))
        if lead is not None:
            job.lead_codes = tuple(lead.work.codes)
            job.work, job.lead = lead.then(job.lead_codes), None

    def _begin_piece(self, job: CosyVoiceJob) -> None:
        """Begin to solve its next piece, if the codes are there."""
        if job.current is not None or job.mel is not None or job.piece is None:
            return
        assert job.voice is not None
        end, last = job.piece
        codes = job.flow_codes(job.cut, end)
        if not len(codes):  # nothing at all was said
            job.mel, job.mel_is_last = torch.zeros(0, self._flow.config.mels, device=self._device), True
        elif job.whole:
            job.begin(self._flow.whole(codes, job.voice.prompt, streaming=False, final=True))
        elif self._streams.start(job) and not job.begin_again():
            assert job.flow is not None
            job.begin(job.flow.hop(codes, None if last else job.ahead_of(end)))

    def _solve(self, jobs: list[CosyVoiceJob], failures: dict[CosyVoiceJob, Exception]) -> None:
        """A step of the solver: on a GPU for all, which costs little more than for one; on a CPU for the first."""
        solving = [job for job in jobs if job.current is not None]
        if self._device.type == "cpu":
            del solving[1:]
        passes = [job.current for job in solving if job.current is not None]
        if len(solving) == 1:
            self._guarded(lambda _: step_passes(passes), solving[0], failures)
        elif solving:
            step_passes(passes)
        for job in solving:
            if job not in failures and job.current is not None and job.current.done:
                job.solved()
                if job.mel_is_last:
                    self._streams.let_go(job)

    def _speak(
        self,
        jobs: list[CosyVoiceJob],
        sounds: dict[CosyVoiceJob, list[Samples]],
        failures: dict[CosyVoiceJob, Exception],
    ) -> None:
        """Samples of what is solved."""
        items = [(job, *job.next_frames()) for job in jobs if job.mel is not None]
        if not items:
            return
        states = [(job.vocoder, mel, last) for job, mel, last in items if job.vocoder is not None]
        for (job, _, last), samples in zip(items, self._vocoder.push_many(states), strict=True):
            if not bool(torch.isfinite(samples).all()):
                failures[job] = EngineError("the models made numbers that are no sound", kind="not_finite")
                continue
            sounds[job].append(job.wanted(samples.cpu().numpy()))
            if last:
                sounds[job].append(job.wanted(np.zeros(job.pause, np.float32)))
                job.over = True

    @staticmethod
    def _guarded(
        do: Callable[[CosyVoiceJob], None], job: CosyVoiceJob, failures: dict[CosyVoiceJob, Exception]
    ) -> None:
        """Whatever it raises is the fault of this job alone."""
        try:
            do(job)
        except Exception as error:  # noqa: BLE001  # becomes the job's SegmentFailed
            failures[job] = error

    def _events(self, job: CosyVoiceJob, sounds: list[Samples], failure: Exception | None) -> list[StepEvent]:
        if failure is not None:
            self._let_go(job)
            return [SegmentFailed(job, failure)]
        samples = sounds[0] if len(sounds) == 1 else np.concatenate(sounds) if sounds else NOTHING
        events: list[StepEvent] = [Chunk(job, samples, codes=job.new_codes())]
        if job.over:
            self._let_go(job)
            events.append(SegmentEnd(job))
        return events


def _goes_on(job: CosyVoiceJob) -> bool:
    """Whether another round of the same step may bring it on."""
    return not job.idle and job.waits_since is None
