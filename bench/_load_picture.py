"""The picture of `bench.load`: first audio by the number of sessions, and what memory both ways to send take."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from bench._link_picture import write_png
from bench._load_memory import MEMORY
from bench._load_scenes import Cell
from deploy.local_server import ROOT

TARGET: Final = ROOT / "docs" / "load.svg"
WIDTH: Final = 900
HEIGHT: Final = 330
TOP: Final = 86
BOTTOM: Final = 48
P50: Final = "#2f6fb0"
P95: Final = "#c4622d"
QUIET: Final = "#9aa0a6"
ALONE: Final = "p50 of the engine's own first chunk"
MODES: Final = {"stream": "#2f6fb0", "block": "#c4622d"}
STEPS: Final = (1, 2, 5, 10, 20, 25, 50, 100, 200, 500)


@dataclass(frozen=True, slots=True)
class Axes:
    """A field to draw in: from `left`, `width` wide; values from 0 (x: from `x_from`) to the given ones."""

    left: float
    width: float
    x_to: float
    y_to: float
    x_from: float = 0.0

    def x(self, value: float) -> float:
        """Where it is."""
        return self.left + (value - self.x_from) / (self.x_to - self.x_from) * self.width

    def y(self, value: float) -> float:
        """Where it is."""
        return HEIGHT - BOTTOM - value / self.y_to * (HEIGHT - BOTTOM - TOP)

    def grid(self, unit_x: str, ticks: Iterable[float], unit_y: str) -> Iterable[str]:
        """Lines and numbers."""
        step = next((step for step in STEPS if self.y_to / step <= 6), STEPS[-1])
        for value in range(0, int(self.y_to) + 1, step):
            y = self.y(value)
            yield f'<path d="M{self.left:.1f} {y:.1f}h{self.width:.1f}" stroke="#e4e4e4"/>'
            yield f'<text x="{self.left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{value}</text>'
        yield f'<text x="{self.left - 6:.1f}" y="{TOP - 10}" text-anchor="end" fill="#555">{escape(unit_y)}</text>'
        for tick in ticks:
            x = self.x(tick)
            yield (f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle" fill="#555">{tick:g}</text>')
        middle = self.left + self.width / 2
        yield f'<text x="{middle:.1f}" y="{HEIGHT - 10}" text-anchor="middle" fill="#555">{escape(unit_x)}</text>'

    def line(self, points: Sequence[tuple[float, float]], colour: str, more: str = "") -> str:
        """A line through points."""
        path = "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)
        return f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2.5" {more}/>'


def legend(left: float, entries: Mapping[str, str], dashed: Iterable[str] = ()) -> Iterable[str]:
    """A line of each colour and its name."""
    for name, colour in entries.items():
        dash = ' stroke-dasharray="5 4"' if name in dashed else ""
        yield f'<path d="M{left:.0f} 50h18" stroke="{colour}" stroke-width="2.5"{dash}/>'
        yield f'<text x="{left + 23:.0f}" y="54" fill="#222">{escape(name)}</text>'
        left += 40 + 6.4 * len(name)


def first_audio(cells: Sequence[Cell], left: float, width: float) -> Iterable[str]:
    """First audio by sessions."""
    axes = Axes(left, width, cells[-1].sessions, 1.08 * max(cell.p95_ms for cell in cells))
    yield f'<text x="{left - 40:.0f}" y="28" font-size="15" font-weight="bold" fill="#222">First audio</text>'
    names = {"p95": P95, "p50": P50, ALONE: QUIET}
    yield from legend(left - 40, names, dashed=(ALONE,))
    yield from axes.grid("sessions", [cell.sessions for cell in cells], "ms")
    yield axes.line([(cell.sessions, cell.engine_ms) for cell in cells], QUIET, 'stroke-dasharray="5 4"')
    for values, colour in (([c.p50_ms for c in cells], P50), ([c.p95_ms for c in cells], P95)):
        points = list(zip([cell.sessions for cell in cells], values, strict=True))
        yield axes.line(points, colour)
        for x, y in points:
            yield f'<circle cx="{axes.x(x):.1f}" cy="{axes.y(y):.1f}" r="3.5" fill="{colour}"/>'


def memory(kept: Mapping[str, object], left: float, width: float) -> Iterable[str]:
    """Memory of each mode over time."""
    curves, every_s = kept["curves"], kept["every_s"]
    assert isinstance(curves, dict)
    assert isinstance(every_s, float)
    axes = Axes(
        left, width, every_s * max(len(curve) for curve in curves.values()), 1.1 * max(max(c) for c in curves.values())
    )
    title = f"Memory of the server, {kept['streams']} streams"
    yield f'<text x="{left - 40:.0f}" y="28" font-size="15" font-weight="bold" fill="#222">{title}</text>'
    yield from legend(left - 40, {name: MODES.get(name, QUIET) for name in curves})
    yield from axes.grid("seconds", range(0, int(axes.x_to) + 1, 10), "MiB")
    for name, curve in curves.items():
        yield axes.line([(number * every_s, value) for number, value in enumerate(curve)], MODES.get(name, QUIET))


def picture(cells: Sequence[Cell], kept: Mapping[str, object] | None) -> str:
    """The SVG; without what was not measured."""
    half = WIDTH / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        "<title>First audio by the number of sessions, and memory of both modes</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *first_audio(cells, 56, half - 90),
        *(memory(kept, half + 56, half - 90) if kept else ()),
    ]
    return "\n".join([*parts, "</svg>\n"])


def draw(cells: Path) -> list[str]:
    """Write the files from what was measured last; their names."""
    known = [Cell(**cell) for cell in json.loads(cells.read_text(encoding="utf-8"))]
    kept = json.loads(MEMORY.read_text(encoding="utf-8")) if MEMORY.exists() else None
    TARGET.write_text(picture(known, kept), encoding="utf-8")
    png = write_png(TARGET)
    return [path.name for path in (TARGET, png) if path is not None]
