"""What tests have an engine of CosyVoice say, and how they listen."""

import dataclasses
import io
from collections.abc import Sequence

import numpy as np
import soundfile

from server.engines.base import Chunk, Engine, Job, RenderMode, RenderPlan, Samples, Segment, SegmentEnd
from server.text.normaliser import normalise
from server.text.tokens import Boundary, Cut, CutCause, Token

RATE = 24_000


@dataclasses.dataclass(slots=True)
class Heard:
    """What came of a segment."""

    samples: Samples
    codes: tuple[int, ...]
    chunks: int


def words(text: str, boundary: Boundary = Boundary.SENTENCE) -> tuple[Token, ...]:
    language = "en" if text.isascii() else "zh"
    return normalise(Cut(0, len(text), text, boundary, CutCause.END, language)) if text else ()  # type: ignore[arg-type]


def segment(
    text: str, voice: str, *, before: str = "", boundary: Boundary = Boundary.SENTENCE, **more: object
) -> Segment:
    made = Segment(0, words(text, boundary), boundary, voice, before=words(before, Boundary.WORD))
    return dataclasses.replace(made, **more)  # type: ignore[arg-type]


def listen(engine: Engine, jobs: Sequence[Job], batch: int = 0) -> list[Heard]:
    """Step the jobs to their end: all at once, or `batch` at a time in turn. Raises what a job fails with."""
    heard: dict[Job, list[Samples]] = {job: [] for job in jobs}
    codes: dict[Job, list[int]] = {job: [] for job in jobs}
    live = list(jobs)
    while live:
        now = live[: batch or len(live)]
        live = [*live[len(now) :], *now]
        for event in engine.step(now):
            if isinstance(event, Chunk):
                codes[event.job] += event.codes
                if len(event.samples):
                    heard[event.job].append(event.samples)
            elif isinstance(event, SegmentEnd):
                live.remove(event.job)
            else:
                raise event.error
    nothing = np.zeros(0, np.float32)
    return [Heard(np.concatenate([nothing, *heard[job]]), tuple(codes[job]), len(heard[job])) for job in jobs]


def say(engine: Engine, *segments: Segment, mode: RenderMode = "stream", seed: int = 0, start: int = 0) -> list[Heard]:
    """Speak segments together."""
    return listen(engine, [engine.prepare(each, RenderPlan(mode), seed, start) for each in segments])


def recording(seconds: float = 4.0, rate: int = RATE, pitch: float = 140.0) -> bytes:
    """A WAV file that looks like speech: syllables of a buzz with pauses between them."""
    t = np.arange(round(seconds * rate)) / rate
    buzz = sum(np.sin(2 * np.pi * pitch * k * t) / k for k in range(1, 20))
    syllables = np.clip(np.sin(2 * np.pi * 3.5 * t) + 0.4, 0.0, 1.0)
    noise = np.random.default_rng(1).standard_normal(len(t)) * 0.001
    sound = 0.2 * buzz * syllables + noise
    file = io.BytesIO()
    soundfile.write(file, sound.astype(np.float32), rate, format="WAV", subtype="PCM_16")
    return file.getvalue()
