"""Bad links: how soon sound comes, how long it stays away, and that no sample is ever lost or heard twice.

Four ways to send are compared over modelled links, in virtual time (`bench/_simulation.py`): chunks paced like speech,
chunks as far ahead as four seconds, blocks, and the server's own choice among them; each with and without the client's
watchdog, which opens a second connection when the first falls silent. The sessions are the real ones, client and
server; TCP, the engine's speed and the sound device are models.

What is asked comes first, then one line for each link; `--cells` shows every figure. Also written: every cell to
bench/results/link_cells.json, and with `--picture` docs/link.svg (docs/link.png, too, where something here draws one).
"""

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, Final

from bench import _link_picture as drawing
from bench._common import RESULTS, Report, run, server_process
from bench._link_profiles import PROFILES, Profile
from bench._link_sockets import LINES, measure_on_sockets
from bench._link_tables import ADAPTIVE, Cell, Summary, overview, summary, table
from bench._simulation import ARMS, Outcome, simulate
from deploy.local_server import ROOT

SEEDS: Final = 5
PACED: Final = "chunk, paced"
UNPACED: Final = "chunk, unpaced"
BLOCK: Final = "block"
BY_NAME: Final = {profile.name: profile for profile in PROFILES}


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


async def over_sockets(report: Report, seeds: int, port: int) -> dict[Cell, Summary]:
    """Twelve cells with real sockets, medians over the seeds. Returns them."""
    found: dict[Cell, Summary] = {}
    for line in LINES:
        for arm in (arm for arm in ARMS if arm.name in (PACED, ADAPTIVE)):
            outcomes = await measure_on_sockets(line, arm, seeds, port)
            print(f"  {line.profile}, {line.format}, {arm.name}", file=sys.stderr, flush=True)
            found[Cell(line.profile, line.format, arm.name, True)] = each = summary(outcomes, median)
            for failure in each.failures:
                report.note(f"sockets, {line.profile}, {line.format}, {arm.name}: {failure}")
    report.add("sockets: samples lost or doubled", sum(s.wrong_samples for s in found.values()), "", 0)
    report.add("sockets: runs that did not end", sum(s.unfinished for s in found.values()), "", 0)
    heard = [s.recovery_p50 for cell, s in found.items() if cell.arm == ADAPTIVE and s.recovery_p50 == s.recovery_p50]
    report.add("sockets: sound again after link-up, adaptive, slowest cell's p50", max(heard, default=0.0), "s", 0.8)
    return found


def save(found: dict[Cell, Summary]) -> Path:
    """Every cell's figures."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / "link_cells.json"
    rows: list[dict[str, Any]] = [asdict(cell) | asdict(each) for cell, each in found.items()]
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return path


def draw(found: dict[Cell, Summary]) -> str:
    """Writes the picture; says where."""
    shown = [drawing.Cell(c.profile, c.format, c.arm, c.watchdog, s.silent_s, s.recovery_p50) for c, s in found.items()]
    drawing.TARGET.write_text(drawing.picture(shown), encoding="utf-8")
    png = drawing.write_png(drawing.TARGET)
    names = [path.name for path in (drawing.TARGET, png) if path is not None]
    return f"drawn: {', '.join(names)}" + ("" if png else " (no rsvg-convert and no browser here for the PNG)")


def show(found: dict[Cell, Summary], sockets: dict[Cell, Summary], *, cells: bool) -> None:
    """The tables, for a terminal of 120 columns."""
    print("\nSilence in the middle of speech, s, mean of the runs with the watchdog (without it, where that differs);")
    print(f"again: from the link's return to sound, s, {ADAPTIVE}, where a trouble was heard")
    print(overview(found))
    for audio_format in ("pcm", "opus") if sockets else ():
        print(f"\n{audio_format}, over sockets, median of the runs")
        print(table(sockets, audio_format, True))
    for audio_format in ("pcm", "opus") if cells else ():
        for watchdog in (True, False):
            print(f"\n{audio_format}, {'with' if watchdog else 'without'} the watchdog, mean of the runs")
            print(table(found, audio_format, watchdog))


def main() -> int:
    """The exit status is 1 when a figure misses what is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"runs of each cell (default: {SEEDS})")
    parser.add_argument("--profile", action="append", choices=list(BY_NAME), help="only this link; may be repeated")
    parser.add_argument("--sockets", action="store_true", help="then twelve cells over real sockets, too (minutes)")
    parser.add_argument("--cells", action="store_true", help="show every cell's figures")
    parser.add_argument("--picture", action="store_true", help="draw docs/link.svg (and link.png) again")
    chosen = parser.parse_args()
    begun = monotonic()
    wanted = cells(BY_NAME[name] for name in chosen.profile or BY_NAME)
    print(f"{len(wanted)} cells in virtual time (about two minutes for all of them) ...", file=sys.stderr, flush=True)
    outcomes = measure_all(wanted, chosen.seeds)
    order = list(BY_NAME)
    found = {cell: summary(outcomes[cell]) for cell in sorted(outcomes, key=lambda cell: order.index(cell.profile))}
    report = Report("link")
    judge(report, outcomes, found)
    virtual = sum(outcome.virtual_s for each in outcomes.values() for outcome in each)
    report.note(f"{virtual:.0f} s of links in {monotonic() - begun:.0f} s; every cell: {save(found).relative_to(ROOT)}")
    sockets: dict[Cell, Summary] = {}
    if chosen.sockets:
        print("... and over sockets", file=sys.stderr, flush=True)
        with server_process("--engine", "tone") as server:
            sockets = run(over_sockets(report, chosen.seeds, server.port))
    if chosen.picture:
        report.note(draw(found))
    status = report.finish(chosen.json)
    show(found, sockets, cells=chosen.cells)
    return status


if __name__ == "__main__":
    sys.exit(main())
