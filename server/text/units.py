"""Cuts running text into units that must stay whole: a Hanzi, a word, a number, a URL, a run of dots, a mark.

`read_unit` looks only at `text[:end]`. When the characters after `end` could still change the answer, and more of them
may come (`final` false), it returns None instead of guessing; so its answers never depend on how much has arrived.
"""

import re
from dataclasses import dataclass
from enum import IntEnum

from server.text.characters import (
    CLAUSE_MARKS,
    HANZI_CLASS,
    NEWLINES,
    SENTENCE_MARKS,
    SYLLABLE_CLASS,
    WEAK_MARKS,
    WORD_CHAR,
)

MAX_RUN = 64  # a longer run without any break ("aaaa...") is cut into pieces of this many code points
MAX_DIGITS = 32  # the same for a run of digits
MAX_URL = 1024
MAX_TAG = 120
_MAX_HOST = 56


class Kind(IntEnum):
    """What a unit is."""

    SPACE = 0
    HANZI = 1
    WORD = 2
    NUMBER = 3
    URL = 4
    SYMBOL = 5
    WEAK_MARK = 6
    CLAUSE_MARK = 7
    SENTENCE_MARK = 8
    FULL_STOP = 9  # an ASCII "." after a word: sentence end or abbreviation
    NEWLINE = 10
    PIECE = 11  # of a run cut at MAX_RUN; more of the same follows


@dataclass(frozen=True, slots=True)
class Unit:
    """`text[start:end]`."""

    kind: Kind
    start: int
    end: int


_SPACES = re.compile(r"[^\S\n\r\x0b\x0c\x85\u2028\u2029]+")
_WORD = re.compile(
    rf"{WORD_CHAR}+(?:"
    rf"&\#?[a-zA-Z0-9]{{2,8}};"  # an HTML entity inside: AT&amp;T
    rf"|(?<=\d)[,，:：.．](?=\d){WORD_CHAR}+"
    rf"|[.'’@&/=+~#\-‑]{WORD_CHAR}+"
    rf")*(?:\+\+?|\#|[%％‰°℃℉][CF]?)?"
)
_JOINERS = frozenset(".'’@&/=+~#-‑%％‰°")
_DIGIT_JOINERS = frozenset(",，:：．")
_URL_CHAR = rf"[^\s<>\"“”‘’「」『』《》（）【】，。！？；：、`|{HANZI_CLASS}{SYLLABLE_CLASS}]"
_SCHEME = re.compile(r"(?:https?|ftp|wss?|file)(?=:)|www(?=\.)", re.IGNORECASE)
_URL = re.compile(rf"(?:(?:https?|ftp|wss?|file)://|www\.){_URL_CHAR}+", re.IGNORECASE)
_HOST_PATH = re.compile(rf"(?=[a-zA-Z])(?:[a-zA-Z0-9-]+\.)+[a-zA-Z]{{2,}}(?::\d+)?/{_URL_CHAR}*")
_URL_TAIL = re.compile(r"[.,;:!?'\")\]}*_~]+\Z")
_TAG = re.compile(rf"</?[a-zA-Z!][^<>\n{HANZI_CLASS}]{{0,{MAX_TAG}}}>")
_OPEN_TAG = re.compile(rf"</?(?:[a-zA-Z!][^<>\n{HANZI_CLASS}]{{0,{MAX_TAG}}})?\Z")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,8});")
_OPEN_ENTITY = re.compile(r"&#?\w{0,9}\Z")
_RUNS = {char: re.compile(f"{re.escape(char)}{{1,{MAX_RUN}}}") for char in ".…—"}
_IDEOGRAPH = re.compile(f"[{HANZI_CLASS}{SYLLABLE_CLASS}]")


def read_unit(text: str, start: int, end: int, *, final: bool) -> Unit | None:
    """The unit at `start` (`start < end`), or None when more text is needed to know where it ends.

    `final`: nothing follows `end` (the utterance ends there, or a flush parts it).
    """
    char = text[start]
    if _IDEOGRAPH.match(char):
        return Unit(Kind.HANZI, start, start + 1)
    word = _WORD.match(text, start, min(end, start + 2 * MAX_RUN))
    if word is not None:
        return _read_word(text, start, end, word.end(), final)
    if char in NEWLINES:
        return Unit(Kind.NEWLINE, start, start + 1)
    spaces = _SPACES.match(text, start, end)
    if spaces is not None:
        return Unit(Kind.SPACE, start, spaces.end())
    run = _RUNS.get(char)
    if run is not None:
        return _read_run(text, start, end, run.match(text, start, end), final)
    if char in SENTENCE_MARKS:
        return Unit(Kind.SENTENCE_MARK, start, start + 1)
    if char in CLAUSE_MARKS:
        return Unit(Kind.CLAUSE_MARK, start, start + 1)
    if char in WEAK_MARKS:
        return Unit(Kind.WEAK_MARK, start, start + 1)
    if char == "<":
        return _read_markup(text, start, end, _TAG, _OPEN_TAG, final)
    if char == "&":
        return _read_markup(text, start, end, _ENTITY, _OPEN_ENTITY, final)
    return Unit(Kind.SYMBOL, start, start + 1)


def _read_word(text: str, start: int, end: int, stop: int, final: bool) -> Unit | None:
    url = _read_url(text, start, end, final)
    if url is not None:
        return url if url.end > start else None
    limit = MAX_DIGITS if text[start : min(stop, start + MAX_DIGITS)].isdecimal() else MAX_RUN
    if stop - start > limit:
        return Unit(Kind.PIECE, start, start + limit)
    if not final:
        if stop == end:
            return None
        joiner = text[stop]
        if stop + 1 == end and (joiner in _JOINERS or (joiner in _DIGIT_JOINERS and text[stop - 1].isdecimal())):
            return None
    number = any(c.isdecimal() for c in text[start:stop])
    return Unit(Kind.NUMBER if number else Kind.WORD, start, stop)


def _read_url(text: str, start: int, end: int, final: bool) -> Unit | None:
    """A URL; an empty unit when it may still become one; None when it is none."""
    match = _URL.match(text, start, min(end, start + MAX_URL))
    if match is None:
        match = _HOST_PATH.match(text, start, min(end, start + MAX_URL))
        if match is not None and text.index("/", start) - start > _MAX_HOST:
            match = None
    if match is None:
        scheme = _SCHEME.match(text, start, end)
        if scheme is not None and not final and "://".startswith(text[scheme.end() : end]):
            return Unit(Kind.URL, start, start)
        return None
    if match.end() == end and not final and end - start < MAX_URL:
        return Unit(Kind.URL, start, start)
    tail = _URL_TAIL.search(match.group())
    return Unit(Kind.URL, start, match.end() - (len(tail.group()) if tail else 0))


def _read_run(text: str, start: int, end: int, match: re.Match[str] | None, final: bool) -> Unit | None:
    stop = match.end() if match else start + 1
    if stop == end and not final and stop - start < MAX_RUN:
        return None
    if text[start] == "." and stop - start == 1:
        return Unit(Kind.FULL_STOP, start, stop)
    return Unit(Kind.CLAUSE_MARK, start, stop)


def _read_markup(
    text: str, start: int, end: int, whole: re.Pattern[str], opened: re.Pattern[str], final: bool
) -> Unit | None:
    match = whole.match(text, start, end)
    if match is not None:
        return Unit(Kind.SYMBOL, start, match.end())
    if not final and opened.match(text, start, end):
        return None
    return Unit(Kind.SYMBOL, start, start + 1)
