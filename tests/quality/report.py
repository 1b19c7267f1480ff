"""What the suite found, collected while it runs and shown at the end, whether or not a check failed."""

from collections.abc import Iterable, Sequence

from tests.support.findings import LINES


def say(line: str = "") -> None:
    """One line."""
    LINES.append(line)


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Rows under their columns."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(name), *(len(row[i]) for row in cells)) if cells else len(name) for i, name in enumerate(columns)]
    say()
    say(title)
    for row in [list(columns), *cells]:
        say("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def distribution(values: Sequence[float]) -> str:
    """Median and spread of numbers, in words."""
    ordered = sorted(values)
    at = [ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))] for q in (0.0, 0.1, 0.5, 0.9, 1.0)]
    low, tenth, median, ninetieth, high = (f"{value:.0f}" for value in at)
    return f"n={len(ordered)} min {low}, p10 {tenth}, median {median}, p90 {ninetieth}, max {high}"
