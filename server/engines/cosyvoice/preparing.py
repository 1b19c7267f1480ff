"""From a segment to a job: its words, the rules of its voice, and chances of its own."""

from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from typing import Final

from server.cache.keys import BlockKey
from server.engines.base import ContextCache, RenderPlan, Segment
from server.engines.cosyvoice.flow.matching import CODES_PER_SECOND, LIMIT_S
from server.engines.cosyvoice.jobs import CosyVoiceJob, Lead
from server.engines.cosyvoice.llm.jobs import CodeJob, CodeLimits
from server.engines.cosyvoice.llm.turns import voice_ids
from server.engines.cosyvoice.llm.watching import SilentRuns, silent_codes
from server.engines.cosyvoice.loading import Loaded
from server.engines.cosyvoice.shelf import KeptVoice
from server.engines.cosyvoice.text.prompts import SpokenPrompt, prompt_of
from server.engines.cosyvoice.text.wording import TextPiece, text_of, wording
from server.engines.cosyvoice.vocoder.speed import MelSpeed
from server.text.tokens import Boundary, Token

_CODES_IN_ALL: Final = CODES_PER_SECOND * LIMIT_S  # of a segment and what is before it
_HELD_BACK: Final = 2  # tokens of a text that may grow
_MARKS: Final = 2  # ids that are neither voice nor text: of the start, and where the codes begin


class Preparer:
    """Makes jobs. Safe to use from several threads."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._config = loaded.model.config
        self.cache: ContextCache | None = None

    def prepare(self, segment: Segment, plan: RenderPlan, seed: int) -> CosyVoiceJob:
        """A job at its beginning; one that is over where the segment says nothing. Raises EngineError, ValueError."""
        text = text_of(wording(segment.tokens, segment.boundary))
        if not text:
            return CosyVoiceJob(segment, plan, over=True)
        loaded = self._loaded
        voice = loaded.shelf.take(segment.voice)
        prompt = prompt_of(voice.data, segment.instruct, loaded.tokenizer)
        before = text_of(wording(segment.before, Boundary.WORD))
        ids = loaded.tokenizer.encode(text)
        key = self._key(segment, seed, text, before)
        known = segment.codes or self._kept(key)
        prefix_ids = voice_ids(self._config.llm, prompt.text, prompt.codes, streaming=False)
        job = CosyVoiceJob(segment, plan, voice=voice, prefix_ids=prefix_ids)
        if not known:  # codes that came along may have been drawn elsewhere, a little differently: they are its alone
            job.key = key
        own = _seed(seed, text, before)
        work = partial(self._work, voice, prompt, ids, own, before, known)
        if before:
            self._lead(job, prompt, before, seed, work)
        else:
            job.work = work(())
        job.silence = SilentRuns(silent_codes(self._config.version))
        job.vocoder = loaded.model.vocoder.start(own, patient=job.whole)
        job.speed = MelSpeed(segment.speed) if segment.speed != 1.0 else None
        job.told = len(segment.codes)
        return job

    def prepare_late(self, segment: Segment, plan: RenderPlan, seed: int) -> CosyVoiceJob:
        """A job whose text may still come. Raises EngineError, ValueError."""
        loaded = self._loaded
        voice = loaded.shelf.take(segment.voice)
        prompt = prompt_of(voice.data, segment.instruct, loaded.tokenizer)
        self._check_length(len(prompt.text) + len(prompt.codes), 0)
        own = _seed(seed, "", "")  # the text is not known yet
        work = CodeJob(
            self._config.llm,
            (),
            prompt_text=prompt.text,
            prompt_codes=prompt.codes,
            seed=own,
            limits=CodeLimits(most=_CODES_IN_ALL - len(voice.data.codes)),
            known=segment.codes,
            streaming=True,
        )
        job = CosyVoiceJob(segment, plan, voice=voice, work=work, late=[], told=len(segment.codes))
        job.silence = SilentRuns(silent_codes(self._config.version))
        job.vocoder = loaded.model.vocoder.start(own, patient=job.whole)
        job.speed = MelSpeed(segment.speed) if segment.speed != 1.0 else None
        self.add_text(job, segment.tokens)
        return job

    def add_text(self, job: CosyVoiceJob, tokens: Sequence[Token]) -> None:
        """More tokens. The last two wait for what follows, which decides how they are written. Raises ValueError."""
        if job.late is None:
            raise ValueError("text: nothing can be added, it has ended")
        job.late += tokens
        if len(job.late) > _HELD_BACK:
            certain = job.late[-_HELD_BACK].start
            self._read(job, [piece for piece in wording(job.late, Boundary.WORD) if piece.end <= certain])

    def end_text(self, job: CosyVoiceJob) -> None:
        """No more tokens."""
        if job.late is not None and job.work is not None:
            self._read(job, wording(job.late, job.segment.boundary))
            job.late = None
            job.work.end_text()

    def _read(self, job: CosyVoiceJob, pieces: Sequence[TextPiece]) -> None:
        """Piece by piece, so that it makes no difference when they came."""
        assert job.work is not None
        for piece in pieces[job.late_read :]:
            job.work.add_text(self._loaded.tokenizer.encode(piece.text))
        job.late_read = len(pieces)

    def _lead(self, job: CosyVoiceJob, prompt: SpokenPrompt, before: str, seed: int, work: "partial[CodeJob]") -> None:
        """What was said before: spoken first, unless that is known from elsewhere."""
        key = self._key(job.segment, seed, before, "")
        assert job.voice is not None
        ids = self._loaded.tokenizer.encode(before)
        lead = self._work(job.voice, prompt, ids, _seed(seed, before, ""), "", self._kept(key), ())
        if lead.done:
            job.lead_codes = tuple(lead.codes)
            job.work = work(job.lead_codes)
        else:
            job.lead = Lead(lead, work, key)

    def _work(
        self,
        voice: KeptVoice,
        prompt: SpokenPrompt,
        ids: tuple[int, ...],
        seed: int,
        before: str,
        known: tuple[int, ...],
        lead_codes: tuple[int, ...],
    ) -> CodeJob:
        """The language model's part of it; `lead_codes` is what `before` sounds like. Raises ValueError where it does
        not fit, EngineError where the known codes went astray.
        """
        text = (*prompt.text, *self._loaded.tokenizer.encode(before)) if before else prompt.text
        self._check_length(len(text) + len(prompt.codes) + len(lead_codes), len(ids))
        room = _CODES_IN_ALL - len(voice.data.codes) - len(lead_codes)
        made = CodeJob(
            self._config.llm,
            ids,
            prompt_text=text,
            prompt_codes=(*prompt.codes, *lead_codes),
            seed=seed,
            limits=CodeLimits(most=room),
            known=known,
        )
        if made.error is not None:
            raise made.error
        return made

    def _check_length(self, voice: int, text: int) -> None:
        """Whether a text of so many tokens has room behind what belongs to the voice, and the fewest codes that it may
        become behind it. Raises ValueError.
        """
        room = self._loaded.decoder.slots.length
        need = voice + text + _MARKS + int(text * CodeLimits().least_per_token)
        if need > room:
            raise ValueError(
                f"engine option length: voice and text take {need} positions of the language model or more, and length"
                f" is {room}: allowed is a shorter recording or text, or a greater length"
            )

    def _key(self, segment: Segment, seed: int, text: str, before: str) -> BlockKey:
        """What the codes of a text depend on."""
        parameters = ("codes", segment.instruct, seed)
        return BlockKey(self._loaded.capabilities.fingerprint, segment.voice, parameters, (text,), (before,))

    def _kept(self, key: BlockKey) -> tuple[int, ...]:
        kept = self.cache.get(key) if self.cache is not None else None
        return kept if isinstance(kept, tuple) else ()


def _seed(seed: int, text: str, before: str) -> int:
    """Chances of its own for every text, so that the segments of a long one do not all draw alike."""
    digest = blake2b(f"{seed}\0{before}\0{text}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest)
