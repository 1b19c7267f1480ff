"""How well sentences sound that are spoken in several segments: each join of the embedded engine against the same place
of the sentence spoken in one call, with more and less context, and what the context costs.

Differences of the step of pitch over the join and of the pitch of the words around it (semitones), of the step of
level and the mel spectrum (dB), of the pause (ms), and the lengths of the words beside it (1: as in one call).
"""

import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from bench._common import Report, arguments, percentile
from bench._joins_measure import JoinError, Speech, Word, compare, mean_error
from bench._joins_texts import SENTENCES
from server.engines import registry
from server.engines.base import Chunk, Engine, RenderPlan, Segment, SegmentEnd, WordTiming
from server.engines.embedded import pieces
from server.text.normaliser import normalise
from server.text.tokens import Boundary, Cut, CutCause, Language, Token

_UNITS: Final[dict[str, str]] = {
    "pitch_step": "st", "pitch_after": "st", "pitch_offset": "st", "pitch_before": "st", "level_step": "dB",
    "mel": "dB", "pause": "ms", "last_word": "", "first_word": "",
}  # fmt: skip
_EVERYTHING: Final = 64  # words; longer than any of the sentences
KINDS: Final = (Boundary.WORD, Boundary.CLAUSE)
_MARKS: Final = frozenset("，,")


@dataclass(frozen=True, slots=True)
class Setting:
    """How much an engine may know of what surrounds a segment."""

    name: str
    words: int  # of context
    continued: bool = True  # whether a segment that runs on is followed by words that are thrown away

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The engine's own constants are replaced: what was decided by measuring is no setting."""
        changes: dict[str, Any] = {"CONTEXT_WORDS": self.words}
        if not self.continued:
            changes["STOCK_CONTINUATION"] = {"zh": (), "en": ()}
        with patch.multiple(pieces, **changes):
            yield


ALONE: Final = Setting("alone", 0, continued=False)
BUILT: Final = Setting(f"context {pieces.CONTEXT_WORDS}, as built", pieces.CONTEXT_WORDS)
SETTINGS: Final = (ALONE, Setting("continued", 0), BUILT, Setting("context 16", 16), Setting("context 32", 32))


@dataclass(frozen=True, slots=True)
class Sentence:
    """Tokens, and the joins as (number of words before it, number of tokens before it, its kind)."""

    tokens: tuple[Token, ...]
    joins: tuple[tuple[int, int, Boundary], ...]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A segment's sound."""

    samples: np.ndarray[tuple[int], np.dtype[np.float64]]
    words: tuple[WordTiming, ...]
    first_ms: float
    work_ms: float


def read(text: str, language: Language) -> Sentence:
    """A sentence of the list; it is joined at its slashes and commas."""
    plain = text.replace("/", "")
    tokens = normalise(Cut(0, len(plain), plain, Boundary.SENTENCE, CutCause.PUNCTUATION, language))
    slashes = [position - number for number, position in enumerate(i for i, c in enumerate(text) if c == "/")]
    joins = []
    words = 0
    for index, token in enumerate(tokens):
        if token.start in slashes:
            joins.append((words, index, Boundary.WORD))
        words += token.kind == "word"
        if token.text in _MARKS:
            joins.append((words, index + 1, Boundary.CLAUSE))
    return Sentence(tokens, tuple(joins))


def render(engine: Engine, segment: Segment) -> Rendered:
    """Speak a segment. The models run in this thread, so its CPU time is theirs, whatever else the machine does."""
    parts: list[Any] = []
    words: list[WordTiming] = []
    first_ms = 0.0
    begun = time.thread_time()
    job = engine.prepare(segment, RenderPlan("stream"), seed=1)
    while not isinstance(event := engine.step([job])[0], SegmentEnd):
        assert isinstance(event, Chunk), event
        first_ms = first_ms or 1000 * (time.thread_time() - begun)
        parts.append(event.samples)
        words += event.words
    return Rendered(
        np.concatenate(parts).astype(np.float64), tuple(words), first_ms, 1000 * (time.thread_time() - begun)
    )


def whole(engine: Engine, sentence: Sentence, voice: str) -> Speech:
    """The sentence in one call of its model."""
    limits: dict[str, Any] = {
        "MAX_WORDS": {"zh": _EVERYTHING, "en": _EVERYTHING},
        "PARTING": {"zh": frozenset(), "en": frozenset()},
    }
    with patch.multiple(pieces, **limits):
        spoken = render(engine, Segment(0, sentence.tokens, Boundary.SENTENCE, voice))
    return Speech(spoken.samples, tuple(Word(w.first_sample, w.end_sample) for w in spoken.words))


def joined(engine: Engine, sentence: Sentence, voice: str) -> tuple[Speech, list[Rendered]]:
    """The sentence in segments, put together as they come, and the segments."""
    bounds = [0, *(index for _, index, _ in sentence.joins), len(sentence.tokens)]
    kinds = [*(kind for _, _, kind in sentence.joins), Boundary.SENTENCE]
    segments = []
    words: list[Word] = []
    at = 0
    for number, kind in enumerate(kinds):
        tokens = sentence.tokens[bounds[number] : bounds[number + 1]]
        before = sentence.tokens[: bounds[number]]
        spoken = render(engine, Segment(number, tokens, kind, voice, before=before))
        words += [Word(w.first_sample + at, w.end_sample + at) for w in spoken.words]
        at += len(spoken.samples)
        segments.append(spoken)
    return Speech(np.concatenate([each.samples for each in segments]), tuple(words)), segments


@dataclass(frozen=True, slots=True)
class Outcome:
    """One language with one setting."""

    errors: Mapping[Boundary, JoinError]
    counts: Mapping[Boundary, int]
    first_ms: float  # CPU time up to the first chunk: median over the segments that others come before
    work_share: float  # CPU time as a share of the speech's length: median over the segments


def measure(engine: Engine, language: Language) -> dict[str, Outcome]:
    """All sentences of a language, each in every setting by turns, so that a busy machine slows them alike."""
    voice = "zh-baker" if language == "zh" else "en-hibari"
    errors: dict[tuple[str, Boundary], list[JoinError]] = defaultdict(list)
    segments: dict[str, list[Rendered]] = defaultdict(list)
    later: dict[str, list[float]] = defaultdict(list)
    for text in SENTENCES[language]:
        sentence = read(text, language)
        reference = whole(engine, sentence, voice)
        for setting in SETTINGS:
            with setting.applied():
                speech, spoken = joined(engine, sentence, voice)
            segments[setting.name] += spoken
            later[setting.name] += [each.first_ms for each in spoken[1:]]
            for join, _, kind in sentence.joins:
                errors[setting.name, kind].append(compare(speech, reference, join))
    rate = engine.capabilities.sample_rate
    return {
        name: Outcome(
            {kind: mean_error(errors[name, kind]) for kind in KINDS},
            {kind: len(errors[name, kind]) for kind in KINDS},
            percentile(later[name], 0.5),
            percentile([each.work_ms / 1000 / (len(each.samples) / rate) for each in spoken], 0.5),
        )
        for name, spoken in segments.items()
    }


def table(language: Language, outcomes: Mapping[str, Outcome]) -> str:
    """A row for each setting and kind of join."""
    names = [f.name for f in fields(JoinError)]
    heading = ["join", "setting", *(f"{name} {_UNITS[name]}".strip() for name in names), "first ms", "CPU/s"]
    rows = [heading]
    for kind in KINDS:
        for setting, outcome in outcomes.items():
            figures = [f"{getattr(outcome.errors[kind], name):.2f}" for name in names]
            title = f"{kind} ({outcome.counts[kind]})"
            rows.append([title, setting, *figures, f"{outcome.first_ms:.1f}", f"{outcome.work_share:.4f}"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(heading))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([f"{language}: differences from the sentence in one call", *lines])


def main() -> int:
    """The exit status is 1 when the engine as it is built joins worse than without context."""
    chosen = arguments(__doc__)
    report = Report("joins")
    engine = registry.create("embedded", {})
    engine.warm_up()
    languages: tuple[Language, ...] = ("zh", "en")
    for language in languages:
        outcomes = measure(engine, language)
        report.note(table(language, outcomes))
        alone, built = outcomes[ALONE.name], outcomes[BUILT.name]
        for kind in alone.errors:
            for each in fields(JoinError):
                before, after = getattr(alone.errors[kind], each.name), getattr(built.errors[kind], each.name)
                limit = before if each.name in ("pitch_after", "mel") else None
                report.add(f"{language}, {kind}: {each.name}, alone", before, _UNITS[each.name])
                report.add(f"{language}, {kind}: {each.name}, as built", after, _UNITS[each.name], limit)
        report.add(f"{language}: CPU time of a second of speech, alone", 1000 * alone.work_share, "ms")
        report.add(f"{language}: CPU time of a second of speech, as built", 1000 * built.work_share, "ms")
    engine.close()
    return report.finish(chosen.json)


if __name__ == "__main__":
    sys.exit(main())
