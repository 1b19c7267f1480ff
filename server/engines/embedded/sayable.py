"""What of a token a voice can say, and with which model."""

import unicodedata
from collections.abc import Collection

from anyascii import anyascii

from server.text.characters import is_hanzi
from server.text.tokens import Language, Token

_FOLDED = str.maketrans({"’": "'", "‘": "'", "ß": "ss", "ø": "o", "Ø": "O", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe",
                         "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ı": "i", "＆": "&"})  # fmt: skip
_LONGEST_WORD = 24  # letters; a longer "word" is no word, and is said in parts
_LATIN_EXTRA = frozenset("'-.&@+/")  # kept inside a Latin word
_HANZI_DIGITS = dict(zip("0123456789", "零一二三四五六七八九", strict=True))
# Where a syllable in Latin letters would be taken for the name of a letter or for a sign.
_ROMAN = {"A": "Ah", "E": "Uh", "O": "Oh", "0": "Ling"}


def sayable(token: Token, languages: Collection[Language]) -> tuple[Language, list[str]] | None:
    """Which model says a token, and the words it is given; None for what neither can say (other scripts, symbols).

    Where `languages`, the voice's own, have no Chinese, Hanzi are given to the English model in Latin letters.
    """
    hanzi = [c for c in token.text if is_hanzi(c)]
    if hanzi and "zh" in languages:
        return "zh", hanzi
    if hanzi:
        syllables = [syllable for c in hanzi if (syllable := romanised(c))]
        return ("en", syllables) if syllables else None
    latin = fold_to_ascii(token.text)
    if latin.isdigit() and token.language == "zh" and "zh" in languages:
        return "zh", [_HANZI_DIGITS[c] for c in latin]
    parts = [latin[i : i + _LONGEST_WORD] for i in range(0, len(latin), _LONGEST_WORD)]
    parts = [part for part in parts if any(c.isalnum() for c in part)]
    return ("en", parts) if parts else None


def fold_to_ascii(text: str) -> str:
    """Latin text without accents or anything that cannot be part of a word: "Café’s" -> "Cafe's"."""
    decomposed = unicodedata.normalize("NFKD", text.translate(_FOLDED))
    kept = "".join(c for c in decomposed if c.isascii() and (c.isalnum() or c in _LATIN_EXTRA))
    return kept.strip("-./")


def romanised(hanzi: str) -> str:
    """One Hanzi as a syllable without its tone, for English: 好 -> "Hao"; "" where none is known."""
    latin = anyascii(hanzi)
    return _ROMAN.get(latin) or fold_to_ascii(latin)
