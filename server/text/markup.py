"""What an engine reads besides words: `[laughter]`, `[h][ǎo]`, `<strong>`, each as the engine itself lists it.

The rules of the text stage would read such marks as words, links or tags. So each is hidden behind one character before
they look, and taken from there as it was written.
"""

import re
import unicodedata
from collections.abc import Set
from functools import lru_cache
from typing import Final

SIGN: Final = "\ufdd0"
"""Stands for a mark: a code point that Unicode gives to no character. One that was written is taken for a space."""
_NOTHING: Final = "\u200b"  # has no width; fills up, so that every other character stays at its place


def hide(text: str, markup: Set[str]) -> tuple[str, dict[int, str]]:
    """`text`, as long as before, with one `SIGN` where each mark begins; and the marks by the places where they do."""
    if not markup or not any(opener in text for opener in "[<"):
        return text, {}
    found: dict[int, str] = {}

    def taken(match: re.Match[str]) -> str:
        found[match.start()] = match.group()
        return SIGN + _NOTHING * (len(match.group()) - 1)

    hidden = _pattern(frozenset(markup)).sub(taken, text.replace(SIGN, " "))
    return (hidden, found) if found else (text, {})


@lru_cache(maxsize=16)
def _pattern(markup: frozenset[str]) -> re.Pattern[str]:
    """Letters with marks above may be written as one character or two."""
    forms = markup | {unicodedata.normalize("NFD", form) for form in markup}
    return re.compile("|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)))
