"""Voice engines: the contract (`base.py`), how they are found by name (`registry.py`), and the ones that come along.

`embedded/` speaks Chinese and English on any CPU; `tone.py` is the test engine. Others install themselves through the
entry point group `cosystream.engines`.
"""

from server.engines.base import (
    Capabilities,
    Chunk,
    Engine,
    EngineError,
    Job,
    RenderPlan,
    Segment,
    SegmentEnd,
    SegmentFailed,
    Voice,
    WordTiming,
)
from server.engines.simple import SimpleEngine
from server.text.tokens import Boundary, Token

__all__ = [
    "Boundary",
    "Capabilities",
    "Chunk",
    "Engine",
    "EngineError",
    "Job",
    "RenderPlan",
    "Segment",
    "SegmentEnd",
    "SegmentFailed",
    "SimpleEngine",
    "Token",
    "Voice",
    "WordTiming",
]
