"""Hostile peers beside live sessions: nothing breaks, nothing grows, nobody else notices.

`python -m bench.fuzz [--count N] [--seed N] [--rate N]`. Attacks come from a process of their own, so many a second.
Live sessions speak one clause after the other all the time; what they hear without and with attacks is compared in
turns. A fault names the number of its attack: `--seed N --only NUMBER` repeats it alone and says what came back.
"""

import argparse
import asyncio
import hashlib
import sys
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from websockets.exceptions import ConnectionClosed

from bench._common import Report, ServerProcess, arguments, percentile, run, server_process
from bench._fuzz import Tally, attack, perform_all
from bench._fuzz_attack import perform
from bench._helper import Helper, helper
from bench._session import Session, open_session
from protocol import client_messages as c
from protocol import server_messages as s

AT_ONCE: Final = 64
ALL_MAY_COME: Final = ("--max-streams", "10000")  # sessions that attackers open count as if they spoke for a moment
ATTACKERS_NICE: Final = 10  # real ones have a machine of their own
ROUNDS: Final = 10  # without and with attacks, in turns
QUIET_SHARE: Final = 0.5  # of a round's attacks, how long the time without is
LIVE: Final = 2  # sessions that speak meanwhile
BETWEEN_S: Final = 0.1  # two clauses of one session
CLAUSES: Final = ("你好，今天天气很好。", "Good morning, how are you?", "没问题，我马上就来。", "Of course, here.")
HEAD_TIMEOUT_S: Final = 2
RESUME_TTL_S: Final = 2
SETTLE_S: Final = 2 * RESUME_TTL_S + 1.0  # until the last peers are forgotten
P95_PERCENT: Final = 10.0
GROWTH_PERCENT: Final = 3.0
LINES_PER_ATTACK: Final = 1.0
SPARE_DESCRIPTORS: Final = 3


T = TypeVar("T")


class Attackers:
    """What can be asked of the process (see `bench._helper`)."""

    async def attack(self, port: int, seed: int, first: int, count: int, rate: float) -> Tally:
        """So many attacks."""
        return await perform_all(port, seed, range(first, first + count), at_once=AT_ONCE, rate=rate)


@dataclass(slots=True)
class Listening:
    """What live sessions noticed."""

    first_audio_ms: list[float] = field(default_factory=list)
    digests: dict[str, set[str]] = field(default_factory=dict)  # of the audio, by clause
    lost: list[str] = field(default_factory=list)  # sessions that the server ended
    wrong: int = 0  # utterances whose samples do not have the digest that the server names


async def speak(session: Session, text: str, heard: Listening) -> None:
    """One clause."""
    hearing = asyncio.ensure_future(session.hear())
    await session.start()
    sent = await session.send(c.Text, text=text)
    await session.send(c.End)
    taken = await hearing
    heard.first_audio_ms.append(1000 * (taken.first_audio - sent))
    digest = hashlib.sha256(b"".join(frame.payload for _, frame in taken.frames)).hexdigest()
    done = next(event for event in taken.events if isinstance(event, s.Done))
    heard.wrong += digest != done.wire_digest
    heard.digests.setdefault(text, set()).add(done.digest)


async def live_session(url: str, heard: Listening, over: asyncio.Event) -> None:
    """Speaks until it is over."""
    while not over.is_set():
        try:
            async with open_session(url, mode="stream") as session:
                while not over.is_set():
                    for text in CLAUSES:
                        await speak(session, text, heard)
                        await asyncio.sleep(BETWEEN_S)
        except (ConnectionClosed, RuntimeError) as error:
            heard.lost.append(str(error))


async def listen(url: str, heard: Listening, meanwhile: Awaitable[T]) -> T:
    """Live sessions, as long as something else lasts."""
    over = asyncio.Event()
    live = [asyncio.ensure_future(live_session(url, heard, over)) for _ in range(LIVE)]
    try:
        result = await meanwhile
        over.set()
        await asyncio.gather(*live)
    finally:
        for each in live:
            each.cancel()
    return result


@dataclass(slots=True)
class Results:
    """Of all rounds."""

    quiet: Listening = field(default_factory=Listening)
    attacked: Listening = field(default_factory=Listening)
    tally: Tally = field(default_factory=Tally)
    memory_mb: list[float] = field(default_factory=list)  # after each round


async def in_turns(server: ServerProcess, attackers: Helper, args: argparse.Namespace) -> Results:
    """Without and with attacks."""
    results = Results()
    per_round = args.count // ROUNDS
    lasts = per_round / args.rate
    await listen(server.url, Listening(), asyncio.sleep(SETTLE_S))  # warm
    for number in range(ROUNDS):
        await listen(server.url, results.quiet, asyncio.sleep(QUIET_SHARE * lasts))
        attackers.begin("attack", server.port, args.seed, number * per_round, per_round, float(args.rate))
        attacking = asyncio.to_thread(attackers.result, 10 * lasts + SETTLE_S + 60.0)
        results.tally += await listen(server.url, results.attacked, attacking)
        await asyncio.sleep(SETTLE_S)
        results.memory_mb.append(server.memory_mb())
    return results


def judge(report: Report, results: Results) -> None:
    """What live sessions noticed, and how attacks ended."""
    quiet, attacked, tally = results.quiet, results.attacked, results.tally
    report.add("attacks", tally.count, "")
    report.add("  answered by a fault of the server", len(tally.faults), "", 0)
    report.spread("first audio of live sessions, without attacks", quiet.first_audio_ms, "ms")
    report.spread("  with attacks", attacked.first_audio_ms, "ms")
    change = percentile(attacked.first_audio_ms, 0.95) / percentile(quiet.first_audio_ms, 0.95) - 1
    report.add("  change of p95", 100 * change, "%", P95_PERCENT)
    kinds = [quiet.digests.get(text, set()) | attacked.digests.get(text, set()) for text in CLAUSES]
    report.add("  clauses that did not always sound the same", sum(len(each) != 1 for each in kinds), "", 0)
    report.add("  utterances that are not what the server says", quiet.wrong + attacked.wrong, "", 0)
    report.add("  live sessions that the server ended", len(quiet.lost) + len(attacked.lost), "", 0)
    for fault in (*tally.faults, *sorted({*quiet.lost, *attacked.lost})):
        report.note(fault)
    report.note("how they ended: " + ", ".join(f"{count} {kind}" for kind, count in tally.outcomes.most_common()))


def judge_server(report: Report, server: ServerProcess, results: Results, descriptors: float, log_before: str) -> None:
    """What the attacks left behind."""
    memory = results.memory_mb
    report.add("memory after the first round", memory[0], "MiB")
    report.add("  growth until the last", 100 * (memory[-1] / memory[0] - 1), "%", GROWTH_PERCENT)
    left = server.metric("cosystream_process_open_fds") - descriptors
    report.add("descriptors left open", left, "", SPARE_DESCRIPTORS)
    report.add("sessions left open", server.metric("cosystream_sessions_open"), "", 0)
    log = server.logged()[len(log_before) :]
    lines = log.splitlines()
    troubles = [line for line in lines if "Traceback" in line or '"level":"error"' in line]
    report.add("log lines of each attack", len(lines) / results.tally.count, "", LINES_PER_ATTACK)
    report.add("log of each attack", len(log) / results.tally.count, "bytes")
    report.add("errors and tracebacks in the log", len(troubles), "", 0)
    for line in troubles[:3]:
        report.note(line[:2_000])


def repeat(args: argparse.Namespace) -> int:
    """One attack alone."""
    each = attack(args.seed, args.only)
    with server_process("--engine", "tone", "--head-timeout-s", str(HEAD_TIMEOUT_S)) as server:
        outcome = run(perform(server.port, each))
        log = server.logged()
    print(each, outcome, log, sep="\n")
    return 1 if outcome.fault or log else 0


def main() -> int:
    """The exit status is 1 when a figure misses what is asked."""
    args = arguments(
        __doc__,
        count=(100_000, "attacks"),
        seed=(1, "what the attacks are made from"),
        rate=(50, "attacks a second; one costs the server about 1 ms"),
        only=(-1, "repeat the attack of this number alone"),
    )
    if args.only >= 0:
        return repeat(args)
    report = Report("fuzz")
    options = (*ALL_MAY_COME, "--head-timeout-s", str(HEAD_TIMEOUT_S), "--resume-ttl-s", str(RESUME_TTL_S))
    with (
        server_process(*options, "--log-level", "info", "--log-format", "json") as server,
        helper(Attackers, nice=ATTACKERS_NICE) as attackers,
    ):
        log_before, descriptors = server.logged(), server.metric("cosystream_process_open_fds")
        results = run(in_turns(server, attackers, args))
        judge(report, results)
        judge_server(report, server, results, descriptors, log_before)
    return report.finish(args.json)


if __name__ == "__main__":
    sys.exit(main())
