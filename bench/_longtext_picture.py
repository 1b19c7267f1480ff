"""The picture of `bench.longtext`: the memory of both ends while texts of very different length are spoken."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

from bench._link_picture import write_png
from bench._longtext_memory import read_curves
from bench._longtext_run import Sample
from deploy.local_server import ROOT

TARGET: Final = ROOT / "docs" / "longtext.svg"
WIDTH: Final = 900
HEIGHT: Final = 320
TOP: Final = 70
BOTTOM: Final = 46
LEFT: Final = 56
GAP: Final = 66  # between two fields, with the numbers of the right one
COLOURS: Final = ("#9aa0a6", "#2f6fb0", "#c4622d")  # of the sizes, rising
GRID_MIB: Final = (10, 20, 25, 50, 100, 200, 500)
HEADROOM: Final = 1.15


def field(name: str, curves: Mapping[int, Sequence[Sample]], left: float, width: float) -> Iterable[str]:
    """One kind: memory by how much of the text is spoken, a line of each size for the server and for the client."""
    most = HEADROOM * max(sample.server_mb for curve in curves.values() for sample in curve)
    floor, height = HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP
    step = next((step for step in GRID_MIB if most / step <= 6), GRID_MIB[-1])
    yield f'<text x="{left - 34:.0f}" y="26" font-size="15" font-weight="bold" fill="#222">{escape(name)}</text>'
    for value in range(0, int(most) + 1, step):
        y = floor - value / most * height
        yield f'<path d="M{left:.1f} {y:.1f}h{width:.1f}" stroke="#e4e4e4"/>'
        yield f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{value}</text>'
    yield f'<text x="{left - 6:.1f}" y="{TOP - 8}" text-anchor="end" fill="#555">MiB</text>'
    for percent in (0, 50, 100):
        x = left + percent / 100 * width
        yield f'<text x="{x:.1f}" y="{floor + 16}" text-anchor="middle" fill="#555">{percent} %</text>'
    middle = left + width / 2
    yield f'<text x="{middle:.1f}" y="{HEIGHT - 10}" text-anchor="middle" fill="#555">of the time it takes</text>'
    for number, (characters, curve) in enumerate(sorted(curves.items())):
        colour = COLOURS[number % len(COLOURS)]
        for values in ([each.server_mb for each in curve], [each.client_mb for each in curve]):
            points = [
                f"{left + place / max(1, len(values) - 1) * width:.1f} {floor - value / most * height:.1f}"
                for place, value in enumerate(values)
            ]
            yield f'<path d="M{"L".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>'
        at = left - 34 + number * (width + 40) / 3
        yield f'<path d="M{at:.0f} 44h14" stroke="{colour}" stroke-width="3"/>'
        yield f'<text x="{at + 18:.0f}" y="48" fill="#222">{round_thousands(characters)}</text>'
    for who, peak in (
        ("server", max(sample.server_mb for curve in curves.values() for sample in curve)),
        ("client", max(sample.client_mb for curve in curves.values() for sample in curve)),
    ):
        y = floor - peak / most * height - 7
        yield f'<text x="{left + width - 4:.1f}" y="{y:.1f}" text-anchor="end" fill="#222">{who}</text>'


def round_thousands(characters: int) -> str:
    """A size in two digits, with commas: texts end with a sentence, not at a round number."""
    unit = 10 ** max(0, len(str(characters)) - 2)
    return f"{round(characters / unit) * unit:,}"


def picture(curves: Mapping[str, Mapping[int, Sequence[Sample]]]) -> str:
    """The SVG."""
    width = (WIDTH - LEFT - 24 - GAP * (len(curves) - 1)) / len(curves)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        "<title>Memory of server and client while texts of different length are spoken</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for number, (name, by) in enumerate(curves.items()):
        parts += field(f"{name}: characters", by, LEFT + number * (width + GAP), width)
    return "\n".join([*parts, "</svg>\n"])


def draw() -> list[str]:
    """Write the files from what was measured last; their names."""
    TARGET.write_text(picture(read_curves()), encoding="utf-8")
    png = write_png(TARGET)
    return [path.name for path in (TARGET, png) if path is not None]
