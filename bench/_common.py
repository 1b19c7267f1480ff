"""What the benchmarks share: figures against what is asked, percentiles, a server in a process of its own."""

import argparse
import asyncio
import json
import math
import os
import platform
import urllib.request
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

from deploy.local_server import ROOT, LocalServer, local_server

RESULTS: Final = ROOT / "bench" / "results"
T = TypeVar("T")


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie, by linear interpolation; NaN for none, or if one of them is."""
    if not values or any(map(math.isnan, values)):
        return float("nan")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


@dataclass(slots=True)
class Figure:
    """One measured number. It must be at most `limit` and at least `least`; of None nothing is asked."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    least: float | None = None

    @property
    def asked(self) -> str:
        """What is asked of it; empty for nothing."""
        bounds = (("<=", self.limit), (">=", self.least))
        return ", ".join(f"{sign} {bound:g} {self.unit}".rstrip() for sign, bound in bounds if bound is not None)

    @property
    def ok(self) -> bool:
        """Whether what is asked was reached; NaN never is."""
        return (self.limit is None or self.value <= self.limit) and (self.least is None or self.value >= self.least)


@dataclass(slots=True)
class Report:
    """A benchmark's figures and notes."""

    benchmark: str
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(
        self, name: str, value: float, unit: str, limit: float | None = None, *, least: float | None = None
    ) -> None:
        """A figure; with `limit` it must be at most that, with `least` at least that."""
        self.figures.append(Figure(name, round(value, 3), unit, limit, least))

    def spread(
        self, name: str, values: Sequence[float], unit: str, p50: float | None = None, p95: float | None = None
    ) -> None:
        """Median and 95th percentile of values, and what is asked of them."""
        self.add(f"{name}, p50", percentile(values, 0.50), unit, p50)
        self.add(f"{name}, p95", percentile(values, 0.95), unit, p95)

    def note(self, text: str) -> None:
        """A remark below the table."""
        self.notes.append(text)

    def table(self) -> str:
        """The figures as text."""
        rows = [("", "measured", "asked", "ok")]
        for each in self.figures:
            verdict = "" if not each.asked else "yes" if each.ok else "NO"
            rows.append((each.name, f"{each.value:.4g} {each.unit}", each.asked, verdict))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([f"bench.{self.benchmark}", *lines, *self.notes])

    def as_json(self) -> str:
        """Everything, with the machine it was measured on."""
        return json.dumps(
            {
                "benchmark": self.benchmark,
                "machine": {
                    "cpus": len(os.sched_getaffinity(0)),
                    "python": platform.python_version(),
                    "cpu": platform.machine(),
                },
                "figures": [{**asdict(each), "ok": each.ok} for each in self.figures],
                "notes": self.notes,
            },
            ensure_ascii=False,
            indent=2,
        )

    def finish(self, path: Path | None) -> int:
        """Print the table, write the JSON; the exit status is 1 when something asked was not reached."""
        print(self.table(), flush=True)
        RESULTS.mkdir(parents=True, exist_ok=True)
        for place in (RESULTS / f"{self.benchmark}.json", *([path] if path else [])):
            place.write_text(self.as_json() + "\n", encoding="utf-8")
        return 0 if all(each.ok for each in self.figures) else 1


def arguments(description: str | None, **options: tuple[int | float | str, str]) -> argparse.Namespace:
    """The command line: `--json FILE` and options as (default, help), which take what their default is."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    for name, (default, text) in options.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=type(default), default=default, help=f"{text} (default: {default})")
    return parser.parse_args()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run on uvloop where there is one, as the server does."""
    try:
        loop_factory = import_module("uvloop").new_event_loop
    except ImportError:
        loop_factory = None
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(work)


@dataclass(frozen=True, slots=True)
class ServerProcess(LocalServer):
    """A running server that can be measured."""

    def cpu_s(self) -> float:
        """CPU time of all its threads so far, in steps of 10 ms."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self, name: str = "VmRSS") -> float:
        """Resident memory (`VmHWM`: its peak), MiB."""
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

    def metric(self, name: str) -> float:
        """Sum over a metric's series."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.split("{")[0].split(" ")[0] == name)


@contextmanager
def server_process(*options: str, environment: Mapping[str, str] | None = None) -> Iterator[ServerProcess]:
    """`python -m server` on a free port, ready to speak; stopped at the end. It has no caches, as benchmarks say the
    same over and over, unless `options` say otherwise. Raises ServerNotReady.
    """
    if not Path("/proc/self/stat").exists():
        raise RuntimeError("the benchmarks read CPU time and memory from /proc: run them on Linux")
    usual = ("--log-level", "warning", "--audio-cache-mb", "0", "--context-cache-mb", "0")
    with local_server(*usual, *options, environment=environment) as server:
        yield ServerProcess(server.pid, server.port, server.started, server.ready, server.log)
