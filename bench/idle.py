"""What sessions cost that do nothing, and what 100 live streams cost.

`python -m bench.idle [--sessions N] [--streams N] [--pairs N] [--seconds N]`. Two servers with the embedded voice run
side by side. One of them has the idle sessions; new sessions ask the one and the other in turns for a short clause, so
that whatever else the machine does meets both. Then the two change places. Clients have a process of their own.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from typing import Final

from bench._common import Report, ServerProcess, arguments, percentile, run, server_process
from bench._crowd import Crowd, Heard
from bench._helper import Helper, helper
from bench._session import open_session
from protocol import client_messages as c

CLAUSES: Final = ("你好，今天天气很好。", "Good morning, how are you?", "没问题，我马上就来。", "Of course, here.")
ALL_MAY_COME: Final = ("--max-streams", "10000")  # those who open count as if they spoke for a moment
SETTLE_S: Final = 1.0
BETWEEN_S: Final = 0.02  # two first audios, so that neither meets the end of the other
IDLE_KB: Final = 60.0
IDLE_PERCENT: Final = 5.0
FIRST_AUDIO_PERCENT: Final = 10.0
STREAM_PERCENT: Final = 0.5
MAX_LEAD_MS: Final = 1_000
SPREAD_S: Final = 2.0  # over which streams start
WARM_UP_S: Final = 3.0


async def first_audio_ms(server: ServerProcess, text: str) -> float:
    """From the text to the first audio, in a session that was just opened."""
    async with open_session(server.url) as session:
        hearing = asyncio.ensure_future(session.hear())
        await session.start()
        sent = await session.send(c.Text, text=text)
        await session.send(c.End)
        return 1000 * ((await hearing).first_audio - sent)


async def in_turns(first: ServerProcess, second: ServerProcess, pairs: int) -> tuple[list[float], list[float]]:
    """First audio of both, one after the other."""
    times: tuple[list[float], list[float]] = ([], [])
    servers = (first, second)
    for number in range(pairs):
        for at in (0, 1) if number % 2 else (1, 0):
            times[at].append(await first_audio_ms(servers[at], CLAUSES[number // 2 % len(CLAUSES)]))
            await asyncio.sleep(BETWEEN_S)
    return times


def change_percent(before: Sequence[float], after: Sequence[float], share: float) -> float:
    """How much longer it takes, by the percentile of this share."""
    return 100 * (percentile(after, share) / percentile(before, share) - 1)


def idle(report: Report, many: Helper, args: argparse.Namespace) -> None:
    """The figures of idle sessions."""
    options = ("--engine", "embedded", "--max-sessions", str(2 * args.sessions + 16), *ALL_MAY_COME)
    alone: list[float] = []
    beside: list[float] = []
    with server_process(*options) as one, server_process(*options) as other:
        run(in_turns(one, other, 2 * len(CLAUSES)))  # warm
        for loaded, empty in ((one, other), (other, one)):
            memory = loaded.memory_mb()
            many.ask("idle", loaded.port, args.sessions)
            time.sleep(SETTLE_S)
            if loaded is one:
                report.add("an idle session: memory", (one.memory_mb() - memory) * 1024 / args.sessions, "KiB", IDLE_KB)
                cpu = one.cpu_s()
                time.sleep(args.seconds)
                cpu = 100 * (one.cpu_s() - cpu) / args.seconds
                report.add(f"{args.sessions} idle sessions: CPU", cpu, "% of a core", IDLE_PERCENT)
            times = run(in_turns(empty, loaded, args.pairs // 2))
            alone += times[0]
            beside += times[1]
            report.add("  sessions that were lost", many.ask("leave"), "", 0)
    report.spread("first audio of a new session, alone", alone, "ms")
    report.spread(f"  beside {args.sessions} idle ones", beside, "ms")
    report.add("  change of the median", change_percent(alone, beside, 0.5), "%", FIRST_AUDIO_PERCENT)
    report.add("  change of p95", change_percent(alone, beside, 0.95), "%")


def live(report: Report, many: Helper, args: argparse.Namespace) -> None:
    """The figures of streams that play in real time."""
    with server_process("--engine", "tone", *ALL_MAY_COME) as server:
        many.ask("play", server.port, args.streams, SPREAD_S, {"max_lead_ms": MAX_LEAD_MS})
        time.sleep(WARM_UP_S)
        steps = server.metric("cosystream_step_seconds_sum")
        before: Heard = many.ask("heard")
        cpu, began = server.cpu_s(), time.perf_counter()
        time.sleep(args.seconds)
        cpu, took = server.cpu_s() - cpu, time.perf_counter() - began
        after: Heard = many.ask("heard")
        steps = server.metric("cosystream_step_seconds_sum") - steps
        many.ask("leave")
    real_time = (after.audio_s - before.audio_s) / (args.streams * took)
    if after.failed or after.streams < args.streams or not 0.95 < real_time < 1.05:
        raise RuntimeError(f"{after.streams} streams played at {real_time:.0%} of real time: {after.failed[:3]}")
    report.add(f"{args.streams} live streams: server CPU of each", 100 * cpu / args.streams / took, "%", STREAM_PERCENT)
    report.add("  of it the tone engine's steps (wall time)", 100 * steps / args.streams / took, "%")
    report.add("  underruns", after.underruns, "", 0)
    report.add("  silence because of them", after.silence_s, "s")


def main() -> int:
    """The exit status is 1 when a figure misses what is asked."""
    args = arguments(
        __doc__,
        sessions=(2_000, "idle sessions"),
        streams=(100, "live streams"),
        pairs=(240, "first audios measured in either case"),
        seconds=(20, "that CPU is measured over"),
    )
    report = Report("idle")
    with helper(Crowd) as many:
        live(report, many, args)
        idle(report, many, args)
    return report.finish(args.json)


if __name__ == "__main__":
    sys.exit(main())
