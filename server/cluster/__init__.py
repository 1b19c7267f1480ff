"""Engine pools: where segments are rendered. `base.py` is the contract, `in_process.py` runs engine threads."""

from server.cluster.base import (
    Busy,
    Capacity,
    EnginePool,
    PoolObserver,
    SegmentStream,
    StepReport,
    Urgency,
    WorkerLost,
)
from server.cluster.in_process import InProcessPool

__all__ = [
    "Busy",
    "Capacity",
    "EnginePool",
    "InProcessPool",
    "PoolObserver",
    "SegmentStream",
    "StepReport",
    "Urgency",
    "WorkerLost",
]
