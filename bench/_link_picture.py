"""The picture of `bench.link`: how long each way to send leaves a listener in silence, and what the watchdog is worth.

It is drawn as SVG with nothing but text, so that it needs no package, and as PNG where a browser or rsvg-convert is
there to do that.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from deploy.local_server import ROOT

TARGET: Final = ROOT / "docs" / "link.svg"
WIDTH: Final = 900
LEFT: Final = 130
RIGHT: Final = 70
BAR: Final = 11
GAP: Final = 12
LONGEST_S: Final = 12.0  # longer bars are cut; their number says how long they are
AUDIBLE_S: Final = 0.05  # less is no silence to a listener
DENSITY: Final = 2  # pixels of the PNG for each of the SVG
PATIENCE_S: Final = 60
ARMS: Final = {"chunk, paced": "#b9bec6", "chunk, unpaced": "#7d94b5", "block": "#d9a441", "adaptive": "#c4422d"}
WATCHDOG: Final = {"without the watchdog": "#e0aaa1", "with it": "#c4422d"}
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True, slots=True)
class Cell:
    """What the picture shows of a cell; NaN: there was nothing to measure."""

    link: str
    format: str
    arm: str
    watchdog: bool
    silent_s: float
    recovery_s: float


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars in seconds: a group for each row, and in it one for each colour (of the same order)."""

    title: str
    colours: Mapping[str, str]
    rows: Mapping[str, Sequence[float]]
    remark: str = ""

    @property
    def height(self) -> int:
        """Of all of it."""
        return 76 + len(self.rows) * (len(self.colours) * BAR + GAP) + 24

    def draw(self, top: int) -> Iterable[str]:
        """Its parts, from this line down."""
        yield f'<text x="16" y="{top + 22}" font-size="15" font-weight="bold" fill="#222">{escape(self.title)}</text>'
        yield f'<text x="16" y="{top + 40}" fill="#555">{escape(self.remark)}</text>'
        at = LEFT
        for name, colour in self.colours.items():
            yield f'<rect x="{at}" y="{top + 52}" width="12" height="12" fill="{colour}"/>'
            yield f'<text x="{at + 17}" y="{top + 62}" fill="#222">{escape(name)}</text>'
            at += 50 + 7 * len(name)
        values = [value for row in self.rows.values() for value in row if value == value]
        longest = min(LONGEST_S, max(values, default=1.0) or 1.0)
        scale = (WIDTH - LEFT - RIGHT) / longest
        first, last = top + 76, top + self.height - 24
        for second in range(0, int(longest) + 1, 1 if longest < 6 else 2):
            x = LEFT + second * scale
            yield f'<path d="M{x:.1f} {first - 4}V{last}" stroke="#e4e4e4"/>'
            yield f'<text x="{x:.1f}" y="{last + 13}" text-anchor="middle" fill="#555">{second} s</text>'
        for number, (name, row) in enumerate(self.rows.items()):
            y = first + number * (len(self.colours) * BAR + GAP)
            middle = y + len(self.colours) * BAR / 2 + 4
            yield f'<text x="{LEFT - 8}" y="{middle:.0f}" text-anchor="end" fill="#222">{escape(name)}</text>'
            for value, colour in zip(row, self.colours.values(), strict=True):
                yield from _bar(value, y, colour, scale, longest)
                y += BAR


def _bar(value: float, y: float, colour: str, scale: float, longest: float) -> Iterable[str]:
    if value != value:
        return
    width = max(1.5, min(value, longest) * scale)
    yield f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 1}" fill="{colour}"/>'
    text = f"{value:.1f}" if value >= AUDIBLE_S else "0"
    if value > longest:  # the bar is torn off
        strokes = "".join(f"M{LEFT + width - back:.1f} {y + BAR}l5 -{BAR + 1}" for back in (14, 9))
        yield f'<path d="{strokes}" stroke="#fff" stroke-width="2"/>'
    yield f'<text x="{LEFT + width + 4:.1f}" y="{y + BAR - 2}" font-size="10" fill="#444">{text}</text>'


def picture(cells: Iterable[Cell]) -> str:
    """The SVG."""
    known = list(cells)
    charts = [silence(known), recovery(known)]
    height = sum(chart.height for chart in charts)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif" font-size="12">',
        "<title>Silence in the middle of speech on bad links, by way to send</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    top = 0
    for chart in charts:
        parts += chart.draw(top)
        top += chart.height
    return "\n".join([*parts, "</svg>\n"])


def silence(cells: Sequence[Cell]) -> Chart:
    """One group for each link on which anybody heard one."""
    worst: dict[str, list[float]] = {}
    for cell in cells:
        if cell.watchdog and cell.arm in ARMS:
            row = worst.setdefault(cell.link, [0.0] * len(ARMS))
            place = list(ARMS).index(cell.arm)
            row[place] = max(row[place], cell.silent_s)
    quiet = [link for link, row in worst.items() if max(row) < AUDIBLE_S]
    remark = "Mean of all runs, with the watchdog; the worse of PCM and Opus."
    if quiet:
        remark += f" None, whoever sends: {'; '.join(quiet)}."
    rows = {link: row for link, row in worst.items() if link not in quiet}
    return Chart("Silence in the middle of speech", ARMS, rows, remark)


def recovery(cells: Sequence[Cell]) -> Chart:
    """One group for each link where a silence was heard and ended."""
    rows: dict[str, list[float]] = {}
    for cell in cells:
        if cell.arm == "adaptive" and cell.recovery_s == cell.recovery_s:
            row = rows.setdefault(cell.link, [float("nan")] * len(WATCHDOG))
            row[cell.watchdog] = max(
                cell.recovery_s, row[cell.watchdog] if row[cell.watchdog] == row[cell.watchdog] else 0
            )
    remark = "Median, adaptive; the worse of PCM and Opus. Links on which every trouble went unheard are left out."
    return Chart("From the link's return to sound, where a trouble was heard", WATCHDOG, rows, remark)


def write_png(source: Path) -> Path | None:
    """The same as PNG beside it; None where nothing here can do that."""
    target = source.with_suffix(".png")
    head = source.read_text(encoding="utf-8").split(">", 1)[0]
    height = int(head.split('height="')[1].split('"')[0])
    if tool := shutil.which("rsvg-convert"):
        command = [tool, f"--zoom={DENSITY}", f"--output={target}", str(source)]
    elif tool := next(filter(None, map(shutil.which, BROWSERS)), None):
        command = [
            tool, "--headless", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars",
            f"--force-device-scale-factor={DENSITY}", f"--window-size={WIDTH},{height}", f"--screenshot={target}",
            *(["--no-sandbox"] if os.geteuid() == 0 else []), source.as_uri(),
        ]  # fmt: skip
    else:
        return None
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False)
    return target if done.returncode == 0 else None
