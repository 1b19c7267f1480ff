"""A picture for the terminal: how much sound was in hand over time, and when the line was cut. Pure."""

from collections.abc import Sequence
from typing import Final

ROWS: Final = 6
EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
MARK_EVERY_S: Final = 5


def buffer_picture(levels: Sequence[float], cuts: Sequence[tuple[float, float]], column_s: float) -> str:
    """`levels`: seconds of sound in hand, one for each column of `column_s` seconds; `cuts`: from when to when nothing
    came, in seconds.
    """
    top = max(1.0, *levels) if levels else 1.0
    lines = []
    for row in range(ROWS, 0, -1):
        filled = [max(0.0, min(1.0, level / top * ROWS - (row - 1))) for level in levels]
        label = f"{top * row / ROWS:4.1f} s " if row in (ROWS, ROWS // 2) else " " * 7
        lines.append(f"{label}│{''.join(EIGHTHS[round(8 * each)] for each in filled)}".rstrip())
    line = ["─"] * len(levels)
    for begin, end in cuts:
        first, last = int(begin / column_s), round(end / column_s)
        for column in range(first, min(len(line), max(first + 1, last))):
            line[column] = "╳"
    axis = [" "] * (len(levels) + 8)
    for second in range(0, int(len(levels) * column_s) + 1, MARK_EVERY_S):
        at = round(second / column_s)
        axis[at : at + len(f"{second} s")] = f"{second} s"
    return "\n".join(["sound in hand", *lines, f"  line └{''.join(line)}", f"        {''.join(axis)}".rstrip()])
