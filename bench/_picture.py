"""The picture in README.md: when text was written, when its sound came, and when it is heard.

`python -m bench._picture` writes docs/live.svg again.
"""

import sys
from dataclasses import dataclass
from html import escape
from typing import Final

from bench._common import run, server_process
from bench._session import Heard, open_session
from bench.live_text import CHARACTERS_PER_SECOND, RATE, WARM_UP, speak_live
from deploy.local_server import ROOT
from protocol import server_messages as s

TEXT: Final = (
    "Sure! The city lies where two great rivers meet, and its history goes back more than two thousand years. "
    "春天的时候，河边的樱花全部开放。"
)
TARGET: Final = ROOT / "docs" / "live.svg"
WIDTH: Final = 900
HEIGHT: Final = 250
LEFT: Final = 86
RIGHT: Final = 20
ROWS: Final = {"written": 48, "arrives": 118, "heard": 172}
BAR: Final = 26
COLOURS: Final = ("#2f6fb0", "#c4622d")


@dataclass(frozen=True, slots=True)
class Piece:
    """One segment; seconds since the first character was written."""

    text: str
    written: tuple[float, float]
    arrives: tuple[float, float]
    heard: tuple[float, float]


def pieces(heard: Heard, sent: list[float]) -> list[Piece]:
    """The segments of an utterance, played from its first frame on."""
    zero = sent[0]
    ends = {event.segment: event.samples for event in heard.events if isinstance(event, s.SegmentEnd)}
    found = []
    for begin in (event for event in heard.events if isinstance(event, s.SegmentBegin)):
        first, end = begin.first_sample, begin.first_sample + ends[begin.segment]
        arrived = [at for at, frame in heard.frames if first <= frame.first_sample < end and frame.count]
        if arrived:
            playing = heard.first_audio - zero
            found.append(
                Piece(
                    TEXT[begin.start : begin.end].strip(),
                    (sent[begin.start] - zero, sent[begin.end - 1] - zero + 1 / CHARACTERS_PER_SECOND),
                    (arrived[0] - zero, arrived[-1] - zero),
                    (playing + first / RATE, playing + end / RATE),
                )
            )
    return found


def svg(found: list[Piece], first_audio_ms: float) -> str:
    """The picture."""
    seconds = max(piece.heard[1] for piece in found)
    scale = (WIDTH - LEFT - RIGHT) / seconds

    def x(at: float) -> float:
        return round(LEFT + at * scale, 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        "<title>Text written at 30 characters a second, and its speech</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" fill="#222">First sound {first_audio_ms:.0f} ms after “{escape(found[0].text)}” was '
        f"complete; {seconds:.1f} s of speech without a gap</text>",
    ]
    for second in range(int(seconds) + 1):
        parts.append(f'<path d="M{x(second)} 34V{HEIGHT - 34}" stroke="#ddd"/>')
        parts.append(f'<text x="{x(second)}" y="{HEIGHT - 16}" text-anchor="middle" fill="#555">{second} s</text>')
    for name, top in ROWS.items():
        parts.append(f'<text x="{LEFT - 8}" y="{top + BAR / 2 + 4}" text-anchor="end" fill="#222">{name}</text>')
    for number, piece in enumerate(found):
        colour = COLOURS[number % 2]
        for name, span in (("written", piece.written), ("arrives", piece.arrives), ("heard", piece.heard)):
            begin, width = x(span[0]), max(3.0, (span[1] - span[0]) * scale)
            parts.append(
                f'<rect x="{begin}" y="{ROWS[name]}" width="{width:.1f}" height="{BAR}" fill="{colour}" rx="2">'
                f"<title>{escape(piece.text)}</title></rect>"
            )
        middle = x(sum(piece.heard) / 2)
        room = int((piece.heard[1] - piece.heard[0]) * scale / (12 if not piece.text.isascii() else 6.2))
        label = piece.text if len(piece.text) <= room else piece.text[: max(1, room - 1)] + "…"
        parts.append(
            f'<text x="{middle}" y="{ROWS["heard"] + BAR / 2 + 4}" text-anchor="middle" fill="#fff" font-size="11">'
            f"{escape(label)}</text>"
        )
    return "\n".join([*parts, "</svg>\n"])


async def draw(url: str) -> str:
    """Speak the text once; the picture of it."""
    async with open_session(url) as session:
        for text in WARM_UP:
            await speak_live(session, text)
        heard, sent = await speak_live(session, TEXT)
    found = pieces(heard, sent)
    certain = sent[len("Sure!") - 1]
    return svg(found, 1000 * (heard.first_audio - certain))


def main() -> int:
    """Writes the file."""
    with server_process("--engine", "embedded") as server:
        TARGET.write_text(run(draw(server.url)), encoding="utf-8")
    print(f"wrote {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
