"""What this process takes of the machine."""

import os
import resource
import sys
import time
from pathlib import Path
from typing import Final

MIB: Final = 1024 * 1024
_STATM: Final = Path("/proc/self/statm")


class ProcessFigures:
    """CPU is measured between two questions, so ask at an even pace."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self._asked = (self.started, time.process_time())
        self._percent = 0.0

    @property
    def uptime_s(self) -> float:
        """Since this was made."""
        return time.monotonic() - self.started

    def cpu_percent(self) -> float:
        """Of one core, since it was asked before; what was said then, where that is no second ago."""
        now, used = time.monotonic(), time.process_time()
        if now - self._asked[0] >= 1.0:
            self._percent = 100 * (used - self._asked[1]) / (now - self._asked[0])
            self._asked = (now, used)
        return self._percent

    def memory_mb(self) -> float:
        """Resident memory, MiB; where the system does not tell, the most it ever was."""
        try:
            return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGESIZE") / MIB
        except OSError:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return peak / MIB if sys.platform == "darwin" else peak / 1024
