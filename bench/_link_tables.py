"""The figures of `bench.link` over the runs of a cell, and the tables that show them in 120 columns."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from bench._common import percentile
from bench._simulation import ARMS, Outcome

ADAPTIVE: Final = "adaptive"
NOTEWORTHY_S: Final = 0.1  # of silence


@dataclass(frozen=True, slots=True)
class Cell:
    """What is run, once for each seed."""

    profile: str
    format: str
    arm: str
    watchdog: bool


def mean(values: Iterable[float]) -> float:
    """NaN for none."""
    known = list(values)
    return sum(known) / len(known) if known else float("nan")


@dataclass(frozen=True, slots=True)
class Summary:
    """A cell over its seeds. Times are seconds, rates per minute of sound. Where no percentile is named, one figure
    stands for all runs: their mean, or on sockets, where a busy machine may spoil one, their median.
    """

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


def summary(outcomes: Sequence[Outcome], middle: Callable[[Iterable[float]], float] = mean) -> Summary:
    """The `middle` of the runs, and percentiles where they are asked for."""
    first = [o.first_sound_s for o in outcomes if o.first_sound_s is not None]
    recovery = [each for o in outcomes for each in o.recovery_s]
    sound, silent = sum(o.audio_s for o in outcomes), sum(o.silent_s for o in outcomes)
    return Summary(
        first_sound_p50=percentile(first, 0.5),
        first_sound_p95=percentile(first, 0.95),
        first_frame_p50=percentile([o.first_frame_s for o in outcomes if o.first_frame_s is not None], 0.5),
        stalls=middle(o.stalls for o in outcomes),
        silent_s=middle(o.silent_s for o in outcomes),
        rebuffer_ratio=silent / (sound + silent) if sound else float("nan"),
        recovery_p50=percentile(recovery, 0.5),
        recovery_p95=percentile(recovery, 0.95),
        unheard_troubles=sum(o.unheard_troubles for o in outcomes),
        resumes=middle(o.resumes for o in outcomes),
        resent_kb=middle(o.resent_bytes / 1000 for o in outcomes),
        wasted_s=middle(o.wasted_s for o in outcomes),
        switches_per_minute=60 * sum(len(o.switches) for o in outcomes) / sound if sound else float("nan"),
        ring_peak_kb=max(o.peak_ring_bytes for o in outcomes) / 1000,
        wrong_samples=sum(o.wrong_samples for o in outcomes),
        unfinished=sum(not o.finished for o in outcomes),
        failures=sorted({o.failure for o in outcomes if o.failure} | {text for o in outcomes for text in o.wrong}),
    )


def spread(p50: float, p95: float) -> str:
    """Both, or nothing where there is none."""
    return "" if p50 != p50 else f"{p50:.2f}/{p95:.2f}"


# Two lines of heading, and the figure; times are seconds, p50/p95.
COLUMNS: Final[tuple[tuple[str, str, Callable[[Summary], str]], ...]] = (
    ("first", "sound", lambda s: spread(s.first_sound_p50, s.first_sound_p95)),
    ("", "stalls", lambda s: f"{s.stalls:.1f}"),
    ("silent", "s", lambda s: f"{s.silent_s:.2f}"),
    ("sound", "again", lambda s: spread(s.recovery_p50, s.recovery_p95)),
    ("re-", "sumes", lambda s: f"{s.resumes:.1f}"),
    ("resent", "KB", lambda s: f"{s.resent_kb:.0f}"),
    ("in", "vain", lambda s: f"{s.wasted_s:.1f}" if s.wasted_s else ""),
    ("modes", "/min", lambda s: f"{s.switches_per_minute:.1f}"),
    ("ring", "KB", lambda s: f"{s.ring_peak_kb:.0f}"),
    ("wrong", "", lambda s: f"{s.wrong_samples}" if s.wrong_samples else ""),
    ("not", "ended", lambda s: f"{s.unfinished}" if s.unfinished else ""),
)


def table(found: dict[Cell, Summary], audio_format: str, watchdog: bool) -> str:
    """One row for each profile and arm."""
    rows = [("", "", *(above for above, _, _ in COLUMNS)), ("", "", *(below for _, below, _ in COLUMNS))]
    for cell, each in found.items():
        if cell.format == audio_format and (cell.watchdog is watchdog):
            rows.append((cell.profile, cell.arm, *(show(each) for _, _, show in COLUMNS)))
    return align(rows, left=2)


def overview(found: dict[Cell, Summary]) -> str:
    """One row for each profile and format: silence by arm, with the watchdog and without where that differs."""
    arms = [arm.name for arm in ARMS]
    rows = [("", "", *(arm.partition(", ")[0] for arm in arms), "again")]
    rows.append(("", "", *(arm.partition(", ")[2] for arm in arms), "p50/p95"))

    def silent(cell: Cell, arm: str) -> str:
        with_it, without = (found.get(Cell(cell.profile, cell.format, arm, watchdog)) for watchdog in (True, False))
        assert with_it is not None
        text = f"{with_it.silent_s:.1f}"
        if without is not None and abs(without.silent_s - with_it.silent_s) >= NOTEWORTHY_S:
            text += f" ({without.silent_s:.1f})"
        return text

    for cell, each in found.items():
        if cell.watchdog and cell.arm == ADAPTIVE:
            again = spread(each.recovery_p50, each.recovery_p95)
            rows.append((cell.profile, cell.format, *(silent(cell, arm) for arm in arms), again))
    return align(rows, left=2)


def align(rows: Sequence[Sequence[str]], left: int) -> str:
    """Columns two spaces apart; the first `left` of them start, the others end in line."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column < left else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
