"""Words with their times to subtitles, WebVTT or SubRip. Pure.

A cue never crosses a segment that ends a sentence, holds at most two lines, lasts at most seven seconds and begins anew
after a pause. Text between words (punctuation) belongs to the word before it.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

MAX_LINE_UNITS: Final = (
    42  # columns; a Hanzi takes two, so 21 of them (common subtitle guides: 37-42 Latin, 16-21 Hanzi)
)
MAX_LINES: Final = 2
MAX_CUE_S: Final = 7.0
PAUSE_S: Final = 0.6  # a longer silence between two words begins a new cue
MIN_CUE_S: Final = 1.0  # shorter cues stay until the next begins, at most this long
_SPACE: Final = re.compile(r"\s+")
_SENTENCE_ENDS: Final = "。？！?!….\n"
_CLAUSE_ENDS: Final = "，、；：,;:—"
_OPENING: Final = "“‘(（【《「『[¿¡"
_CLOSING: Final = "\"'”’)）】》」』]"


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word as written, with what follows up to the next word, and when it sounds (seconds into the utterance)."""

    text: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Cue:
    """One subtitle."""

    start_s: float
    end_s: float
    lines: tuple[tuple[SpokenWord, ...], ...]


def width(text: str) -> int:
    """Columns a text takes: wide characters count twice."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text if not unicodedata.combining(c))


def make_cues(words: Iterable[SpokenWord]) -> list[Cue]:
    """Groups words into cues."""
    groups: list[list[SpokenWord]] = []
    for word in words:
        if not word.text.strip():
            continue
        if not groups or _breaks(groups[-1], word):
            groups.append([])
        groups[-1].append(word)
    cues: list[Cue] = []
    for index, group in enumerate(groups):
        until = groups[index + 1][0].start_s if index + 1 < len(groups) else float("inf")
        end = max(group[-1].end_s, min(until, group[0].start_s + MIN_CUE_S))
        cues.append(Cue(group[0].start_s, end, _lines(group)))
    return cues


def to_vtt(cues: Iterable[Cue]) -> str:
    """WebVTT with a time stamp before each word, so that players can highlight it."""
    blocks = ["WEBVTT\n"]
    blocks += [f"{_clock(cue.start_s, '.')} --> {_clock(cue.end_s, '.')}\n{_vtt_lines(cue)}\n" for cue in cues]
    return "\n".join(blocks)


def to_srt(cues: Iterable[Cue]) -> str:
    """SubRip."""
    blocks: list[str] = []
    for number, cue in enumerate(cues, 1):
        lines = "\n".join(_text(line) for line in cue.lines)
        blocks.append(f"{number}\n{_clock(cue.start_s, ',')} --> {_clock(cue.end_s, ',')}\n{lines}\n")
    return "\n".join(blocks)


def _breaks(group: Sequence[SpokenWord], word: SpokenWord) -> bool:
    """Whether `word` begins a new cue."""
    last = group[-1]
    if word.start_s - last.end_s > PAUSE_S or word.end_s - group[0].start_s > MAX_CUE_S:
        return True
    ending = last.text.rstrip().rstrip(_CLOSING)[-1:]
    used = width(_text(group))
    if "\n" in last.text or (ending and ending in _SENTENCE_ENDS):
        return True
    if ending and ending in _CLAUSE_ENDS and used > MAX_LINE_UNITS:
        return True
    return len(_lines([*group, word])) > MAX_LINES


def _lines(words: Sequence[SpokenWord]) -> tuple[tuple[SpokenWord, ...], ...]:
    """Lines of at most MAX_LINE_UNITS columns; two lines are made about equally long."""
    if width(_text(words)) <= MAX_LINE_UNITS:
        return (tuple(words),)
    best: tuple[int, int] | None = None
    for cut in range(1, len(words)):
        first, second = width(_text(words[:cut])), width(_text(words[cut:]))
        if max(first, second) <= MAX_LINE_UNITS:
            clause = words[cut - 1].text.rstrip()[-1:] in _CLAUSE_ENDS
            cost = abs(first - second) - (MAX_LINE_UNITS // 2 if clause else 0)
            if best is None or cost < best[0]:
                best = (cost, cut)
    if best is not None:
        return (tuple(words[: best[1]]), tuple(words[best[1] :]))
    lines: list[list[SpokenWord]] = [[]]
    for word in words:
        if lines[-1] and width(_text([*lines[-1], word])) > MAX_LINE_UNITS:
            lines.append([])
        lines[-1].append(word)
    return tuple(map(tuple, lines))


def _text(words: Iterable[SpokenWord]) -> str:
    return " ".join("".join(word.text for word in words).split())


def _vtt_lines(cue: Cue) -> str:
    last = _clock(cue.start_s, ".")  # stamps must grow, and lie inside the cue
    lines: list[str] = []
    for line in cue.lines:
        parts: list[str] = []
        for word in line:
            stamp = _clock(word.start_s, ".")
            parts += (f"<{stamp}>" if stamp > last else "", _escape(_SPACE.sub(" ", word.text)))
            last = max(last, stamp)
        lines.append("".join(parts).strip())
    return "\n".join(lines)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _clock(seconds: float, separator: str) -> str:
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{separator}{ms % 1000:03}"


def spoken_words(text: str, words: Sequence[tuple[int, int, int, int]], sample_rate: int) -> Iterator[SpokenWord]:
    """From the utterance's text and words (start, end, first_sample, end_sample) in reading order.

    Several words may share one source span ("12.5%" is spoken as seven): they become one, from the first to the last.
    """
    spans: list[list[int]] = []
    for start, end, first, last in words:
        if spans and start < spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], end)
            spans[-1][3] = max(spans[-1][3], last)
        else:
            spans.append([start, end, first, last])
    begin = 0
    for index, (_, end, first, last) in enumerate(spans):
        until = _opening(text, end, spans[index + 1][0]) if index + 1 < len(spans) else len(text)
        yield SpokenWord(text[begin:until], first / sample_rate, last / sample_rate)
        begin = until


def _opening(text: str, end: int, start: int) -> int:
    """Where the text of the word at `start` begins: opening quotes and brackets before it are its own."""
    at = start
    while at > end and (text[at - 1] in _OPENING or (text[at - 1] in "\"'" and text[at - 2 : at - 1].isspace())):
        at -= 1
    return at
