"""One text, spoken by `python -m client stream` to nowhere; the memory and CPU time of both ends meanwhile."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench._common import ServerProcess
from deploy.local_server import ROOT
from server.engines.embedded.counting import count_tokens

SAMPLED_S: Final = 0.05
POINTS: Final = 160  # of a curve that are kept, each with the most memory of its time
PATIENCE_S: Final = 900.0
TO_NOWHERE: Final = {"pcm": ("-o", os.devnull, "--container", "raw"), "opus": ("-o", os.devnull, "--container", "ogg")}


@dataclass(frozen=True, slots=True)
class Sample:
    """Resident memory of both ends, MiB, so many seconds after the client was started."""

    at_s: float
    server_mb: float
    client_mb: float


@dataclass(frozen=True, slots=True)
class Spoken:
    """What speaking a text took. CPU times are of the whole run, the client's start and end included."""

    characters: int
    tokens: int
    seconds: float  # from connecting to the end
    audio_s: float
    first_ms: float  # from the moment that the first clause was complete
    server_peak_mb: float
    client_peak_mb: float
    server_cpu_s: float
    client_cpu_s: float
    curve: tuple[Sample, ...]


def memory_mb(pid: int) -> float:
    """Resident memory of a process, MiB; 0 where it is gone or only about to start its program."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


def thinned(samples: Sequence[Sample], points: int = POINTS) -> tuple[Sample, ...]:
    """At most so many of them, each as high as the highest in its stead: no peak gets lost."""
    size = max(1, -(-len(samples) // points))
    groups = [samples[at : at + size] for at in range(0, len(samples), size)]
    return tuple(
        Sample(group[0].at_s, max(each.server_mb for each in group), max(each.client_mb for each in group))
        for group in groups
    )


def speak(server: ServerProcess, text: str, form: str = "pcm", *options: str) -> Spoken:
    """Speak a text; `form` is one of TO_NOWHERE, options are the client's. Raises RuntimeError where that fails."""
    with tempfile.TemporaryDirectory() as folder:
        source, statistics = Path(folder, "text.txt"), Path(folder, "statistics.json")
        source.write_text(text, encoding="utf-8")
        command = [
            sys.executable, "-m", "client", "stream", str(source), *TO_NOWHERE[form], "--url", server.url,
            "--stats", str(statistics), "--quiet", *options,
        ]  # fmt: skip
        server_cpu_s, began = server.cpu_s(), time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
        try:
            samples, client_cpu_s = _watch(server.pid, process, began)
        finally:
            process.kill()
        server_cpu_s = server.cpu_s() - server_cpu_s
        if process.returncode:
            raise RuntimeError(f"the client ended with status {process.returncode}")
        told: dict[str, Any] = json.loads(statistics.read_text(encoding="utf-8"))
    return Spoken(
        characters=len(text),
        tokens=count_tokens(text),
        seconds=told["wall_s"],
        audio_s=told["audio_s"],
        first_ms=told["ttfa_clause_ms"] or float("nan"),
        server_peak_mb=max(sample.server_mb for sample in samples),
        client_peak_mb=max(sample.client_mb for sample in samples),
        server_cpu_s=server_cpu_s,
        client_cpu_s=client_cpu_s,
        curve=thinned([sample for sample in samples if sample.client_mb]),
    )


def _watch(server: int, client: "subprocess.Popen[bytes]", began: float) -> tuple[list[Sample], float]:
    """Both until the client ends; the CPU time it had. The kernel tells that in microseconds when it hands out the
    status of the process, so that is asked for here and not through `client`.
    """
    samples = [Sample(0.0, memory_mb(server), 0.0)]
    while True:
        pid, status, used = os.wait4(client.pid, os.WNOHANG)
        if pid:
            client.returncode = os.waitstatus_to_exitcode(status)
            return samples, used.ru_utime + used.ru_stime
        at_s = time.perf_counter() - began
        if at_s > PATIENCE_S:
            raise RuntimeError(f"the client was not done after {PATIENCE_S:.0f} s")
        samples.append(Sample(at_s, memory_mb(server), memory_mb(client.pid)))
        time.sleep(SAMPLED_S)
