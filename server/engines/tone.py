"""A deterministic engine for tests and load: each word is a short tone whose pitch follows from its letters.

It costs almost nothing, needs no models, and does on demand what real engines do by accident: it can be slow, stall,
fail or crash. Options: `step_delay_ms` (every step), `batch_max` (jobs that share one step, default 2), `max_tokens`
(of a segment, default 40), `context_tokens` (of the text before it, default 0; it changes no sample), `lanes` (steps
side by side, default 0: any), `cloning` (default false: learn voices, see `tone_voice.py`), `codes` (default false: a
chunk is as loud as its speech code says, which is drawn anew in every process unless the segment brings it; the code of
one more chunk is told along) and `script`, a list of `{"match": TEXT, "at": CHUNK, "action": ACTION}` that acts on
segments whose text contains TEXT when they reach chunk number CHUNK (from 0):

- `delay`, `stall` sleep for `ms` (stall: 60 s unless it says less),
- `fail` fails that job alone (`transient`: and says that trying again may help), `oom` likewise for want of memory,
- `crash` raises out of the whole step, as a broken engine would,
- `nan` makes numbers that are no sound, `silent` nothing but silence, `repeat` this chunk over and over, for ever.

`times`: it acts only so often on a text, so that trying again helps. `rate` (0 to 1): on such a share of all segments,
chosen by their text and `seed`, the same ones in every run.
"""

import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
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
from server.engines.codes import MAX_CODE
from server.engines.tone_script import IN_STEP, STALL_MS, Rule, Script, number, rule_of, switch, whole_number
from server.engines.tone_voice import learn, pitch_of
from server.text.characters import HANZI_CLASS
from server.text.tokens import Boundary, Token

SAMPLE_RATE: Final = 24_000
WORD_MS: Final = 120
PAUSE_MS: Final = {Boundary.WORD: 0, Boundary.CLAUSE: 120, Boundary.SENTENCE: 240, Boundary.PARAGRAPH: 400}
CHUNK_MS: Final = (100, 200, 400)
FADE_SAMPLES: Final = 120  # 5 ms: no click at a word's edge
UNIT: Final = re.compile(rf"[{HANZI_CLASS}]|[^\W{HANZI_CLASS}]+")
MAX_TOKENS: Final = 40  # of a segment, as the embedded engine has it
OPTIONS: Final = ("batch_max", "cloning", "codes", "context_tokens", "lanes", "max_tokens", "script", "step_delay_ms")
MAX_BATCH: Final = 1000
LOW_HZ: Final = 220.0
HIGH_HZ: Final = 440.0
CODES_AHEAD: Final = 1


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
    loop: tuple[int, int] | None = None  # these samples over and over
    codes: list[int] | None = None  # of the chunks from the first on; None: they have none
    told: int = 0  # of the codes

    @property
    def chunk_end(self) -> int:
        """The sample where the next chunk ends."""
        if self.loop is not None and self.sent >= self.loop[0]:
            return self.sent + self.loop[1] - self.loop[0]
        ms = self.chunk_ms[min(self.chunk, len(self.chunk_ms) - 1)]
        return min(len(self.audio), self.sent + ms * SAMPLE_RATE // 1000)

    def go_on(self) -> None:
        """To the chunk after the next."""
        self.sent, self.chunk = self.chunk_end, self.chunk + 1

    def shape(self, rule: Rule) -> None:
        """Silence from the rule's chunk on, or that chunk for ever."""
        while self.chunk < rule.at and self.sent < len(self.audio):
            self.go_on()
        if rule.action == "silent":
            self.audio = self.audio.copy()
            self.audio[self.sent :] = 0
        elif self.sent < len(self.audio):
            self.loop = (self.sent, self.chunk_end)
        self.sent = self.chunk = 0

    @property
    def over(self) -> bool:
        """Whether all was handed out."""
        return self.loop is None and self.sent >= len(self.audio)

    def take(self) -> Samples:
        """The next chunk, or what is wanted of it."""
        first, end = max(self.start, self.sent), self.chunk_end
        back = 0 if self.loop is None else max(0, self.sent - self.loop[0])
        return self.audio[first - back : end - back]

    def sample(self) -> tuple[np.float32, tuple[int, ...]]:
        """The chunk's loudness by its code, and the codes that are to be told with it."""
        if self.codes is None:
            return np.float32(1), ()
        while len(self.codes) <= self.chunk + CODES_AHEAD:
            self.codes.append(secrets.randbelow(MAX_CODE + 1))
        fresh = tuple(self.codes[self.told :])
        self.told = len(self.codes)
        return np.float32(0.5 + self.codes[self.chunk] / (2 * MAX_CODE)), fresh


class ToneEngine:
    """See the module text."""

    def __init__(
        self,
        *,
        step_delay_ms: float = 0,
        batch_max: int = 2,
        max_tokens: int = MAX_TOKENS,
        context_tokens: int = 0,
        cloning: bool = False,
        codes: bool = False,
        lanes: int = 0,
        script: Sequence[Rule] = (),
    ) -> None:
        """See the module text for the options."""
        self._delay_s = step_delay_ms / 1000
        self._script = Script(script)
        self._codes = codes
        self._read: Callable[[str], bytes | None] = lambda _: None
        self._pitches: dict[str, float] = {}  # of learnt voices; bounded by how many there are
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
            fingerprint="tone-1-codes" if codes else "tone-1",
            parameters=frozenset({"speed", "pitch", "seed"}),
            timings=True,
            batch_max=batch_max,
            equality="none" if codes else "exact",
            context_tokens=context_tokens,
            cloning=cloning,
            lanes=lanes,
        )

    def make_voice(self, recording: bytes, text: str) -> bytes:
        """See ClonesVoices."""
        return learn(recording, text)

    def use_voices(self, read: Callable[[str], bytes | None]) -> None:
        """See ClonesVoices."""
        self._read = read

    def forget_voice(self, voice: str) -> None:
        """See ClonesVoices."""
        self._pitches.pop(voice, None)

    def _pitch(self, voice: str) -> float:
        """Of its words' lowest tone, in Hz. Raises EngineError."""
        if self.capabilities.voice(voice) is not None:
            return LOW_HZ if voice.endswith("low") else HIGH_HZ
        pitch = self._pitches.get(voice)
        if pitch is None:
            known = self._read(voice)
            if known is None:
                raise EngineError(f"the voice {voice} is gone")
            pitch = self._pitches[voice] = pitch_of(known)
        return pitch

    def warm_up(self) -> None:
        """Nothing is slow here."""

    def prepare(self, segment: Segment, plan: RenderPlan, seed: int = 0, start_sample: int = 0) -> ToneJob:
        """Render the whole segment: it is only sines. Chunks have the same ends and numbers wherever it starts."""
        audio, words = render(segment, self._pitch(segment.voice), seed)
        text = "".join(token.text for token in segment.tokens)
        chunk_ms = plan.chunk_ms or ((60_000,) if plan.mode == "block" else CHUNK_MS)
        # of a list, not of a generator: docs/decisions.md, "Tuples of lists"
        later = tuple([word for word in words if word.end_sample > start_sample])
        job = ToneJob(segment, plan, audio, later, text, start_sample, chunk_ms=chunk_ms)
        if self._codes:
            job.codes, job.told = list(segment.codes), len(segment.codes)
        if (rule := self._script.in_audio(text)) is not None:
            job.shape(rule)
        while not job.over and job.chunk_end <= start_sample:
            job.go_on()
        return job

    def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
        """The next chunk of every job."""
        if self._delay_s:
            time.sleep(self._delay_s)
        events: list[StepEvent] = []
        for job in jobs:
            assert isinstance(job, ToneJob)
            failure, spoilt = self._act(job)
            if failure:
                events.append(SegmentFailed(job, failure))
                continue
            samples = job.take()
            if len(samples):
                loudness, codes = job.sample()
                if spoilt or job.codes is not None:
                    samples = samples * (np.float32("nan") if spoilt else loudness)
                events.append(Chunk(job, samples, job.words, codes))
                job.words = ()
            job.go_on()
            if job.over:
                events.append(SegmentEnd(job))
        return events

    def _act(self, job: ToneJob) -> tuple[EngineError | None, bool]:
        """What the script has for the chunk: whether it fails, and whether its samples are spoilt. May raise."""
        spoilt = False
        for rule in self._script.at(job.chunk, job.text, IN_STEP):
            if rule.action == "fail":
                return EngineError(f"scripted failure at chunk {job.chunk}", transient=rule.transient), False
            if rule.action == "oom":
                return EngineError("no memory left, as scripted", transient=True, kind="out_of_memory"), False
            if rule.action == "crash":
                raise RuntimeError(f"scripted crash at chunk {job.chunk}")
            spoilt = spoilt or rule.action == "nan"
            time.sleep(rule.ms / 1000)
        return None, spoilt

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


def render(segment: Segment, base_hz: float, seed: int = 0) -> tuple[Samples, tuple[WordTiming, ...]]:
    """The segment's samples at 24 kHz and its words. A word sounds alike wherever it stands."""
    per_word = round(WORD_MS * SAMPLE_RATE / 1000 / segment.speed)
    pause = round(PAUSE_MS[segment.boundary] * SAMPLE_RATE / 1000 / segment.speed)
    base = base_hz * segment.pitch
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
        step_delay_ms=number("step_delay_ms", options.get("step_delay_ms", 0), 0, STALL_MS),
        batch_max=whole_number("batch_max", options.get("batch_max", 2), 1, MAX_BATCH),
        max_tokens=whole_number("max_tokens", options.get("max_tokens", MAX_TOKENS), 16, 4096),
        context_tokens=whole_number("context_tokens", options.get("context_tokens", 0), 0, 64),
        cloning=switch("cloning", options.get("cloning", False)),
        codes=switch("codes", options.get("codes", False)),
        lanes=whole_number("lanes", options.get("lanes", 0), 0, 64),
        script=[rule_of(line) for line in lines],
    )
