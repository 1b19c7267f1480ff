"""The engine's side of one segment: from a request to a job, from the job's events to PCM at the requested rate."""

import traceback
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Final

import numpy as np

from server.audio.chain import NotSound, SegmentChain
from server.engines import codes as coded
from server.engines.base import (
    Chunk,
    Engine,
    EngineError,
    FailureKind,
    Job,
    Samples,
    Segment,
    SegmentFailed,
    StepEvent,
    WordTiming,
)
from server.engines.rendering import RenderedChunk, SegmentRequest
from server.text.normaliser import normalise
from server.text.speaking_time import longest_duration
from server.text.tokens import Boundary, Cut, CutCause, Token

NOTHING: Final[Samples] = np.zeros(0, np.float32)
SILENT: Final = 0.001
"""-60 dBFS. What never gets louder says no word: the quietest speech that engines were seen to make is 40 dB above."""
MOST_CODES: Final = 65_536
"""Speech codes of a segment that count as progress: three quarters of an hour at 25 a second. It has an end, or an
engine that only draws would be asked for ever.
"""
_NO_MEMORY: Final = ("out of memory", "failed to allocate memory")  # of a device, as CUDA, torch and onnxruntime say it


@dataclass(frozen=True, slots=True)
class End:
    """The segment is complete."""


Result = RenderedChunk | End | Exception


class SegmentWork:
    """One rendering of a segment, from `start_sample` on (requested rate); the engine does not render what lies before.

    Its samples and word times are those of a whole rendering. Words that ended just before the start may be among them,
    and all of an engine that learns of its words late: whoever goes on with a segment knows which it was told of.
    What cannot be the text fails: samples that are no sound, silence in place of words, and far more than it can take.
    Speech codes are told with the audio that comes next, or at the end: one told by one they would be most of the work.
    Only one engine thread at a time works on it.
    """

    def __init__(
        self, request: SegmentRequest, start_sample: int, engine_rate: int, untold: Sequence[int] = ()
    ) -> None:
        """`untold`: the last of the request's codes, of which nobody has heard yet."""
        self.job: Job | None = None
        self.failed = False  # by a verdict from here: the engine knows nothing of it
        self._request = request
        self._whole = start_sample == 0
        self._rate = engine_rate
        self._speaks = False  # there are words in it, and all of it is rendered: else nobody knows what came before
        self._heard = False
        self._made = 0  # engine samples
        self._most = 0
        self._chain = SegmentChain(engine_rate, request.sample_rate, request.volume, start_sample)
        self._audio_s = 0.0
        self._fruitless_s = 0.0
        self._sampled: list[int] = []  # speech codes
        self._untold = list(untold)

    @property
    def codes(self) -> tuple[int, ...]:
        """The speech codes that it came with or that the engine told of; to be asked for from any thread."""
        return (*self._request.codes, *self._sampled)

    def fruitless_s(self, seconds: float) -> float:
        """A step of it took so long. For how long steps have made no audio and no codes of it, one after the other."""
        self._fruitless_s += seconds
        return self._fruitless_s

    def take_audio_s(self) -> float:
        """Seconds of audio that were made since it was asked last."""
        seconds, self._audio_s = self._audio_s, 0.0
        return seconds

    def begin(self, engine: Engine) -> Job:
        """The engine's job, made at the first call. May raise whatever an engine or a text rule does."""
        if self.job is None:
            request = self._request
            markup = engine.capabilities.markup
            tokens = normalise(request.cut, lexicon=request.lexicon, markup=markup)
            self._speaks = self._whole and any(token.kind == "word" for token in tokens)
            most_s = longest_duration(tokens, request.cut.boundary) / min(1.0, request.speed)
            self._most = round(most_s * self._rate) - self._chain.first_input
            segment = Segment(
                request.id,
                tokens,
                request.cut.boundary,
                request.voice,
                request.speed,
                request.pitch,
                request.instruct,
                tokens_before(request, markup),
                request.codes,
            )
            self.job = engine.prepare(segment, request.plan, request.seed, self._chain.first_input)
        return self.job

    def results(self, event: StepEvent) -> list[Result]:
        """An event as whoever listens sees it: gain, rate and sample format applied. Nothing after it has failed."""
        if self.failed:
            return []
        try:
            return self._results(event)
        except NotSound as error:
            return [self.fail(EngineError(str(error), kind="not_finite"))]
        except ValueError as error:
            return [self.fail(as_engine_error(error))]

    def fail(self, error: EngineError) -> EngineError:
        """It fails with this, whatever the engine still makes of it; whose job is to be cancelled."""
        self.failed = True
        return error

    def _results(self, event: StepEvent) -> list[Result]:
        if isinstance(event, SegmentFailed):
            return [as_engine_error(event.error, transient=event.transient)]
        if isinstance(event, Chunk):
            if event.codes:
                sampled = coded.from_bytes(coded.to_bytes(event.codes))
                self._sampled += sampled
                self._untold += sampled
                if len(self._sampled) <= MOST_CODES:  # its audio takes a while on a slow machine
                    self._fruitless_s = 0.0
            pcm = self._chain.process(event.samples, last=False)
            if self._note(event) > self._most:
                return [self.fail(EngineError("far more audio than the text can take", kind="repeated"))]
            scale = self._chain.scale
            # of a list, not of a generator: docs/decisions.md, "Tuples of lists"
            words = tuple(
                [WordTiming(w.text, w.start, w.end, scale(w.first_sample), scale(w.end_sample)) for w in event.words]
            )
        else:
            pcm, words = self._chain.process(NOTHING, last=True), ()
        self._audio_s += len(pcm) / 2 / self._request.sample_rate
        if pcm:
            self._fruitless_s = 0.0
        results: list[Result] = []
        over = not isinstance(event, Chunk)
        if pcm or words or (over and self._untold):
            results.append(RenderedChunk(pcm, words, codes=tuple(self._untold)))
            self._untold.clear()
        if not over:
            return results
        silent = self._speaks and not self._heard
        return [*results, EngineError("silence in place of words", kind="silent") if silent else End()]

    def _note(self, chunk: Chunk) -> int:
        """Look at what the engine made. How many samples that is by now."""
        self._made += len(chunk.samples)
        if not self._heard and len(chunk.samples):
            self._heard = bool(np.abs(chunk.samples).max() > SILENT)
        return self._made


def tokens_before(request: SegmentRequest, markup: Set[str] = frozenset()) -> tuple[Token, ...]:
    """The tokens of `request.before`."""
    cut, text = request.cut, request.before
    if not text:
        return ()
    before = Cut(cut.start - len(text), cut.start, text, Boundary.WORD, CutCause.LENGTH, cut.language)
    return normalise(before, lexicon=request.lexicon, markup=markup)


def as_engine_error(error: Exception, *, transient: bool = False) -> EngineError:
    """`error` as an EngineError, with the original as its cause. It is transient where it says so or `transient` does.

    What escapes by accident is not, as nothing is known about it, but for a lack of memory: others give some back.
    """
    if isinstance(error, EngineError):
        error.transient = error.transient or transient
        return error
    short = isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in _NO_MEMORY)
    kind: FailureKind = "out_of_memory" if short else "exception"
    wrapped = EngineError(f"{type(error).__name__}: {error}", transient=transient or short, kind=kind)
    wrapped.__cause__ = error
    return wrapped


def trace_of(error: Exception) -> str:
    """Where an error came from, as Python shows it, also when that was another process."""
    if isinstance(error, EngineError) and error.trace:
        return error.trace
    return "".join(traceback.format_exception(error))
