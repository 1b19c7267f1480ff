"""A text-only forecast: if the text is being written at a language model's speed, when will the listener have heard
it all?

A segment must be cut before the sound of the one before it ends, else there is a gap. A clock cannot decide that,
because cuts must be the same whenever the same text comes again. So the forecast goes by the text alone: characters
come at `WRITING_RATE`, and speech lasts at least what the embedded voices were measured to need (`least_duration`).
"""

import re
from typing import Final

from server.text.characters import HANZI
from server.text.tokens import Boundary

WRITING_RATE: Final = 30.0  # characters a second
MARGIN_S: Final = 0.08  # from the character that decides a cut to its sound at the client

_DIGIT: Final = re.compile(r"\d")
_LATIN: Final = re.compile(r"[A-Za-z\u00c0-\u024f' ]")
# Seconds: among the fastest of 60 segments of both voices, with the pauses of the embedded engine, a little shortened.
_PER_HANZI: Final = 0.165
_PER_DIGIT: Final = 0.12
_PER_LETTER: Final = 0.043
_LEAST: Final = 0.36  # any word at all
_SHORT_EXTRA: Final = 0.2  # a few words take longer than their letters say ...
_SHORT_LETTERS: Final = 45  # ... a line of so many letters does not
_PAUSE: Final = {Boundary.WORD: 0.0, Boundary.CLAUSE: 0.22, Boundary.SENTENCE: 0.37, Boundary.PARAGRAPH: 0.5}


def least_duration(text: str, boundary: Boundary) -> float:
    """Seconds that `text` and the pause after it last at the least; 0 where it says nothing."""
    hanzi = sum(1 for _ in HANZI.finditer(text))
    digits = sum(1 for _ in _DIGIT.finditer(text))
    letters = sum(1 for _ in _LATIN.finditer(text.strip()))
    if not hanzi + digits + letters:
        return 0.0
    extra = _SHORT_EXTRA * max(0.0, 1 - letters / _SHORT_LETTERS) if letters else 0.0
    speech = hanzi * _PER_HANZI + digits * _PER_DIGIT + letters * _PER_LETTER + extra
    return max(_LEAST, speech) + _PAUSE[boundary]


class Pacing:
    """Follows an utterance's cuts. Positions are code points of the utterance."""

    def __init__(self) -> None:
        """Nothing was said yet."""
        self._base = 0  # where writing began, or went on after a flush
        self._sounds_until: float | None = None  # seconds since then; None while nothing was said

    @property
    def deadline(self) -> float:
        """The position by which the next cut must be decided; infinite before the first sound."""
        if self._sounds_until is None:
            return float("inf")
        return self._base + WRITING_RATE * (self._sounds_until - MARGIN_S)

    def cut(self, text: str, boundary: Boundary, decided: int) -> None:
        """A segment was cut when the text up to `decided` was known."""
        now = (decided - self._base) / WRITING_RATE
        begins = now if self._sounds_until is None else max(now, self._sounds_until)
        duration = least_duration(text, boundary)
        if duration:
            self._sounds_until = begins + duration

    def flushed(self, position: int) -> None:
        """The writer paused here: nobody knows for how long, so the next segment counts as the first."""
        self._base, self._sounds_until = position, None
