"""Cuts a segment into smaller pieces, for when something is wrong with it as a whole: at its punctuation, or so that
each piece fits an engine that takes less at once.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from server.text.characters import (
    CLAUSE_MARKS,
    CLOSERS,
    HANZI_CLASS,
    NEWLINES,
    SENTENCE_MARKS,
    WEAK_MARKS,
    splits_character,
)
from server.text.lexicon import Lexicon, indexed
from server.text.normaliser import normalise
from server.text.tokens import Boundary, Cut, CutCause, Token

_MARKS = "".join(sorted(SENTENCE_MARKS | CLAUSE_MARKS | WEAK_MARKS | NEWLINES))
_CLAUSE_ENDS = CLAUSE_MARKS | WEAK_MARKS
_CLOSERS = "".join(sorted(CLOSERS))
_NOT_THE_END = " \t" + _CLOSERS
_END = re.compile(rf"(?:[{re.escape(_MARKS)}]|\.(?=\s|\Z|[{re.escape(_CLOSERS)}]))+[{re.escape(_CLOSERS)}]*\s*")
_WITHIN_NUMBER = re.compile(r"\d[.,:：]\d")
_SPOKEN = re.compile("[\u4e00-\u9fffA-Za-z0-9]")
_MARKUP = re.compile(r"[<>\[\]&`~\\]")  # what can make letters something that is not spoken
_UNSPOKEN = re.compile(rf"[{re.escape(_MARKS + _CLOSERS)}.\s]*")
_UNIT = re.compile(rf"[{HANZI_CLASS}][^{HANZI_CLASS}\w\s]*|[^\s{HANZI_CLASS}]+\s*|\s+")


def part_of(cut: Cut, start: int, end: int) -> Cut:
    """The text [start, end) of a cut, as a cut of its own. It ends as its last mark says, the last part as the cut."""
    text = cut.text[start - cut.start : end - cut.start]
    return Cut(start, end, text, cut.boundary if end >= cut.end else _boundary_of(text), CutCause.LENGTH, cut.language)


def tokens_of(cut: Cut, lexicon: Mapping[str, str] | None = None) -> tuple[Token, ...] | None:
    """Its tokens; None where a text rule fails at it: then an engine that must read it fails too, and that is told."""
    try:
        return normalise(cut, lexicon=lexicon)
    except Exception:  # noqa: BLE001  # a fault of a rule, whatever it is, must not keep a text from being dealt with
        return None


def says_something(cut: Cut, lexicon: Mapping[str, str] | None = None) -> bool:
    """Whether there is a word in it, or nobody knows. Text is read by the rules only where a look at it is not enough:
    a segment may have a thousand pieces, and these are asked for on the event loop.
    """
    words = indexed(lexicon) if lexicon else None
    if _surely_spoken(cut.text) and (words is None or _all_spoken(words)):
        return True
    if words is None and _UNSPOKEN.fullmatch(cut.text):
        return False
    tokens = tokens_of(cut, lexicon)
    return tokens is None or any(token.kind == "word" for token in tokens)


def at_punctuation(cut: Cut, lexicon: Mapping[str, str] | None = None) -> list[Cut]:
    """The cut at every mark within it. A piece that says nothing stays with the one before."""
    places = [cut.start + at for at in _ends(cut.text) if at < len(cut.text)]
    pieces: list[Cut] = []
    start = cut.start
    for end in (*places, cut.end):
        piece = part_of(cut, start, end)
        if says_something(piece, lexicon):
            pieces.append(piece)
        elif pieces:
            pieces[-1] = part_of(cut, pieces[-1].start, end)
        else:
            continue  # what follows takes it along
        start = end
    return pieces or [cut]


def to_fit(cut: Cut, fits: Callable[[str], bool], lexicon: Mapping[str, str] | None = None) -> list[Cut]:
    """The cut in as few pieces as it takes for each to fit: at marks, and at words where a piece has none. A word that
    does not fit stays whole.
    """
    if fits(cut.text):
        return [cut]
    pieces: list[Cut] = []
    for clause in at_punctuation(cut, lexicon):
        if pieces and fits(cut.text[pieces[-1].start - cut.start : clause.end - cut.start]):
            pieces[-1] = part_of(cut, pieces[-1].start, clause.end)
        else:
            pieces += _at_words(clause, cut, fits)
    return pieces


def _at_words(clause: Cut, cut: Cut, fits: Callable[[str], bool]) -> list[Cut]:
    text, start, pieces = clause.text, 0, []
    at = 0
    for unit in _UNIT.finditer(text):
        end = unit.end()
        if at > start and not fits(text[start:end]) and not splits_character(text[at - 1], text[at]):
            pieces.append(part_of(cut, clause.start + start, clause.start + at))
            start = at
        at = end
    return [*pieces, part_of(cut, clause.start + start, clause.end)]


def _surely_spoken(text: str) -> bool:
    return _SPOKEN.search(text) is not None and _MARKUP.search(text) is None


@lru_cache(maxsize=16)
def _all_spoken(words: Lexicon) -> bool:
    """Whether none of a client's own words is read as nothing."""
    return all(map(_surely_spoken, words.readings))


def _ends(text: str) -> list[int]:
    """Where a mark ends a piece, closing quotes and spaces included."""
    return [match.end() for match in _END.finditer(text) if not _WITHIN_NUMBER.match(text, max(0, match.start() - 1))]


def _boundary_of(text: str) -> Boundary:
    end = text.rstrip(_NOT_THE_END)
    last = end[-1:]
    if last and last in NEWLINES:
        return Boundary.PARAGRAPH
    if last and (last in SENTENCE_MARKS or last == "."):
        return Boundary.SENTENCE
    return Boundary.CLAUSE if last and last in _CLAUSE_ENDS else Boundary.WORD
