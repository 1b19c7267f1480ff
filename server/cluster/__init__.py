"""Engine pools: where segments are rendered. `base.py` is the contract, `in_process.py` runs engine threads."""

from server.cluster.base import (
    Capacity,
    EnginePool,
    PoolObserver,
    PoolUnavailable,
    SegmentStream,
    StepReport,
    Urgency,
    WorkerLost,
)
from server.cluster.in_process import InProcessPool

__all__ = [
    "Capacity",
    "EnginePool",
    "InProcessPool",
    "PoolObserver",
    "PoolUnavailable",
    "SegmentStream",
    "StepReport",
    "Urgency",
    "WorkerLost",
]
