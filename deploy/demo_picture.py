"""A picture for the terminal: how much sound was in hand over time, and when the line was dead. Pure."""

from collections.abc import Sequence
from math import ceil
from typing import Final, TypeAlias

WIDTH: Final = 80  # of a usual terminal
ROWS: Final = 6
EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
MARK_EVERY_S: Final = 5
_MARGIN: Final = 8  # columns before the first one of the picture
_TITLE: Final = "sound in hand (blank: silence)"
_LEGEND: Final = "1, 2 ...: the cuts; ╳: the line is dead"

Outage: TypeAlias = tuple[float, float]  # from when to when, in seconds; equal where a connection was cut at once


def buffer_picture(levels: Sequence[float], outages: Sequence[Outage], column_s: float) -> str:
    """`levels`: seconds of sound in hand, one for each `column_s` seconds. At most `WIDTH` columns wide: where there
    are more levels, the least of neighbours is shown. Each outage is as long as it was, but at least one column.
    """
    merged = max(1, ceil(len(levels) / (WIDTH - _MARGIN)))
    levels = [min(levels[at : at + merged]) for at in range(0, len(levels), merged)]
    column_s *= merged
    top = max(1.0, *levels) if levels else 1.0
    lines = []
    for row in range(ROWS, 0, -1):
        filled = [max(0.0, min(1.0, level / top * ROWS - (row - 1))) for level in levels]
        label = f"{top * row / ROWS:4.1f} s " if row in (ROWS, ROWS // 2) else " " * (_MARGIN - 1)
        lines.append(f"{label}│{''.join(EIGHTHS[round(8 * each)] for each in filled)}".rstrip())
    line = ["─"] * len(levels)
    for number, (begin, end) in enumerate(outages, 1):
        first = int(begin / column_s)
        mark = str(number) + "╳" * (round((end - begin) / column_s) - 1)
        line[first : first + len(mark)] = mark[: max(0, len(line) - first)]
    axis = ""
    for second in range(0, int(len(levels) * column_s) + 1, MARK_EVERY_S * merged):
        mark = f"{second} s"
        if (at := _MARGIN + round(second / column_s)) + len(mark) <= WIDTH:
            axis = f"{axis.ljust(at)}{mark}"
    return "\n".join([_TITLE, *lines, f"  line └{''.join(line)}", axis, f"{'':{_MARGIN}}{_LEGEND}"])
