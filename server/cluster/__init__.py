"""Engine pools: where segments are rendered. `base.py` is the contract, `in_process.py` runs engine threads."""

from server.cluster.base import EnginePool, SegmentStream, WorkerLost
from server.cluster.in_process import InProcessPool

__all__ = ["EnginePool", "InProcessPool", "SegmentStream", "WorkerLost"]
