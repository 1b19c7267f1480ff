"""Clients who come and go for a long time: nothing is lost, nothing leaks.

`python -m bench.churn [--minutes N] [--clients N] [--seed N] [--engine NAME] [--kill-workers S]`. Clients have a
process of their own and do one thing after the other at random: speak, cancel, lose their line and come back, leave,
idle, ask over HTTP. With `--kill-workers` the server has two worker processes; one is killed every S seconds.
"""

import argparse
import sys
import time
from dataclasses import dataclass
from random import Random
from typing import Final

from bench._churn import Churn, Tally
from bench._common import Report, ServerProcess, arguments, percentile, server_process
from bench._helper import Helper, helper
from bench._processes import Workers

LOOK_S: Final = 1.0  # between two looks at the server
WARM_UP_SHARE: Final = 0.2  # of the time, and ...
WARM_UP_S: Final = 120.0  # ... at most
RESUME_TTL_S: Final = 5
SETTLE_S: Final = RESUME_TTL_S + 2.0  # until the last clients are forgotten
GROWTH_PERCENT: Final = 3.0
SPARE_DESCRIPTORS: Final = 3
CURVE: Final = 20  # points of memory that are shown
COUNTED: Final = ("sessions_open", "sessions_detached", "connections", "tasks", "process_open_fds")
OPTIONS: Final = ("--resume-ttl-s", str(RESUME_TTL_S), "--log-level", "info", "--log-format", "json")


@dataclass(frozen=True, slots=True)
class Look:
    """The server at a moment."""

    at: float
    memory_mb: float


def counts(server: ServerProcess) -> dict[str, float]:
    """What must be as before in the end."""
    return {name: server.metric(f"cosystream_{name}") for name in COUNTED}


def watch(server: ServerProcess, churn: Helper, workers: Workers | None, kill_s: float, chance: Random) -> list[Look]:
    """Look at the server until the clients are done; kill workers meanwhile."""
    looks = []
    began = time.monotonic()
    next_kill = began + kill_s
    while not churn.done:
        now = time.monotonic()
        looks.append(Look(now - began, server.memory_mb()))
        if workers is not None and now >= next_kill:
            next_kill = now + kill_s
            workers.kill(chance)
        time.sleep(LOOK_S)
    return looks


def growth_percent(looks: list[Look], warm_up_s: float) -> float:
    """From the first to the last fifth of the time after the warm-up, by the medians."""
    memory = [look.memory_mb for look in looks if look.at >= warm_up_s]
    fifth = max(1, len(memory) // 5)
    return 100 * (percentile(memory[-fifth:], 0.5) / percentile(memory[:fifth], 0.5) - 1)


def judge(report: Report, tally: Tally) -> None:
    """What clients met."""
    report.add("things done", sum(tally.done.values()), "")
    report.add("utterances heard to their end, all exact", tally.complete, "")
    report.add("  resumes on the way", tally.resumes, "")
    report.add("  asked to come back later", tally.busy, "")
    report.add("  faults", tally.faulty, "", 0)
    report.add("worst lag of the clients' own event loop", 1000 * tally.worst_lag_s, "ms")
    for fault in tally.faults:
        report.note(fault)
    report.note("done: " + ", ".join(f"{count} {thing}" for thing, count in tally.done.most_common()))


def measure(args: argparse.Namespace) -> Report:
    """The figures."""
    report = Report("churn_workers" if args.kill_workers else "churn")
    seconds = 60 * args.minutes
    options = ["--engine", args.engine, *OPTIONS, *(("--workers", "2") if args.kill_workers else ())]
    with server_process(*options) as server, helper(Churn) as churn:
        churn.ask("prepare", server.port)
        time.sleep(SETTLE_S)
        before = counts(server)
        workers = Workers(server.pid) if args.kill_workers else None
        churn.begin("churn", server.port, args.seed, args.clients, seconds)
        looks = watch(server, churn, workers, args.kill_workers, Random(args.seed))
        judge(report, churn.result(1.0))
        time.sleep(SETTLE_S)
        after = counts(server)
        log = server.logged()
    warm_up_s = min(WARM_UP_S, WARM_UP_SHARE * seconds)
    report.add("memory in the end", looks[-1].memory_mb, "MiB")
    report.add(f"  growth after {warm_up_s:.0f} s", growth_percent(looks, warm_up_s), "%", GROWTH_PERCENT)
    curve = [look.memory_mb for look in looks[:: max(1, len(looks) // CURVE)]]
    report.note("memory over the time, MiB: " + " ".join(f"{each:.1f}" for each in curve))
    for name in COUNTED:
        spare = SPARE_DESCRIPTORS if name == "process_open_fds" else 0
        report.add(f"left over: {name.replace('_', ' ')}", after[name] - before[name], "", spare)
    if workers is not None:
        report.add("workers killed", workers.killed, "")
    troubles = [line for line in log.splitlines() if '"level":"error"' in line or "Traceback" in line]
    report.add("errors in the log", len(troubles), "", None if workers is not None else 0)
    for line in troubles[:3]:
        report.note(line[:2_000])
    return report


def main() -> int:
    """The exit status is 1 when a figure misses what is asked."""
    args = arguments(
        __doc__,
        minutes=(10.0, "how long clients come and go"),
        clients=(30, "at a time"),
        seed=(1, "what they do"),
        engine=("tone", "of the server"),
        kill_workers=(0.0, "seconds after which a worker is killed, again and again; 0: there are none"),
    )
    return measure(args).finish(args.json)


if __name__ == "__main__":
    sys.exit(main())
