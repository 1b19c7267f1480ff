"""Ours beside `bench.plain_server`, by turns: both run, and whoever is not asked costs nothing."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from bench._common import percentile
from bench._load_client import Job, generate
from bench._load_measure import heard
from bench._load_scenes import TAKES_ALL, Stage
from bench._load_texts import SHORT, THREE_SENTENCES, at_once
from deploy.local_server import ROOT

START_S: Final = 60.0
CLIENTS: Final = (1, 4, 8)
PAUSE_S: Final = 0.1
SHORT_MS: Final = 6.0  # later than the plain server at most
THREE_FACTOR: Final = 0.7


@contextmanager
def plain_server() -> Iterator[int]:
    """Its port, in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    process = subprocess.Popen([sys.executable, "-m", "bench.plain_server", str(port)], cwd=ROOT)
    try:
        limit = time.perf_counter() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                if process.poll() is not None or time.perf_counter() > limit:
                    raise RuntimeError("the plain server did not start") from None
                time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait()


def beside_the_plain_server(stage: Stage, seconds: float, rounds: int = 2) -> None:
    """Closed loop: each client asks again as soon as it has everything. Texts come whole, as the plain one likes."""
    each_s = stage.seconds(seconds / (2 * 2 * rounds * len(CLIENTS)))
    with plain_server() as port:
        _compare(stage, port, SHORT, 1, 1.0)
        for clients in CLIENTS:
            for name, texts in (("a short clause", SHORT), ("three sentences", THREE_SENTENCES)):
                plain, ours = _compare(stage, port, texts, clients, each_s, rounds)
                report, who = stage.report, f"{clients} client{'s' * (clients > 1)}"
                report.add(f"{who}, {name}: first audio, p50", percentile(ours, 0.5), "ms")
                report.add("  of the plain server", percentile(plain, 0.5), "ms")
                report.add("  p95", percentile(ours, 0.95), "ms")
                report.add("  of the plain server", percentile(plain, 0.95), "ms")
                if texts is SHORT:
                    later = percentile(ours, 0.5) - percentile(plain, 0.5)
                    report.add("  later than the plain server, p50", later, "ms", stage.limit(SHORT_MS))
                else:
                    ratio = percentile(ours, 0.5) / percentile(plain, 0.5)
                    report.add("  in times of the plain server, p50", ratio, "", stage.limit(THREE_FACTOR))


def _compare(
    stage: Stage, port: int, texts: Sequence[str], clients: int, each_s: float, rounds: int = 1
) -> tuple[list[float], list[float]]:
    scripts = [at_once(text) for text in texts]
    ours = Job(stage.server.port, scripts, each_s, clients, pause_s=PAUSE_S, plays=False, options=TAKES_ALL)
    times: tuple[list[float], list[float]] = ([], [])
    for round_ in range(rounds):
        for number, job in enumerate((replace(ours, port=port, plain=True), ours)):
            (load,) = generate(replace(job, seed=stage.seed + round_))
            if load.errors:
                stage.report.note(f"a session failed: {load.errors[0]}")
            times[number].extend(heard([load]))
    return times
