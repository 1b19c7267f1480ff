"""Turns one cut of the text into the tokens an engine speaks.

Cleaned of markup (`clean`), the segment is read from left to right: at every place the first fitting shape (`shapes`)
is read in the language around it, by our own rules (`read_zh`, `read_en`, `web`) and, for Chinese units, by wetext's
grammar. Pure and deterministic: the same cut and lexicon always give the same tokens.
"""

import re
import unicodedata
from collections.abc import Mapping, Set

from server.text import measures, read_en
from server.text.abbreviations import expand_abbreviation
from server.text.characters import HANZI_CLASS
from server.text.clean import CleanText, clean
from server.text.latin import to_latin
from server.text.lexicon import indexed
from server.text.markup import SIGN, hide
from server.text.readings import read_shape
from server.text.shapes import SHAPE
from server.text.symbols import read_symbol
from server.text.tokens import Boundary, Cut, CutCause, Language, Token

Reading = tuple[str, int, int]
"""Words to say and the part of the cleaned text they stand for."""

_SPOKEN = re.compile(
    rf"(?P<hanzi>[{HANZI_CLASS}])"
    r"|(?P<latin>(?:[A-Za-z]\.)+(?![A-Za-z])|[A-Za-z]+(?:['-][A-Za-z]+)*)"
    r"|(?P<mark>[,、;:.?!…—])"
)
_MARKS = {
    "，": ",",
    "､": "、",
    "；": ";",
    "：": ":",
    "。": ".",
    "｡": ".",
    "．": ".",
    "？": "?",
    "！": "!",
    "‼": "!",
    "⁇": "?",
    "⁈": "?",
    "⁉": "!",
    "‽": "?",
    "،": ",",
    "؛": ";",
    "؟": "?",
    "।": ".",
    "-": "—",
}
_MARK_RANK = {",": 1, "、": 0, ":": 2, ";": 2, "—": 2, "…": 3, ".": 4, "!": 5, "?": 6}
_CONTEXT = 24  # code points on either side that a rule may look at
_MAX_TOLD = 2000  # characters that a lexicon may put into one cut, so that no text becomes hours of speech


def normalise(
    cut: Cut, *, lexicon: Mapping[str, str] | None = None, markup: Set[str] = frozenset()
) -> tuple[Token, ...]:
    """The tokens of a cut; () when it says nothing. Never raises, whatever the text holds.

    `lexicon`: written form -> what to read instead ("CosyVoice": "cozy voice"), before any other rule; the longest
    form wins, and Latin forms match whole words only. It must not change afterwards. Token spans are positions in the
    utterance, within the cut, never going back. `markup`: marks that the engine reads (`Capabilities.markup`); each,
    and each row of them in brackets, is a word as it was written. Tags `<...>` alone say nothing.
    """
    hidden, marks = hide(cut.text, markup)
    source = clean(hidden, SIGN if marks else "")
    tokens = _Tokens(source, cut.start)
    words = indexed(lexicon) if lexicon else None
    told = 0
    at = 0
    text = source.text
    while at < len(text):
        if marks and text[at] == SIGN:
            start = source.starts[at]
            tokens.put(marks[start], start, start + len(marks[start]), written=True)
            at += 1
            continue
        form = words.find(text, at) if words is not None and told < _MAX_TOLD else None
        if form is not None and words is not None:
            instead = words.reading(form)
            told += len(instead)
            for token in _read_entry(instead, cut.language, markup):
                if token.text[0] in "[<":
                    tokens.put(token.text, *source.span(at, at + len(form)), written=False)
                else:
                    tokens.say(token.text, at, at + len(form))
            at += len(form)
            continue
        match = SHAPE.match(text, at)
        if match is None or match.end() == at:
            at += 1
            continue
        if words is not None and match.lastgroup == "hanzi":
            tokens.say(text[at], at, at + 1)  # an entry may begin at each of them
            at += 1
            continue
        for reading in _read(match, cut.language):
            tokens.say(*reading)
        at = match.end()
    return tokens.finish()


def warm_up() -> None:
    """Load what `normalise` loads lazily, so that no listener waits for it."""
    measures.load()
    for language, text in (("zh", "3kg的苹果，你好"), ("en", "Hello, 3 kg of apples")):
        normalise(Cut(0, len(text), text, Boundary.CLAUSE, CutCause.END, "zh" if language == "zh" else "en"))


def _read_entry(reading: str, language: Language, markup: Set[str]) -> tuple[Token, ...]:
    """What a lexicon entry says, itself normalised."""
    return normalise(Cut(0, len(reading), reading, Boundary.WORD, CutCause.END, language), markup=markup)


class _Tokens:
    """Collects tokens, with spans in the utterance; keeps at most one mark between two words."""

    def __init__(self, source: CleanText, offset: int) -> None:
        self._source = source
        self._offset = offset
        self._tokens: list[Token] = []
        self._language: Language = "zh"
        self._row_end = -1  # where a row of written marks ends that may go on

    def say(self, words: str, start: int, end: int) -> None:
        """Add what `words` says; it was written at `[start, end)` of the cleaned text."""
        first, last = self._source.span(start, end)
        for match in _SPOKEN.finditer(words):
            text = match.group()
            if match.lastgroup == "mark":
                self._mark(text, first + self._offset, last + self._offset)
                continue
            self._language = "zh" if match.lastgroup == "hanzi" else "en"
            self._tokens.append(Token(text, first + self._offset, last + self._offset, self._language))

    def put(self, mark: str, start: int, end: int, *, written: bool) -> None:
        """Add a mark of the engine's at `[start, end)` of the segment: it was written there, or a lexicon has it so."""
        start, end, text = start + self._offset, end + self._offset, unicodedata.normalize("NFC", mark)
        language: Language = "en" if text[1].isascii() and text[1].isupper() else self._language
        if self._tokens:
            last = self._tokens[-1]
            if written and self._row_end == start and last.text[0] == text[0] == "[":
                self._tokens.pop()
                start, text, language = last.start, last.text + text, last.language
        self._row_end = end if written else -1
        self._tokens.append(Token(text, start, end, language))

    def _mark(self, text: str, start: int, end: int) -> None:
        if not self._tokens:
            return
        last = self._tokens[-1]
        if last.kind == "mark":
            if _MARK_RANK[text] <= _MARK_RANK[last.text]:
                return
            self._tokens.pop()
        self._tokens.append(Token(text, start, end, self._language, "mark"))

    def finish(self) -> tuple[Token, ...]:
        says = any(token.text[0] != "<" for token in self._tokens if token.kind == "word")
        return tuple(self._tokens) if says else ()


def _read(match: re.Match[str], language: Language) -> list[Reading]:
    shape, text = match.lastgroup or "", match.group()
    start, end = match.span()
    if shape == "space":
        return []
    if shape == "hanzi":
        return [(char, start + i, start + i + 1) for i, char in enumerate(text)]
    if shape == "word":
        return [(to_latin(text), start, end)]
    if shape == "mark":
        return [(_plain_mark(text), start, end)]
    before = match.string[max(0, start - _CONTEXT) : start]
    after = match.string[end : end + _CONTEXT]
    if shape == "month_day":
        return [(words, start + a, start + b) for words, a, b in read_en.month_day(text)]
    if shape == "day_month":
        parts = read_en.day_month(text, article=not re.search(r"\bthe\s+\Z", before, re.IGNORECASE))
        return [(words, start + a, start + b) for words, a, b in parts]
    if shape == "abbreviation":
        return [(words, start + a, start + b) for words, a, b in expand_abbreviation(text, before, after)]
    if shape == "symbol":
        return [(read_symbol(text, before, after, _language_around(match, language)), start, end)]
    told = read_shape(shape, text, before, after, _language_around(match, language))
    return [(told, start, end)]


def _plain_mark(text: str) -> str:
    if text[0] in ".…" and (len(text) > 1 or text[0] == "…"):
        return "…"
    if text[0] in "—-":
        return "—"
    return _MARKS.get(text, text)


_STANDS_APART_BEFORE = re.compile(r"[A-Za-z]\s\Z")
_LETTER_BEFORE = re.compile(rf"([A-Za-z]|[{HANZI_CLASS}])[^A-Za-z{HANZI_CLASS}]{{0,12}}\Z")
_LETTER_AFTER = re.compile(rf"[^A-Za-z{HANZI_CLASS}]{{0,12}}([A-Za-z]|[{HANZI_CLASS}])")


def _language_around(match: re.Match[str], language: Language) -> Language:
    """The cut's language, unless the nearest letters on both sides are of the other one."""
    text, start, end = match.string, match.start(), match.end()
    before = _LETTER_BEFORE.search(text, max(0, start - _CONTEXT), start)
    after = _LETTER_AFTER.match(text, end)
    if before is None or after is None:
        return language
    sides = {"en" if side.group(1).isascii() else "zh" for side in (before, after)}
    if sides == {"en"} and _STANDS_APART_BEFORE.match(text, max(0, start - 2), start):
        return "en" if text[end : end + 1] == " " else language
    return "zh" if sides == {"zh"} else language
