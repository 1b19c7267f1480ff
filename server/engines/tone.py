"""A deterministic engine for tests and load: each word is a short tone whose pitch follows from its letters.

It costs almost nothing, needs no models, and does on demand what real engines do by accident: it can be slow, stall,
fail or crash. Options: `step_delay_ms` (every step), `batch_max` (jobs that share one step, default 2), `max_tokens`
(of a segment, default 40), `context_tokens` (of the text before it, default 0; it changes no sample) and `script`, a
list of `{"match": TEXT, "at": CHUNK, "action": "delay" | "stall" | "fail" | "crash", "ms": N}` that acts on
segments whose text contains TEXT when they reach chunk number CHUNK (from 0). `delay` and `stall` sleep (stall: 60 s
unless `ms` says less), `fail` fails that job alone, `crash` raises out of the whole step, as a broken engine would.
"""

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from zlib import crc32

import numpy as np

from server.engines.base import (
    Capabilities,
    Chunk,
    EngineError,
    Job,
    RenderPlan,
    Samples,
    Segment,
    SegmentEnd,
    SegmentFailed,
    StepEvent,
    Voice,
    WordTiming,
)
from server.text.characters import HANZI_CLASS
from server.text.tokens import Boundary, Token

SAMPLE_RATE: Final = 24_000
WORD_MS: Final = 120
PAUSE_MS: Final = {Boundary.WORD: 0, Boundary.CLAUSE: 120, Boundary.SENTENCE: 240, Boundary.PARAGRAPH: 400}
CHUNK_MS: Final = (100, 200, 400)
FADE_SAMPLES: Final = 120  # 5 ms: no click at a word's edge
STALL_MS: Final = 60_000
UNIT: Final = re.compile(rf"[{HANZI_CLASS}]|[^\W{HANZI_CLASS}]+")
ACTIONS: Final = ("delay", "stall", "fail", "crash")
MAX_TOKENS: Final = 40  # of a segment, as the embedded engine has it
OPTIONS: Final = ("batch_max", "context_tokens", "max_tokens", "script", "step_delay_ms")
RULE_KEYS: Final = ("action", "at", "match", "ms")
MAX_BATCH: Final = 1000


@dataclass(frozen=True, slots=True)
class Rule:
    """One line of the script."""

    match: str
    at: int
    action: str
    ms: int


@dataclass(eq=False, slots=True)
class ToneJob(Job):
    """The whole segment is known at once; steps only hand it out, from `start` on."""

    audio: Samples = field(default_factory=lambda: np.zeros(0, np.float32))
    words: tuple[WordTiming, ...] = ()
    text: str = ""
    start: int = 0
    sent: int = 0  # where chunk number `chunk` begins
    chunk: int = 0
    chunk_ms: tuple[int, ...] = CHUNK_MS

    @property
    def chunk_end(self) -> int:
        """The sample where the next chunk ends."""
        ms = self.chunk_ms[min(self.chunk, len(self.chunk_ms) - 1)]
        return min(len(self.audio), self.sent + ms * SAMPLE_RATE // 1000)

    def go_on(self) -> None:
        """To the chunk after the next."""
        self.sent, self.chunk = self.chunk_end, self.chunk + 1


class ToneEngine:
    """See the module text."""

    def __init__(
        self,
        *,
        step_delay_ms: float = 0,
        batch_max: int = 2,
        max_tokens: int = MAX_TOKENS,
        context_tokens: int = 0,
        script: Sequence[Rule] = (),
    ) -> None:
        """See the module text for the options."""
        self._delay_s = step_delay_ms / 1000
        self._script = tuple(script)
        voices = tuple(
            Voice(f"tone-{name}", f"Tone, {name}", ("zh", "en"), "A test signal, not speech.", "Apache-2.0")
            for name in ("low", "high")
        )
        self.capabilities: Capabilities = Capabilities(
            name="tone",
            languages=("zh", "en"),
            sample_rate=SAMPLE_RATE,
            voices=voices,
            max_tokens=max_tokens,
            count_tokens=count_tokens,
            fingerprint="tone-1",
            parameters=frozenset({"speed", "pitch", "seed"}),
            timings=True,
            batch_max=batch_max,
            equality="exact",
            context_tokens=context_tokens,
        )

    def warm_up(self) -> None:
        """Nothing is slow here."""

    def prepare(
        self, segment: Segment, plan: RenderPlan, context: object | None = None, seed: int = 0, start_sample: int = 0
    ) -> ToneJob:
        """Render the whole segment: it is only sines. Chunks have the same ends and numbers wherever it starts."""
        audio, words = render(segment, seed)
        text = "".join(token.text for token in segment.tokens)
        chunk_ms = plan.chunk_ms or ((60_000,) if plan.mode == "block" else CHUNK_MS)
        # of a list, not of a generator: docs/decisions.md, "Tuples of lists"
        later = tuple([word for word in words if word.end_sample > start_sample])
        job = ToneJob(segment, plan, audio, later, text, start_sample, chunk_ms=chunk_ms)
        while job.sent < len(audio) and job.chunk_end <= start_sample:
            job.go_on()
        return job

    def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
        """The next chunk of every job."""
        if self._delay_s:
            time.sleep(self._delay_s)
        events: list[StepEvent] = []
        for job in jobs:
            assert isinstance(job, ToneJob)
            failure = self._act(job)
            if failure:
                events.append(SegmentFailed(job, failure))
                continue
            first, end = max(job.start, job.sent), job.chunk_end
            if end > first:
                events.append(Chunk(job, job.audio[first:end], job.words))
                job.words = ()
            job.go_on()
            if job.sent == len(job.audio):
                events.append(SegmentEnd(job))
        return events

    def _act(self, job: ToneJob) -> EngineError | None:
        for rule in self._script:
            if rule.at == job.chunk and rule.match in job.text:
                if rule.action == "fail":
                    return EngineError(f"scripted failure at chunk {job.chunk}")
                if rule.action == "crash":
                    raise RuntimeError(f"scripted crash at chunk {job.chunk}")
                time.sleep(rule.ms / 1000)
        return None

    def cancel(self, job: Job) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


@lru_cache(maxsize=128)
def _tone(samples: int, base_hz: float, semitone: int) -> Samples:
    """One word. There are few, and their sines would be most of what this engine costs."""
    t = np.arange(samples, dtype=np.float64) / SAMPLE_RATE
    envelope = np.minimum(1.0, np.minimum(np.arange(samples), np.arange(samples)[::-1]) / FADE_SAMPLES)
    tone: Samples = (0.3 * envelope * np.sin(2 * np.pi * base_hz * 2 ** (semitone / 12) * t)).astype(np.float32)
    return tone


def render(segment: Segment, seed: int = 0) -> tuple[Samples, tuple[WordTiming, ...]]:
    """The segment's samples at 24 kHz and its words. A word sounds alike wherever it stands."""
    per_word = round(WORD_MS * SAMPLE_RATE / 1000 / segment.speed)
    pause = round(PAUSE_MS[segment.boundary] * SAMPLE_RATE / 1000 / segment.speed)
    base = (220.0 if segment.voice.endswith("low") else 440.0) * segment.pitch
    parts: list[Samples] = []
    words: list[WordTiming] = []
    at = 0
    last: Token | None = None
    for token in segment.tokens:
        if token.kind != "word":
            continue
        semitone = (crc32(token.text.encode("utf-8", "replace")) + seed) % 24
        parts.append(_tone(per_word, base, semitone))
        if last is not None and (last.start, last.end) == (token.start, token.end):
            words[-1] = WordTiming(
                words[-1].text + token.text, token.start, token.end, words[-1].first_sample, at + per_word
            )
        else:
            words.append(WordTiming(token.text, token.start, token.end, at, at + per_word))
        last = token
        at += per_word
    if not parts:
        return np.zeros(0, np.float32), ()
    parts.append(np.zeros(pause, np.float32))
    return np.concatenate(parts), tuple(words)


def count_tokens(text: str) -> int:
    """A Hanzi or a word counts one."""
    return len(UNIT.findall(text))


def create(options: Mapping[str, Any]) -> ToneEngine:
    """The engine named `tone`. Raises ValueError, one line, for options it does not have or that are wrong."""
    unknown = sorted(map(str, set(options) - set(OPTIONS)))
    if unknown:
        raise ValueError(f"engine option {unknown[0]} is not one of {', '.join(OPTIONS)}")
    lines = options.get("script", ())
    if not isinstance(lines, list | tuple) or not all(isinstance(line, Mapping) for line in lines):
        raise ValueError(f"engine option script must be a list of tables, not {lines!r}")
    return ToneEngine(
        step_delay_ms=_number("step_delay_ms", options.get("step_delay_ms", 0), 0, STALL_MS),
        batch_max=_whole("batch_max", options.get("batch_max", 2), 1, MAX_BATCH),
        max_tokens=_whole("max_tokens", options.get("max_tokens", MAX_TOKENS), 16, 4096),
        context_tokens=_whole("context_tokens", options.get("context_tokens", 0), 0, 64),
        script=[_rule(line) for line in lines],
    )


def _rule(line: Mapping[str, Any]) -> Rule:
    """One line of the option `script`, checked."""
    action, match = line.get("action"), line.get("match", "")
    if action not in ACTIONS:
        raise ValueError(f"engine option script: action must be one of {', '.join(ACTIONS)}, not {action!r}")
    if not isinstance(match, str):
        raise ValueError(f"engine option script: match must be a text, not {match!r}")
    unknown = sorted(map(str, set(line) - set(RULE_KEYS)))
    if unknown:
        raise ValueError(f"engine option script: {unknown[0]} is not one of {', '.join(RULE_KEYS)}")
    ms = line.get("ms", STALL_MS if action == "stall" else 0)
    return Rule(match, _whole("script: at", line.get("at", 0), 0, 10**9), action, _whole("script: ms", ms, 0, STALL_MS))


def _whole(name: str, value: Any, lowest: int, highest: int) -> int:
    number = _number(name, value, lowest, highest)
    if not number.is_integer():
        raise ValueError(f"engine option {name} must be a whole number, not {value!r}")
    return int(number)


def _number(name: str, value: Any, lowest: float, highest: float) -> float:
    """A number, also written as a text, as options from a command line are."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not lowest <= number <= highest:
        raise ValueError(f"engine option {name} must be a number from {lowest:g} to {highest:g}, not {value!r}")
    return number
