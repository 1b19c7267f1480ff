"""What a load did to the server: its CPU, memory, engine time and event loop, and what else the machine did."""

import math
import os
import re
import resource
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench._common import ServerProcess
from bench._load_client import Job, Load, generate

LAG: Final = "cosystream_loop_lag_seconds"
CAPACITY: Final = "cosystream_capacity_streams"
STEPS: Final = "cosystream_step_seconds_sum"
MEMORY_EVERY_S: Final = 0.25
WAITED_MS: Final = 200.0  # less is no wait when the load happens to end
_TICK: Final = os.sysconf("SC_CLK_TCK")
_BOUND: Final = re.compile(r'le="([^"]+)"')

Series = dict[str, float]
"""Samples by their whole name, labels included."""


def scrape(server: ServerProcess) -> Series:
    """Every metric."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def total(series: Series, name: str) -> float:
    """Sum over a metric's labels; NaN where there is none."""
    found = [value for key, value in series.items() if key.partition("{")[0] == name]
    return sum(found) if found else math.nan


def histogram_percentile(before: Series, after: Series, name: str, share: float) -> float:
    """Of what a histogram counted in between, by linear interpolation in its bucket; NaN where nothing was."""
    buckets: dict[float, float] = {}
    for key, value in after.items():
        if key.startswith(f"{name}_bucket{{"):
            bound = float(_BOUND.findall(key)[0])
            buckets[bound] = buckets.get(bound, 0.0) + value - before.get(key, 0.0)
    wanted = share * buckets.get(math.inf, 0.0)
    lower, below = 0.0, 0.0
    for bound in sorted(buckets):
        if buckets[bound] >= wanted > 0:
            if math.isinf(bound):
                return bound if buckets[bound] > below else lower
            return lower + (bound - lower) * (wanted - below) / max(1e-9, buckets[bound] - below)
        lower, below = bound, buckets[bound]
    return math.nan


@dataclass(slots=True)
class Measured:
    """Shares are of one core. `others`: what the rest of the machine used."""

    loads: list[Load]
    server: float = 0.0
    engine: float = 0.0  # steps, wall time
    generator: float = 0.0
    others: float = 0.0
    lag_p99_ms: float = math.nan
    memory_mb: list[float] = field(default_factory=list)  # every MEMORY_EVERY_S

    @property
    def load(self) -> Load:
        """The only one, or the first."""
        return self.loads[0]


def machine_cpu_s() -> float:
    """CPU time that all processes of this machine used so far."""
    fields = [int(text) for text in Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, soft, *_rest = fields
    return (user + nice + system + irq + soft) / _TICK


def _own_cpu_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


@contextmanager
def memory_watched(server: ServerProcess) -> Iterator[list[float]]:
    """Fills with resident memory in MiB, every MEMORY_EVERY_S."""
    found = [server.memory_mb()]
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(MEMORY_EVERY_S):
            found.append(server.memory_mb())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def measure(server: ServerProcess, *jobs: Job) -> Measured:
    """Run load against a server. Shares count from the start of the generators to their end."""
    before = scrape(server)
    server_s, machine_s, own_s = server.cpu_s(), machine_cpu_s(), _own_cpu_s()
    with memory_watched(server) as memory:
        measured = Measured(generate(*jobs), memory_mb=memory)
    server_s, machine_s, own_s = server.cpu_s() - server_s, machine_cpu_s() - machine_s, _own_cpu_s() - own_s
    after = scrape(server)
    seconds = max(load.seconds for load in measured.loads)
    measured.server = server_s / seconds
    measured.generator = sum(load.cpu_s for load in measured.loads) / seconds
    measured.others = max(0.0, machine_s - server_s - own_s) / seconds
    measured.engine = (total(after, STEPS) - total(before, STEPS)) / seconds
    measured.lag_p99_ms = 1000 * histogram_percentile(before, after, LAG, 0.99)
    return measured


def heard(loads: Sequence[Load], after_s: float = 0.0) -> list[float]:
    """First audio of all utterances that began after this time, ms. One that was still waited for when the load ended
    counts with the time it had been waited for, where that is more than usual.
    """
    times = []
    for load in loads:
        for spoken in load.spoken:
            if spoken.at_s >= after_s:
                waited = spoken.waited_ms if spoken.waited_ms > WAITED_MS else math.nan
                first = spoken.first_ms if not math.isnan(spoken.first_ms) else waited
                if not math.isnan(first):
                    times.append(first)
    return times


def underruns(loads: Sequence[Load], after_s: float = 0.0) -> list[float]:
    """Seconds of each, where the text was ready and its sound was not."""
    return [hole for load in loads for spoken in load.spoken if spoken.at_s >= after_s for hole in spoken.holes]
