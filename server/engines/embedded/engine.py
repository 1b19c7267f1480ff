"""The engine itself: jobs, steps, and which model speaks which piece.

The voice `zh-baker` speaks Hanzi with the Chinese model and everything else with the English one. `en-hibari` uses the
English model alone, whatever the text: who asks for the freely licensed voice must not get the other.
"""

import logging
import platform
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

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
    Voice,
    WordTiming,
)
from server.engines.embedded.catalog import ALL_VOICES, CHINESE, ENGLISH
from server.engines.embedded.chinese_voice import ChineseVoice
from server.engines.embedded.counting import MAX_TOKENS, count_tokens
from server.engines.embedded.english_voice import EnglishVoice
from server.engines.embedded.fingerprint import cpu_flags, fingerprint, weight_type_for
from server.engines.embedded.options import Options
from server.engines.embedded.pieces import CONTEXT_WORDS, Piece, cut_into_pieces, word_timings
from server.engines.embedded.rendering import ChunkSizes, SpokenPiece
from server.engines.embedded.shaping import SAMPLE_RATE
from server.engines.embedded.voice_build import ENGLISH_MODEL, VoiceBuilder, hibari_assets
from server.engines.model_cache import CacheEntry, ModelCacheError
from server.text.tokens import Boundary, Language, Token

SPEED_RANGE = (0.5, 2.0)
PITCH_RANGE = (0.5, 2.0)

_log = logging.getLogger(__name__)
_SAMPLE_WORDS: dict[Language, str] = {"zh": "你 好 ， 世 界 。", "en": "Hello , world ."}
_NOTHING: Samples = np.zeros(0, np.float32)
_MODES: tuple[RenderMode, ...] = ("stream", "block")


@dataclass(eq=False, slots=True)
class EmbeddedJob(Job):
    """A segment being rendered; `output` runs the models as it is read and is None once the job has ended."""

    output: Iterator[tuple[Samples, tuple[WordTiming, ...]]] | None = field(default=None, repr=False)


class EmbeddedEngine:
    """Implements `server.engines.base.Engine`. `step` may run in several threads, for different jobs."""

    def __init__(self, options: Options) -> None:
        """Load the models, building them first where needed. Raises `EngineError` when not even one can be had."""
        flags = cpu_flags()
        self.weight_type = weight_type_for(platform.machine(), flags)
        self._absent: dict[Language, str] = {}
        entries = self._entries(options)
        self._chinese: ChineseVoice | None = None
        self._english: EnglishVoice | None = None
        if entry := entries.get("zh"):
            self._chinese = ChineseVoice(entry.folder, self.weight_type, options.threads)
        if entry := entries.get("en"):
            self._english = EnglishVoice(entry.path(ENGLISH_MODEL), hibari_assets(), options.threads)
        self._capabilities = _capabilities(entries, fingerprint(entries.values(), self.weight_type, flags))

    def _entries(self, options: Options) -> dict[Language, CacheEntry]:
        builder = VoiceBuilder(options.model_dir, options.sources, report=_log.info, announce=_to_stderr)
        entries: dict[Language, CacheEntry] = {}
        first_error: ModelCacheError | None = None
        wanted: tuple[tuple[Language, Voice], ...] = (("zh", CHINESE), ("en", ENGLISH))
        for language, voice in wanted:
            if options.voices is not None and voice.id not in options.voices:
                self._absent[language] = f"voice {voice.id} is not among the voices this server was told to load"
                continue
            try:
                entries[language] = builder.chinese() if language == "zh" else builder.english()
            except ModelCacheError as error:
                if options.voices is not None:
                    raise
                first_error = first_error or error
                self._absent[language] = f"voice {voice.id} could not be built: {error}"
                _log.warning("starting without voice %s: %s", voice.id, error)
        if not entries and first_error:
            raise first_error
        return entries

    @property
    def capabilities(self) -> Capabilities:
        """What this engine can do with the voices that could be had."""
        return self._capabilities

    def use_context_cache(self, cache: ContextCache) -> None:
        """See `UsesContextCache`: what the models made of a piece is kept there."""
        for voice in (self._chinese, self._english):
            if voice is not None:
                voice.reuse.use(cache, self._capabilities.fingerprint)

    def warm_up(self) -> None:
        """Render a short text in each voice: the first call of a model is about 100 ms slower than the next.

        Raises `EngineError` when a voice cannot speak: the server must not open for listeners who would hear nothing.
        """
        for voice in self._capabilities.voices:
            for mode in _MODES:
                job = self.prepare(_sample_segment(voice), RenderPlan(mode))
                while not isinstance(event := self.step([job])[0], SegmentEnd):
                    if isinstance(event, SegmentFailed):
                        raise EngineError(f"voice {voice.id} cannot speak: {event.error}") from event.error

    def prepare(self, segment: Segment, plan: RenderPlan, seed: int = 0, start_sample: int = 0) -> EmbeddedJob:
        """See `Engine.prepare`."""
        job = EmbeddedJob(segment, plan)
        job.output = self._render(segment, plan, seed, start_sample)
        return job

    def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
        """The next chunk of each job; the models of later pieces run in later steps."""
        return [self._step(job) for job in jobs]

    def cancel(self, job: Job) -> None:
        """Forget a job; a step with it ends it."""
        if isinstance(job, EmbeddedJob):
            job.output = None

    def close(self) -> None:
        """Let go of the models; jobs that go on after this fail."""
        self._chinese = self._english = None

    def _step(self, job: Job) -> StepEvent:
        if not isinstance(job, EmbeddedJob) or job.output is None:
            return SegmentEnd(job)
        try:
            samples, words = next(job.output)
        except StopIteration:
            job.output = None
            return SegmentEnd(job)
        except EngineError as error:
            job.output = None
            return SegmentFailed(job, error)
        return Chunk(job, samples, words)

    def _render(
        self, segment: Segment, plan: RenderPlan, seed: int, start_sample: int
    ) -> Iterator[tuple[Samples, tuple[WordTiming, ...]]]:
        """Chunks of the segment from `start_sample` on. Chunks wholly before it are planned but never computed; a
        piece of which nothing is wanted gives an empty one, so that a step never runs the models of several.
        """
        sizes = ChunkSizes(plan)
        position = 0
        for piece in cut_into_pieces(segment, _spoken_languages(segment.voice)):
            spoken = self._speak(piece, segment, seed, sizes)
            if spoken is None:
                continue
            shifted = tuple((first + position, end + position) for first, end in spoken.word_spans)
            words = word_timings(piece, segment.tokens, shifted)
            if start_sample:
                words = tuple(w for w in words if w.end_sample > start_sample)
            if sizes.blocks:
                yield _NOTHING, ()  # the models ran; in blocks their samples get steps of their own
            for chunk in spoken.chunks:
                end = position + chunk.length
                if end > start_sample:
                    yield chunk.render()[max(0, start_sample - position) :], words
                    words = ()
                position = end
            if position <= start_sample and not sizes.blocks:
                yield _NOTHING, ()

    def _speak(self, piece: Piece, segment: Segment, seed: int, sizes: ChunkSizes) -> SpokenPiece | None:
        speed = float(np.clip(segment.speed, *SPEED_RANGE))
        pitch = float(np.clip(segment.pitch, *PITCH_RANGE))
        if piece.language == "zh":
            if self._chinese is None:
                raise self._cannot_speak("zh")
            return self._chinese.speak(piece, speed, pitch, sizes)
        if self._english is None:
            raise self._cannot_speak("en")
        return self._english.speak(piece, speed, pitch, seed, sizes)

    def _cannot_speak(self, language: Language) -> EngineError:
        name = "Chinese" if language == "zh" else "English"
        reason = self._absent.get(language, "the engine is closed")
        return EngineError(f"this server cannot speak {name} text: {reason}")


def _spoken_languages(voice_id: str) -> tuple[Language, ...]:
    """Between what a voice's models can speak. Raises `EngineError` for a voice that does not exist."""
    for voice in ALL_VOICES:
        if voice.id == voice_id:
            return voice.languages
    raise EngineError(f"the embedded engine has no voice {voice_id!r}")


def _capabilities(entries: dict[Language, CacheEntry], name: str) -> Capabilities:
    by_id: dict[str, Language] = {CHINESE.id: "zh", ENGLISH.id: "en"}
    languages = tuple(entries)
    voices = tuple(
        Voice(v.id, v.name, tuple(x for x in v.languages if x in languages), v.description, v.license, v.notice)
        for v in ALL_VOICES
        if by_id[v.id] in languages
    )
    return Capabilities(
        name="embedded",
        languages=languages,
        sample_rate=SAMPLE_RATE,
        voices=voices,
        max_tokens=MAX_TOKENS,
        count_tokens=count_tokens,
        fingerprint=name,
        # The seed draws the noise in the English model's breath and hiss; the Chinese model has no chance in it.
        parameters=frozenset({"speed", "pitch", *(["seed"] if "en" in languages else [])}),
        timings=True,
        batch_max=1,
        equality="lsb",
        context_tokens=CONTEXT_WORDS,
    )


def _sample_segment(voice: Voice) -> Segment:
    """A segment for warming up, in the voice's own language."""
    language = voice.languages[0]
    parts = _SAMPLE_WORDS[language].split()
    tokens = tuple(Token(p, i, i + 1, language, "word" if p.isalpha() else "mark") for i, p in enumerate(parts))
    return Segment(0, tokens, Boundary.SENTENCE, voice.id)


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")
