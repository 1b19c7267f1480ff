"""What is asked of an engine pool and what it gives back, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from server.engines.base import FailureKind, RenderPlan, WordTiming
from server.text.tokens import Cut


@dataclass(frozen=True, slots=True)
class Part:
    """From `first_sample` of a segment (requested rate) on, its text [start, end) was rendered anew, by `source`, since
    what was at it before failed with `reason`. `engine`: the one that was asked for; `fallback`: the small one;
    `clip`: a soft tone and silence.

    A segment's parts are a recipe: rendering it by them again gives the same samples.
    """

    source: Literal["engine", "fallback", "clip"]
    start: int
    end: int
    first_sample: int
    reason: FailureKind


@dataclass(frozen=True, slots=True)
class SegmentRequest:
    """Everything that decides a segment's samples. `before`: source text, see `Segment.before`; `parts`: the recipe by
    which it was rendered before; `origin`: who asked, for logs and dead letters; `reported`: another process rendered
    it to its end, and told of what failed by then; `codes`: see `Segment.codes`, of the segment as it was asked for, up
    to where its first part takes over.
    """

    id: int
    cut: Cut
    voice: str
    sample_rate: int  # of the result
    speed: float = 1.0
    pitch: float = 1.0
    volume: float = 1.0
    seed: int = 0
    instruct: str = ""
    lexicon: Mapping[str, str] | None = None
    plan: RenderPlan = field(default_factory=RenderPlan)
    before: str = ""
    parts: tuple[Part, ...] = ()
    origin: str = field(default="", compare=False)
    reported: bool = field(default=False, compare=False)
    codes: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class RenderedChunk:
    """The next samples of a segment: s16le mono at the requested rate. Word times count from the segment's first
    sample. `part`: begins with this chunk. `codes`: that are told now, behind those of the request and of the chunks
    before; whatever the samples depend on is told with them at the latest. There may be codes alone.
    """

    pcm: bytes
    words: tuple[WordTiming, ...] = ()
    part: Part | None = None
    codes: tuple[int, ...] = ()

    @property
    def samples(self) -> int:
        """How many samples `pcm` holds."""
        return len(self.pcm) // 2
