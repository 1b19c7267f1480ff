"""What the text stage hands to an engine: words and marks, each with the place it was written.

Positions are Unicode code points of the utterance's whole text (see docs/protocol.md, "Text").
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Language = Literal["zh", "en"]


class Boundary(StrEnum):
    """What ends a segment; the engine turns it into a pause and a closing intonation."""

    WORD = "word"  # cut between words because the clause was long: no pause
    CLAUSE = "clause"  # comma, colon, semicolon, dash...
    SENTENCE = "sentence"  # full stop, question or exclamation mark
    PARAGRAPH = "paragraph"  # a line break


class CutCause(StrEnum):
    """Why the segmenter cut where it did; recorded so that a later run never cuts differently."""

    PUNCTUATION = "punctuation"
    LENGTH = "length"
    FLUSH = "flush"
    SOFT_FLUSH = "soft_flush"
    END = "end"


@dataclass(frozen=True, slots=True)
class Cut:
    """One segment of source text, `[start, end)` in code points; cuts tile the utterance without gap or overlap."""

    start: int
    end: int
    text: str
    boundary: Boundary
    cause: CutCause
    language: Language  # of the text around it: decides how numbers are read


@dataclass(frozen=True, slots=True)
class Token:
    """One spoken unit: a Hanzi, a Latin word, or a punctuation mark kept for its pause.

    Several tokens may share one source span: "12.5%" is read as seven Hanzi that all point at those five characters.
    """

    text: str
    start: int
    end: int
    language: Language
    kind: Literal["word", "mark"] = "word"
