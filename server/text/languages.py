"""Which language a stretch of text is in, and how much speech it will be."""

import re

from server.text.characters import HANZI
from server.text.tokens import Language

_LATIN_WORD = re.compile(r"[A-Za-z\u00c0-\u024fＡ-Ｚａ-ｚ]+")
_PIECE = re.compile(r"\d|[^\W\d_]+")
_LONG_WORD = 16  # letters; a longer "word" counts once more for each such length
_ACRONYM_MAX = 5

WORD_WEIGHT = 1.5  # one English word weighs as much as this many Hanzi


def dominating_language(text: str, otherwise: Language) -> Language:
    """The language most of `text` is written in; `otherwise` when it has no letters of either."""
    hanzi = sum(1 for _ in HANZI.finditer(text))
    words = sum(1 for _ in _LATIN_WORD.finditer(text))
    if not hanzi and not words:
        return otherwise
    return "zh" if hanzi >= words * WORD_WEIGHT else "en"


def spoken_size(word: str) -> int:
    """About how many tokens a word or number becomes when it is read out: a digit is one, an acronym one per letter."""
    size = 0
    for match in _PIECE.finditer(word):
        piece = match.group()
        if piece.isupper() and 1 < len(piece) <= _ACRONYM_MAX:
            size += len(piece)
        else:
            size += 1 + len(piece) // _LONG_WORD
    return max(1, size)


def longest_reading(number: str) -> int:
    """An upper bound, or nearly, of the tokens a number becomes: "12345" is nine Hanzi, "12.5%" seven."""
    digits = sum(1 for char in number if char.isdecimal())
    marks = sum(1 for char in number if not char.isalnum())
    return spoken_size(number) + digits // 2 + marks + (2 if number[-1:] in "%％‰" else 0)
