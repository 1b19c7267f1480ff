"""Bad links: how soon sound comes, how long it stays away, and that no sample is ever lost or heard twice.

Four ways to send are compared over modelled links, in virtual time (`bench/_simulation.py`): chunks paced like speech,
chunks as far ahead as four seconds, blocks, and the server's own choice among them; each with and without the client's
watchdog, which opens a second connection when the first falls silent. The sessions are the real ones, client and
server; TCP, the engine's speed and the sound device are models.

Also written: every cell's figures to bench/results/link_cells.json, the picture to docs/link.svg with `--picture`.
"""

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Final

from bench._common import RESULTS, Report, percentile, run, server_process
from bench._link_picture import TARGET, picture
from bench._link_profiles import PROFILES, Profile
from bench._link_sockets import LINES, measure_on_sockets
from bench._simulation import ARMS, Outcome, simulate

SEEDS: Final = 5
ADAPTIVE: Final = "adaptive"
PACED: Final = "chunk, paced"
UNPACED: Final = "chunk, unpaced"
BLOCK: Final = "block"
BY_NAME: Final = {profile.name: profile for profile in PROFILES}


@dataclass(frozen=True, slots=True)
class Cell:
    """What is run, once for each seed."""

    profile: str
    format: str
    arm: str
    watchdog: bool


def cells(profiles: Iterable[Profile]) -> list[Cell]:
    """The full matrix. On a calm link a watchdog has nothing to do."""
    return [
        Cell(profile.name, audio_format, arm.name, watchdog)
        for profile in profiles
        for audio_format in profile.formats
        for arm in ARMS
        for watchdog in ((True,) if profile.is_calm else (True, False))
    ]


def measure(cell: Cell, seed: int) -> Outcome:
    """One run."""
    arm = next(arm for arm in ARMS if arm.name == cell.arm)
    return simulate(BY_NAME[cell.profile], cell.format, arm, seed, watchdog=cell.watchdog)  # type: ignore[arg-type]


def measure_all(wanted: Sequence[Cell], seeds: int) -> dict[Cell, list[Outcome]]:
    """Every run, on every processor this process may use; long ones first, so that none is left over at the end."""
    runs = [(cell, seed) for cell in wanted for seed in range(1, 1 + (BY_NAME[cell.profile].seeds or seeds))]
    runs.sort(key=lambda run: -BY_NAME[run[0].profile].speech_s)
    found: dict[Cell, list[Outcome]] = defaultdict(list)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        outcomes = pool.map(measure, [cell for cell, _ in runs], [seed for _, seed in runs], chunksize=4)
        for (cell, _), outcome in zip(runs, outcomes, strict=True):
            found[cell].append(outcome)
    return found


def mean(values: Iterable[float]) -> float:
    """NaN for none."""
    known = list(values)
    return sum(known) / len(known) if known else float("nan")


@dataclass(frozen=True, slots=True)
class Summary:
    """A cell over its seeds. Times are seconds, rates per minute of sound."""

    first_sound_p50: float
    first_sound_p95: float
    first_frame_p50: float
    stalls: float
    silent_s: float
    rebuffer_ratio: float
    recovery_p50: float
    recovery_p95: float
    unheard_troubles: int
    resumes: float
    resent_kb: float
    wasted_s: float
    switches_per_minute: float
    ring_peak_kb: float
    wrong_samples: int
    unfinished: int
    failures: list[str]


def summary(outcomes: Sequence[Outcome]) -> Summary:
    """Means, and percentiles where they are asked for."""
    first = [o.first_sound_s for o in outcomes if o.first_sound_s is not None]
    recovery = [each for o in outcomes for each in o.recovery_s]
    sound, silent = sum(o.audio_s for o in outcomes), sum(o.silent_s for o in outcomes)
    return Summary(
        first_sound_p50=percentile(first, 0.5),
        first_sound_p95=percentile(first, 0.95),
        first_frame_p50=percentile([o.first_frame_s for o in outcomes if o.first_frame_s is not None], 0.5),
        stalls=mean(o.stalls for o in outcomes),
        silent_s=mean(o.silent_s for o in outcomes),
        rebuffer_ratio=silent / (sound + silent) if sound else float("nan"),
        recovery_p50=percentile(recovery, 0.5),
        recovery_p95=percentile(recovery, 0.95),
        unheard_troubles=sum(o.unheard_troubles for o in outcomes),
        resumes=mean(o.resumes for o in outcomes),
        resent_kb=mean(o.resent_bytes / 1000 for o in outcomes),
        wasted_s=mean(o.wasted_s for o in outcomes),
        switches_per_minute=60 * sum(len(o.switches) for o in outcomes) / sound if sound else float("nan"),
        ring_peak_kb=max(o.peak_ring_bytes for o in outcomes) / 1000,
        wrong_samples=sum(o.wrong_samples for o in outcomes),
        unfinished=sum(not o.finished for o in outcomes),
        failures=sorted({o.failure for o in outcomes if o.failure} | {text for o in outcomes for text in o.wrong}),
    )


COLUMNS: Final[tuple[tuple[str, Callable[[Summary], str]], ...]] = (
    ("first sound", lambda s: f"{s.first_sound_p50:.2f}/{s.first_sound_p95:.2f}"),
    ("stalls", lambda s: f"{s.stalls:.1f}"),
    ("silent s", lambda s: f"{s.silent_s:.2f}"),
    ("rebuffer %", lambda s: f"{100 * s.rebuffer_ratio:.1f}"),
    ("again s", lambda s: "" if s.recovery_p50 != s.recovery_p50 else f"{s.recovery_p50:.2f}/{s.recovery_p95:.2f}"),
    ("resumes", lambda s: f"{s.resumes:.1f}"),
    ("resent KB", lambda s: f"{s.resent_kb:.0f}"),
    ("wasted s", lambda s: f"{s.wasted_s:.1f}" if s.wasted_s else ""),
    ("switches/min", lambda s: f"{s.switches_per_minute:.1f}"),
    ("ring KB", lambda s: f"{s.ring_peak_kb:.0f}"),
    ("wrong", lambda s: f"{s.wrong_samples}" if s.wrong_samples else ""),
)


def table(found: dict[Cell, Summary], audio_format: str, watchdog: bool) -> str:
    """One row for each profile and arm."""
    rows = [("", "", *(name for name, _ in COLUMNS))]
    for cell, each in found.items():
        if cell.format == audio_format and (cell.watchdog is watchdog):
            unfinished = f"  {each.unfinished} did not end" if each.unfinished else ""
            rows.append(
                (cell.profile, cell.arm, *(show(each) for _, show in COLUMNS[:-1]), COLUMNS[-1][1](each) + unfinished)
            )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column < 2 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def judge(report: Report, outcomes: dict[Cell, list[Outcome]], found: dict[Cell, Summary]) -> None:
    """What is asked of the adaptive arm, and of every cell."""
    report.add("samples lost, doubled or altered, all cells", sum(s.wrong_samples for s in found.values()), "", 0)
    late = sum(s.unfinished for cell, s in found.items() if cell.watchdog)
    report.add("runs with the watchdog that did not end", late, "", 0)
    watched = {cell: s for cell, s in found.items() if cell.watchdog}

    def of(cell: Cell, arm: str) -> Summary:
        return found[Cell(cell.profile, cell.format, arm, cell.watchdog)]

    adaptive = [cell for cell in watched if cell.arm == ADAPTIVE]
    ratios = {cell: watched[cell].first_sound_p50 / of(cell, UNPACED).first_sound_p50 for cell in adaptive}
    worst = max(ratios, key=lambda cell: ratios[cell])
    report.add(
        f"first sound, adaptive over chunk, worst link ({worst.profile}, {worst.format})", ratios[worst], "x", 1.1
    )
    excess = {}
    for cell in adaptive:
        block = of(cell, BLOCK).silent_s
        excess[cell] = watched[cell].silent_s - block - max(0.2, 0.1 * block)
    worst = max(excess, key=lambda cell: excess[cell])
    name = f"silence beyond block's + max(200 ms, 10 %), worst link ({worst.profile}, {worst.format})"
    report.add(name, excess[worst], "s", 0)
    holes = [cell for cell in adaptive if BY_NAME[cell.profile].has_hole]
    if holes:
        paced = sum(of(cell, PACED).silent_s for cell in holes)
        share = sum(watched[cell].silent_s for cell in holes) / paced if paced else 0.0
        report.add("silence over chunk paced's, links with holes", share, "x", 0.5)
        again = [each for cell in holes for outcome in outcomes[cell] for each in outcome.recovery_s]
        unheard = sum(watched[cell].unheard_troubles for cell in holes)
        report.spread("sound again after link-up, holes that were heard", again, "s", 0.8 if again else None)
        report.note(f"{len(again)} holes were heard with adaptive sending, {unheard} were not")
    calm = [cell for cell in adaptive if BY_NAME[cell.profile].is_calm]
    for cell in calm:
        switches = sum(len(outcome.switches) for outcome in outcomes[cell])
        report.add(f"switches in 10 minutes, {cell.profile}, {cell.format}", switches, "", 0)
    for cell in [cell for cell in adaptive if BY_NAME[cell.profile].cancel_after_s is not None]:
        report.add(f"sent in vain at a barge-in, {cell.format}", watched[cell].wasted_s, "s")


async def over_sockets(report: Report, seeds: int, port: int) -> None:
    """Twelve cells with real sockets, medians over the seeds."""
    found: dict[Cell, Summary] = {}
    for line in LINES:
        for arm in (arm for arm in ARMS if arm.name in (PACED, ADAPTIVE)):
            outcomes = await measure_on_sockets(line, arm, seeds, port)
            found[Cell(line.profile, line.format, arm.name, True)] = each = summary(outcomes)
            for failure in each.failures:
                report.note(f"sockets, {line.profile}, {line.format}, {arm.name}: {failure}")
    for audio_format in ("pcm", "opus"):
        print(f"\n{audio_format}, over sockets (seconds: p50/p95)")
        print(table(found, audio_format, True), flush=True)
    report.add("sockets: samples lost or doubled", sum(s.wrong_samples for s in found.values()), "", 0)
    report.add("sockets: runs that did not end", sum(s.unfinished for s in found.values()), "", 0)
    heard = [s.recovery_p50 for cell, s in found.items() if cell.arm == ADAPTIVE and s.recovery_p50 == s.recovery_p50]
    report.add("sockets: sound again after link-up, adaptive, slowest cell's p50", max(heard, default=0.0), "s", 0.8)


def save(found: dict[Cell, Summary]) -> Path:
    """Every cell's figures."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "link_cells.json"
    rows: list[dict[str, Any]] = [asdict(cell) | asdict(each) for cell, each in found.items()]
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return path


def main() -> int:
    """The exit status is 1 when a figure misses what is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"runs of each cell (default: {SEEDS})")
    parser.add_argument("--profile", action="append", choices=list(BY_NAME), help="only this link; may be repeated")
    parser.add_argument("--sockets", action="store_true", help="then twelve cells over real sockets, too (minutes)")
    parser.add_argument("--picture", action="store_true", help="draw docs/link.svg again")
    chosen = parser.parse_args()
    begun = monotonic()
    outcomes = measure_all(cells(BY_NAME[name] for name in chosen.profile or BY_NAME), chosen.seeds)
    found = {cell: summary(each) for cell, each in outcomes.items()}
    order = list(BY_NAME)
    found = dict(sorted(found.items(), key=lambda item: order.index(item[0].profile)))
    for audio_format in ("pcm", "opus"):
        for watchdog in (True, False):
            print(f"\n{audio_format}, {'with' if watchdog else 'without'} the watchdog (seconds: p50/p95)")
            print(table(found, audio_format, watchdog), flush=True)
    print()
    report = Report("link")
    judge(report, outcomes, found)
    virtual = sum(outcome.virtual_s for each in outcomes.values() for outcome in each)
    wall = monotonic() - begun
    report.note(f"{virtual:.0f} s of links in {wall:.0f} s; every cell: {save(found).name}")
    if chosen.sockets:
        with server_process("--engine", "tone") as server:
            run(over_sockets(report, chosen.seeds, server.port))
    if chosen.picture:
        TARGET.write_text(
            picture({(c.profile, c.format, c.arm): s.silent_s for c, s in found.items() if c.watchdog}),
            encoding="utf-8",
        )
    return report.finish(chosen.json)


if __name__ == "__main__":
    sys.exit(main())
