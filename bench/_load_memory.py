"""Memory of both ways to send while many streams play: stream makes little pieces, block whole segments."""

import json
import time
from collections.abc import Sequence
from typing import Final

from bench._common import RESULTS, Report, server_process
from bench._load_client import Job, generate
from bench._load_measure import MEMORY_EVERY_S, memory_watched, underruns
from bench._load_talker import RATE
from bench._load_texts import CHINESE, ENGLISH, written

MEMORY: Final = RESULTS / "load_memory_curves.json"
BEFORE_S: Final = 3.0
AFTER_S: Final = 5.0
SPREAD: Final = 0.2  # of the time, over which the streams come


def compare(modes: Sequence[str], streams: int, seconds: float) -> int:
    """So many streams of the engine `tone` in each mode, a server for each; the curves go to MEMORY."""
    report = Report("load_memory")
    texts = ("".join(CHINESE), " ".join(ENGLISH))
    scripts = [written(text, seed) for seed, text in enumerate(texts)]
    curves: dict[str, list[float]] = {}
    for mode in modes:
        with server_process("--engine", "tone") as server, memory_watched(server) as memory:
            job = Job(
                server.port, scripts, seconds, sessions=streams, spread_s=SPREAD * seconds, options={"mode": mode}
            )
            generate(Job(server.port, scripts, 2.0, sessions=2))
            before = len(memory)
            time.sleep(BEFORE_S)
            cpu = server.cpu_s()
            (load,) = generate(job)
            cpu = server.cpu_s() - cpu
            time.sleep(AFTER_S)
        curve = curves[mode] = memory[before:]
        report.add(f"{mode}, {streams} streams: memory before", curve[0], "MiB")
        report.add("  most", max(curve), "MiB")
        report.add("  of each stream", (max(curve) - curve[0]) * 1024 / streams, "KiB")
        report.add("  audio", load.samples / RATE / load.seconds, "s a second")
        report.add("  server CPU", cpu / load.seconds, "cores")
        report.add("  underruns", len(underruns([load])), "", 0)
        report.add("  sessions that failed", len(load.errors), "", 0)
    RESULTS.mkdir(parents=True, exist_ok=True)
    kept = {"streams": streams, "every_s": MEMORY_EVERY_S, "curves": curves}
    MEMORY.write_text(json.dumps(kept) + "\n", encoding="utf-8")
    return report.finish(None)
