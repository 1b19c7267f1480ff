"""The picture of `bench.link`: for how long each way to send left the listener in silence, link by link."""

from collections.abc import Mapping
from html import escape
from typing import Final

from deploy.local_server import ROOT

TARGET: Final = ROOT / "docs" / "link.svg"
WIDTH: Final = 900
LEFT: Final = 150
RIGHT: Final = 60
TOP: Final = 64
BAR: Final = 7
GAP: Final = 10
LONGEST_S: Final = 20.0  # longer bars are cut; their number says how long they are
COLOURS: Final = {"chunk, paced": "#b9bec6", "chunk, unpaced": "#7d94b5", "block": "#d9a441", "adaptive": "#c4422d"}


def picture(silent_s: Mapping[tuple[str, str, str], float]) -> str:
    """`silent_s` by (link, format, arm), means over the seeds. One group of bars for each link and format."""
    groups = list(dict.fromkeys((link, audio_format) for link, audio_format, _ in silent_s))
    longest = min(LONGEST_S, max((value for value in silent_s.values() if value == value), default=1.0) or 1.0)
    scale = (WIDTH - LEFT - RIGHT) / longest
    step = len(COLOURS) * BAR + GAP
    height = TOP + len(groups) * step + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        'font-size="11">',
        "<title>Silence in the middle of speech, by link and way to send</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="20" font-size="13" fill="#222">Seconds of silence in the middle of speech (mean)</text>',
    ]
    at = LEFT
    for arm, colour in COLOURS.items():
        parts.append(f'<rect x="{at}" y="32" width="12" height="12" fill="{colour}"/>')
        parts.append(f'<text x="{at + 17}" y="42" fill="#222">{escape(arm)}</text>')
        at += 130
    for number, (link, audio_format) in enumerate(groups):
        top = TOP + number * step
        label = escape(f"{link}, {audio_format}")
        middle = top + (step - GAP) / 2 + 4
        parts.append(f'<text x="{LEFT - 8}" y="{middle:.0f}" text-anchor="end" fill="#222">{label}</text>')
        for row, (arm, colour) in enumerate(COLOURS.items()):
            value = silent_s.get((link, audio_format, arm), 0.0)
            y, width = top + row * BAR, max(1.0, min(value, longest) * scale)
            parts.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 1}" fill="{colour}"/>')
            if value >= 0.05:
                parts.append(
                    f'<text x="{LEFT + width + 4:.1f}" y="{y + BAR - 1}" font-size="8" fill="#555">{value:.1f}</text>'
                )
    return "\n".join([*parts, "</svg>\n"])
