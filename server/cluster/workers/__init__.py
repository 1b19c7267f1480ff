"""Engine pools of worker processes. `pool.py` is the gateway's side, `service.py` the worker's, `processes.py` runs
the workers, `wire.py` is what they say to each other over unix sockets.
"""

from server.cluster.workers.config import WorkerConfig
from server.cluster.workers.pool import WorkerPool
from server.cluster.workers.processes import WorkerProcesses

__all__ = ["WorkerConfig", "WorkerPool", "WorkerProcesses"]
