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

__all__ = [
    "Capabilities",
    "Chunk",
    "Engine",
    "EngineError",
    "Job",
    "RenderPlan",
    "Segment",
    "SegmentEnd",
    "SegmentFailed",
    "Voice",
    "WordTiming",
]
