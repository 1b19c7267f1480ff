"""Words of any alphabet in Latin letters, which is all that an English voice can read."""

import re
from functools import lru_cache

from anyascii import anyascii

_GREEK = dict(
    zip(
        "αβγδεζηθικλμνξοπρστυφχψω",
        "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon phi"
        " chi psi omega".split(),
        strict=True,
    )
)


@lru_cache(maxsize=4096)
def to_latin(word: str) -> str:
    """A word in Latin letters: accents dropped, other scripts transliterated ("Привет" -> "Privet")."""
    word = word.replace("’", "'")
    if word.isascii():
        return word
    if word.lower() in _GREEK:
        return _GREEK[word.lower()]
    return re.sub(r"[^A-Za-z'\- ]", " ", anyascii(word))
