"""What a session asks its shell to do next. At most one piece of work is in hand at a time."""

from dataclasses import dataclass
from typing import TypeAlias

from server.engines.rendering import SegmentRequest


@dataclass(frozen=True, slots=True, eq=False)
class SpeakSegment:
    """Render this segment and hand its chunks back."""

    utterance: int
    request: SegmentRequest


@dataclass(frozen=True, slots=True, eq=False)
class SpeakSilence:
    """Put this many samples of silence on the timeline."""

    utterance: int
    samples: int


@dataclass(frozen=True, slots=True, eq=False)
class FinishUtterance:
    """Nothing more to speak: flush the coder."""

    utterance: int


Work: TypeAlias = SpeakSegment | SpeakSilence | FinishUtterance
