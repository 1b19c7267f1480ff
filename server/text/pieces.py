"""Cuts a segment into smaller pieces, for when something is wrong with it as a whole: at its punctuation, or so that
each piece fits an engine that takes less at once.
"""

import re
from collections.abc import Callable

from server.text.characters import (
    CLAUSE_MARKS,
    CLOSERS,
    HANZI_CLASS,
    NEWLINES,
    SENTENCE_MARKS,
    WEAK_MARKS,
    splits_character,
)
from server.text.normaliser import normalise
from server.text.tokens import Boundary, Cut, CutCause

_MARKS = "".join(sorted(SENTENCE_MARKS | CLAUSE_MARKS | WEAK_MARKS | NEWLINES))
_CLOSERS = "".join(sorted(CLOSERS))
_END = re.compile(rf"(?:[{re.escape(_MARKS)}]|\.(?=\s|\Z|[{re.escape(_CLOSERS)}]))+[{re.escape(_CLOSERS)}]*\s*")
_WITHIN_NUMBER = re.compile(r"\d[.,:：]\d")
_UNIT = re.compile(rf"[{HANZI_CLASS}][^{HANZI_CLASS}\w\s]*|[^\s{HANZI_CLASS}]+\s*|\s+")


def part_of(cut: Cut, start: int, end: int) -> Cut:
    """The text [start, end) of a cut, as a cut of its own. It ends as its last mark says, the last part as the cut."""
    text = cut.text[start - cut.start : end - cut.start]
    return Cut(start, end, text, cut.boundary if end >= cut.end else _boundary_of(text), CutCause.LENGTH, cut.language)


def says_something(cut: Cut) -> bool:
    """Whether there is a word in it."""
    return any(token.kind == "word" for token in normalise(cut))


def at_punctuation(cut: Cut) -> list[Cut]:
    """The cut at every mark within it. A piece that says nothing stays with the one before."""
    places = [cut.start + at for at in _ends(cut.text) if at < len(cut.text)]
    pieces: list[Cut] = []
    start = cut.start
    for end in (*places, cut.end):
        piece = part_of(cut, start, end)
        if says_something(piece):
            pieces.append(piece)
        elif pieces:
            pieces[-1] = part_of(cut, pieces[-1].start, end)
        else:
            continue  # what follows takes it along
        start = end
    return pieces or [cut]


def to_fit(cut: Cut, fits: Callable[[str], bool]) -> list[Cut]:
    """The cut in as few pieces as it takes for each to fit: at marks, and at words where a piece has none. A word that
    does not fit stays whole.
    """
    if fits(cut.text):
        return [cut]
    pieces: list[Cut] = []
    for clause in at_punctuation(cut):
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


def _ends(text: str) -> list[int]:
    """Where a mark ends a piece, closing quotes and spaces included."""
    return [match.end() for match in _END.finditer(text) if not _WITHIN_NUMBER.match(text, max(0, match.start() - 1))]


def _boundary_of(text: str) -> Boundary:
    end = text.rstrip(" \t" + _CLOSERS)
    last = end[-1:]
    if last and last in NEWLINES:
        return Boundary.PARAGRAPH
    if last and (last in SENTENCE_MARKS or last == "."):
        return Boundary.SENTENCE
    return Boundary.CLAUSE if last and last in CLAUSE_MARKS | WEAK_MARKS else Boundary.WORD
