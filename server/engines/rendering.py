"""What is asked of an engine pool and what it gives back, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from server.engines.base import RenderPlan, WordTiming
from server.text.tokens import Cut


@dataclass(frozen=True, slots=True)
class SegmentRequest:
    """Everything that decides a segment's samples."""

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


@dataclass(frozen=True, slots=True)
class RenderedChunk:
    """The next samples of a segment: s16le mono at the requested rate. Word times count from the segment's first
    sample.
    """

    pcm: bytes
    words: tuple[WordTiming, ...] = ()

    @property
    def samples(self) -> int:
        """How many samples `pcm` holds."""
        return len(self.pcm) // 2
