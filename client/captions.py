"""Words with their times to subtitles, WebVTT or SubRip. Pure.

A cue never crosses a segment that ends a sentence, holds at most two lines, lasts at most seven seconds and begins anew
after a pause. Text between words (punctuation) belongs to the word before it.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

Span: TypeAlias = tuple[int, int, int, int]  # of a word: text from and to, first sample, end sample
VTT_EMPTY: Final = "WEBVTT\n"
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


class CueMaker:
    """Groups words into cues, as they come. `group`: the words of the cue that may still grow."""

    def __init__(self, group: Iterable[SpokenWord] = ()) -> None:
        self.group = list(group)

    def add(self, word: SpokenWord) -> Cue | None:
        """The cue that is complete now."""
        if not word.text.strip():
            return None
        cue = None
        if self.group and _breaks(self.group, word):
            cue = self._close(word.start_s)
        self.group.append(word)
        return cue

    def finish(self) -> Cue | None:
        """The last one."""
        return self._close(float("inf")) if self.group else None

    def _close(self, until: float) -> Cue:
        group, self.group = self.group, []
        end = max(group[-1].end_s, min(until, group[0].start_s + MIN_CUE_S))
        return Cue(group[0].start_s, end, _lines(group))


def make_cues(words: Iterable[SpokenWord]) -> list[Cue]:
    """Groups words into cues."""
    maker = CueMaker()
    cues = [maker.add(word) for word in words] + [maker.finish()]
    return [cue for cue in cues if cue is not None]


def vtt_block(cue: Cue, number: int) -> str:
    """The cue in WebVTT with a time stamp before each word, so that players can highlight it. Cues count from 1."""
    head = "WEBVTT\n\n" if number == 1 else "\n"
    return f"{head}{_clock(cue.start_s, '.')} --> {_clock(cue.end_s, '.')}\n{_vtt_lines(cue)}\n"


def srt_block(cue: Cue, number: int) -> str:
    """The cue in SubRip."""
    lines = "\n".join(_text(line) for line in cue.lines)
    head = "" if number == 1 else "\n"
    return f"{head}{number}\n{_clock(cue.start_s, ',')} --> {_clock(cue.end_s, ',')}\n{lines}\n"


def to_vtt(cues: Iterable[Cue]) -> str:
    """A WebVTT file."""
    return "".join(vtt_block(cue, number) for number, cue in enumerate(cues, 1)) or VTT_EMPTY


def to_srt(cues: Iterable[Cue]) -> str:
    """A SubRip file."""
    return "".join(srt_block(cue, number) for number, cue in enumerate(cues, 1))


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


class WordReader:
    """Gives words their text, as both come: a word is known once the next one is.

    Several words may share one source span ("12.5%" is spoken as seven): they become one, from the first to the last.
    `begin`: from where on text is needed, in code points; `span`: the word that waits (start, end, first and end
    sample).
    """

    def __init__(self, sample_rate: int, begin: int = 0, span: Span | None = None) -> None:
        self.begin = begin
        self.span = span
        self._rate = sample_rate
        self._text = ""  # from `_base` on
        self._base = begin

    def write(self, text: str) -> None:
        """More text."""
        spent = self.begin - self._base
        if spent >= len(text):
            self._text, self._base = self._text[spent:], self.begin
        self._text += text

    def word(self, start: int, end: int, first: int, last: int) -> SpokenWord | None:
        """The next word in reading order, whose text was written. Gives the one before."""
        waiting = self.span
        if waiting is not None and start < waiting[1]:
            self.span = (waiting[0], max(waiting[1], end), waiting[2], max(waiting[3], last))
            return None
        self.span = (start, end, first, last)
        if waiting is None:
            return None
        return self._spoken(waiting, self._base + _opening(self._text, waiting[1] - self._base, start - self._base))

    def finish(self) -> SpokenWord | None:
        """The last word, with all the text that is left."""
        waiting, self.span = self.span, None
        return None if waiting is None else self._spoken(waiting, self._base + len(self._text))

    def _spoken(self, span: Span, until: int) -> SpokenWord:
        text = self._text[self.begin - self._base : until - self._base]
        self.begin = until
        return SpokenWord(text, span[2] / self._rate, span[3] / self._rate)


def spoken_words(text: str, words: Iterable[Span], sample_rate: int) -> Iterator[SpokenWord]:
    """From the utterance's text and words in reading order."""
    reader = WordReader(sample_rate)
    reader.write(text)
    for word in words:
        if (spoken := reader.word(*word)) is not None:
            yield spoken
    if (spoken := reader.finish()) is not None:
        yield spoken


def _opening(text: str, end: int, start: int) -> int:
    """Where the text of the word at `start` begins: opening quotes and brackets before it are its own."""
    at = start
    while at > end and (text[at - 1] in _OPENING or (text[at - 1] in "\"'" and text[at - 2 : at - 1].isspace())):
        at -= 1
    return at
