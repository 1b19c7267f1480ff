"""What `bench.load` plays through, one function for each scene. Each adds its figures, and what is asked of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bench._common import Report, ServerProcess, percentile
from bench._load_client import Job
from bench._load_engine import THREADS, Costs, first_chunks_ms
from bench._load_measure import CAPACITY, Measured, heard, measure, scrape, total, underruns
from bench._load_talker import RATE, Script
from bench._load_texts import SHORT, at_once, conversation, long_text
from server.engines.base import Engine

FIRST_MS: Final = {1: (55.0, 90.0), 4: (90.0, 150.0), 8: (130.0, 220.0), 16: (None, 500.0)}  # p50, p95, by sessions
FED: Final = 12  # so many must never run dry
LAG_MS: Final = 5.0
BUSY_MS: Final = 20.0
LOST_SHARE: Final = 20.0  # of the engine's own throughput, percent
COLLECTORS: Final = 8
LONG_CHARACTERS: Final = 20_000
LONG_PERCENT: Final = 30.0
OVERLOAD_FACTOR: Final = 1.2
UNKNOWN_SHARE: Final = 0.6  # of what the engine alone can do: taken for 1 x where the server does not say
TURN_S: Final = 11.5  # what one speaks, with writing it, on average: for the rate of arrivals
BARGE_IN_S: Final = 1.0
TAKES_ALL: Final = {"max_lead_ms": 600_000}  # a listener who plays as fast as audio comes


@dataclass(slots=True)
class Stage:
    """What every scene needs. `scale`: of the usual length. `loose`: nothing but faults fails (for a busy machine)."""

    server: ServerProcess
    engine: Engine
    report: Report
    scale: float = 1.0
    loose: float = 1.0  # limits of time are so much wider
    seed: int = 1
    scripts: Sequence[Script] = field(default_factory=conversation)

    def limit(self, value: float | None) -> float | None:
        """A limit of time, widened."""
        return None if value is None else value * self.loose

    def seconds(self, usual: float) -> float:
        """How long a scene takes."""
        return usual * self.scale


@dataclass(frozen=True, slots=True)
class Cell:
    """What the picture shows of a closed loop."""

    sessions: int
    p50_ms: float
    p95_ms: float
    engine_ms: float  # the engine's own first chunk, p50


def warm_up(stage: Stage) -> None:
    """The first steps of everything are slow."""
    short = [at_once(text) for text in SHORT]
    measure(stage.server, Job(stage.server.port, short, 2.0, sessions=2, pause_s=0.1, plays=False, options=TAKES_ALL))
    first_chunks_ms(stage.engine, stage.scripts)


def closed(stage: Stage, sessions: int, seconds: float) -> Cell:
    """So many conversations: each has an answer written and hears it to its end, then the next. One alone would say
    little in that time, so its listener interrupts a second after the first sound.
    """
    alone = percentile(first_chunks_ms(stage.engine, stage.scripts), 0.5)
    job = Job(
        stage.server.port, stage.scripts, stage.seconds(seconds), sessions=sessions, seed=stage.seed,
        spread_s=min(8.0, 0.3 * stage.seconds(seconds)) if sessions > 1 else 0.0,
        interrupt_s=BARGE_IN_S if sessions == 1 else None, pause_s=0.5 if sessions == 1 else 1.0,
    )  # fmt: skip
    measured = measure(stage.server, job)
    p50, p95 = FIRST_MS.get(sessions, (None, None))
    name = f"{sessions} session{'s' * (sessions > 1)}"
    times = heard(measured.loads)
    report = stage.report
    report.add(f"{name}: first audio, p50", percentile(times, 0.50), "ms", stage.limit(p50))
    report.add("  p95", percentile(times, 0.95), "ms", stage.limit(p95))
    report.add("  p99", percentile(times, 0.99), "ms")
    report.add("  p50 over what the engine alone needs for a first chunk", percentile(times, 0.5) / alone, "times")
    from_start = [spoken.from_start_ms for spoken in measured.load.spoken if not math.isnan(spoken.from_start_ms)]
    report.add("  from the first character, p50", percentile(from_start, 0.5), "ms")
    _holes(stage, measured, 0 if sessions <= FED and stage.loose == 1 else None)
    _busy(stage, measured)
    _costs(stage, measured, lag_limit=LAG_MS if sessions <= FED else None)
    return Cell(sessions, percentile(times, 0.5), percentile(times, 0.95), alone)


def _holes(stage: Stage, measured: Measured, limit: float | None, after_s: float = 0.0) -> None:
    holes = underruns(measured.loads, after_s)
    stage.report.add("  underruns", len(holes), "", limit)
    if holes:
        stage.report.add("  silence because of them", sum(holes), "s")
        stage.report.add("  the longest", 1000 * max(holes), "ms")
    errors = [error for load in measured.loads for error in load.errors]
    if errors:
        stage.report.add("  sessions that failed", len(errors), "", 0)
        stage.report.note(f"a session failed: {errors[0]}")


def _busy(stage: Stage, measured: Measured) -> None:
    times = [each for load in measured.loads for each in load.busy_ms]
    stage.report.add("  turned away", len(times), "")
    if times:
        stage.report.add("  busy heard after, p95", percentile(times, 0.95), "ms", stage.limit(BUSY_MS))


def _costs(stage: Stage, measured: Measured, lag_limit: float | None) -> None:
    report, load = stage.report, measured.load
    known = lag_limit if stage.loose == 1 and not math.isnan(measured.lag_p99_ms) else None
    report.add("  event loop late, p99", measured.lag_p99_ms, "ms", known)
    report.add("  audio", sum(each.samples for each in measured.loads) / RATE / load.seconds, "s a second")
    report.add("  server CPU", measured.server, "cores")
    report.add("  memory before", measured.memory_mb[0], "MiB")
    report.add("  memory, most", max(measured.memory_mb), "MiB")
    report.note(
        f"  ({load.speaking} sessions: engine {measured.engine:.2f}, load generator {measured.generator:.3f} cores, "
        f"its event loop late by {load.lag_ms:.1f} ms (p99); other processes {measured.others:.2f} cores)"
    )


def open_loop(stage: Stage, seconds: float, capacity: float = 0.0) -> None:
    """Sessions that come at random, say one thing and leave: as many as the server can feed, then twice as many."""
    found = total(scrape(stage.server), CAPACITY)
    if not capacity:
        capacity = found if found > 0 else UNKNOWN_SHARE * _engine_streams(stage)
    ramp_s = min(TURN_S, stage.seconds(seconds) / 3)
    p95 = {}
    for factor in (1, 2):
        rate = factor * capacity / TURN_S
        job = Job(stage.server.port, stage.scripts, stage.seconds(seconds), rate=rate, seed=stage.seed + factor)
        measured = measure(stage.server, job)
        times = heard(measured.loads, ramp_s)
        p95[factor] = percentile(times, 0.95)
        crowd = "as many" if factor == 1 else "twice as many"
        offered = f"{crowd} as it can feed ({capacity:.0f} at once), {rate:.1f} new ones a second"
        stage.report.add(f"{offered}: sessions that came", measured.load.arrivals, "")
        stage.report.add("  most at once that were let in", measured.load.speaking, "")
        stage.report.add("  first audio, p50", percentile(times, 0.5), "ms")
        stage.report.add("  p95", p95[factor], "ms")
        _holes(stage, measured, 0 if stage.loose == 1 else None, ramp_s)
        _busy(stage, measured)
        _costs(stage, measured, lag_limit=None)
    limit = OVERLOAD_FACTOR if stage.loose == 1 else None
    stage.report.add("first audio with twice as many over that with as many, p95", p95[2] / p95[1], "times", limit)


def collecting(stage: Stage, seconds: float) -> None:
    """Sessions that only collect audio, against the engine's own speed before and after."""
    scripts = [at_once(script.text) for script in stage.scripts]
    costs = Costs(stage.engine, scripts)
    costs.measure(stage.seconds(seconds / 2))
    job = Job(stage.server.port, scripts, stage.seconds(seconds), sessions=COLLECTORS, plays=False, pause_s=0.0)
    measured = measure(stage.server, job)
    costs.measure(stage.seconds(seconds / 2))
    spoken, took = measured.load.spoken, measured.load.seconds
    share = sum(costs.of(each.script, each.audio_s) for each in spoken) / (took * THREADS)
    audio = sum(each.audio_s for each in spoken) / took
    stage.report.add(f"{COLLECTORS} sessions that collect: audio", audio, "s a second")
    stage.report.add("  the engine alone, the same texts", audio / share, "s a second")
    limit = LOST_SHARE if stage.loose == 1 else None
    stage.report.add("  of that the server loses", 100 * (1 - share), "%", limit)
    _holes(stage, replace(measured, loads=[]), None)
    _costs(stage, measured, lag_limit=LAG_MS)


def beside_a_long_text(stage: Stage, seconds: float, rounds: int = 3) -> None:
    """Short requests, by turns alone and beside a session that collects a long text."""
    port = stage.server.port
    short = [at_once(text) for text in SHORT]
    long = at_once(long_text(LONG_CHARACTERS))
    each_s = stage.seconds(seconds / rounds / 2)
    requests = Job(port, short, each_s, sessions=1, pause_s=0.1, plays=False, options=TAKES_ALL)
    times: dict[bool, list[float]] = {False: [], True: []}
    for round_ in range(rounds):
        for beside in (False, True):
            asked = replace(requests, seed=stage.seed + round_)
            loads = [asked, Job(port, [long], each_s, sessions=1, plays=False)] if beside else [asked]
            times[beside] += heard(measure(stage.server, *loads).loads[:1])
    report, before, after = stage.report, times[False], times[True]
    report.spread("a short request: first audio", before, "ms")
    report.spread(f"  beside {LONG_CHARACTERS} characters", after, "ms")
    change = 100 * (percentile(after, 0.5) / percentile(before, 0.5) - 1)
    report.add("  change of the median", change, "%", LONG_PERCENT if stage.loose == 1 else None)
    report.add("  change of p95", 100 * (percentile(after, 0.95) / percentile(before, 0.95) - 1), "%")


def _engine_streams(stage: Stage) -> float:
    costs = Costs(stage.engine, stage.scripts)
    costs.measure(stage.seconds(2))
    return costs.streams
