"""The worker processes of a server, found through /proc, and their sudden ends."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

WORKER: Final = b"server.cluster.workers"  # in the command line of a worker


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still run."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread may be gone meanwhile
            found += map(int, path.read_text(encoding="ascii").split())
    return found


class Workers:
    """Those of the server with this process number. `killed`: how many met their end here."""

    def __init__(self, server: int) -> None:
        self._server = server
        self.killed = 0

    def running(self) -> list[int]:
        """Their process numbers."""
        found = []
        for pid in children(self._server):
            with suppress(OSError):
                if WORKER in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def kill(self, chance: Random) -> None:
        """One of them, if there is one, without a warning."""
        if running := self.running():
            with suppress(ProcessLookupError):
                os.kill(chance.choice(running), signal.SIGKILL)
                self.killed += 1
