"""How wrong a recogniser's text is, counted in syllables and words.

The reference is what should be said, written out ("twenty three", "二十三"). The recogniser writes as it likes ("23"),
so its text becomes *slots*, each with every way to say what was written there; the error is the least edit distance
over all of them. That forgives spelling, never sound: "30" for "thirteen" is an error. Chinese is compared in syllables
without tones, because a recogniser guesses characters; English in lower-case words without contractions; mixed text
in both at once.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pypinyin import Style, lazy_pinyin

from tests.quality.numbers import EN_NUMBER, ZH_NUMBER, en_readings, zh_readings

Kind = Literal["zh", "en", "mixed"]
Tokens: TypeAlias = Sequence[str]
Slots: TypeAlias = Sequence[Sequence[Tokens]]
"""Slot by slot the alternatives, each a sequence of tokens."""

_HANZI = re.compile(r"[㐀-鿿]+")
_PIECE = re.compile(r"[㐀-鿿]+|[A-Za-zÀ-ÿ']+")
_ENGLISH_WORD = re.compile(r"[a-zà-ÿ]+(?:'[a-zà-ÿ]+)*")
_CONTRACTIONS = (
    (r"\bcan't\b", "can not"), (r"\bcannot\b", "can not"), (r"\bwon't\b", "will not"), (r"n't\b", " not"),
    (r"'ll\b", " will"),
    (r"'re\b", " are"), (r"'ve\b", " have"), (r"'m\b", " am"), (r"\blet's\b", "let us"), (r"'d\b", " would"),
    (r"\b(it|that|there|he|she|what|here|who|how|where)'s\b", r"\1 is"), (r"'s\b", "s"),
)  # fmt: skip
_SPELLINGS = (
    (r"\ba\.? ?m\b\.?", "am"), (r"\bp\.? ?m\b\.?", "pm"), (r"\bdr\b\.?", "doctor"), (r"\bmr\b\.?", "mister"),
    (r"\bmrs\b\.?", "missus"), (r"(?<=met|lit)re(?=s?\b)", "er"), (r"\bper cent\b", "percent"), (r"\bok\b", "okay"),
    (r"&", " and "), (r"\bwi-?fi\b", "wifi"), (r"\be-mail", "email"), (r"\bo'clock\b", "oclock"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Score:
    """Edit operations and the length of the reference they are counted against."""

    errors: int
    length: int

    @property
    def rate(self) -> float:
        """Errors per reference token; above 1 when more was heard than said."""
        return self.errors / max(1, self.length)


def total(scores: Iterable[Score]) -> Score:
    """Errors over a set of sentences: long sentences weigh more."""
    scores = list(scores)
    return Score(sum(s.errors for s in scores), sum(s.length for s in scores))


def score(kind: Kind, references: Sequence[str], heard: str) -> Score:
    """The best score over the accepted readings of a sentence."""
    slots = slots_of(kind, heard)
    results = []
    for reference in references:
        tokens = [token for slot in slots_of(kind, reference) for token in slot[0]]
        results.append(Score(distance(tokens, slots), len(tokens)))
    return min(results, key=lambda result: result.rate)


def slots_of(kind: Kind, text: str) -> list[list[list[str]]]:
    """Text as slots. A reference, written out, has one alternative in each."""
    return _english_slots(text) if kind == "en" else _chinese_slots(text, mixed=kind == "mixed")


def distance(reference: Tokens, slots: Slots) -> int:
    """Least number of insertions, deletions and substitutions over every choice of alternatives."""
    column = list(range(len(reference) + 1))
    for alternatives in slots:
        reached = [_advance(column, reading, reference) for reading in alternatives]
        column = [min(costs) for costs in zip(*reached, strict=True)]
    return column[-1]


def _advance(column: list[int], heard: Tokens, reference: Tokens) -> list[int]:
    """The edit-distance column after more tokens were heard."""
    for token in heard:
        following = [column[0] + 1]
        for at, expected in enumerate(reference, 1):
            following.append(min(column[at] + 1, following[-1] + 1, column[at - 1] + (token != expected)))
        column = following
    return column


def syllables(hanzi: str) -> list[str]:
    """Pinyin without tones, one for each Hanzi."""
    return lazy_pinyin(hanzi, style=Style.NORMAL)


def _chinese_slots(text: str, mixed: bool) -> list[list[list[str]]]:
    slots: list[list[list[str]]] = []
    at = 0
    for match in ZH_NUMBER.finditer(text):
        slots += _plain_slots(text[at : match.start()])
        readings = [syllables(reading) for reading in zh_readings(match)]
        if mixed and (english := EN_NUMBER.match(match.group().lower())):
            readings += en_readings(english)
        slots.append(readings)
        at = match.end()
    return slots + _plain_slots(text[at:])


def _plain_slots(text: str) -> list[list[list[str]]]:
    tokens: list[str] = []
    for piece in _PIECE.findall(text):
        tokens += syllables(piece) if _HANZI.match(piece) else _english_words(piece.lower())
    return [[[token]] for token in tokens]


def _english_slots(text: str) -> list[list[list[str]]]:
    text = _spelled(text)
    slots: list[list[list[str]]] = []
    at = 0
    for match in EN_NUMBER.finditer(text):
        slots += [[[word]] for word in _english_words(text[at : match.start()])]
        slots.append(en_readings(match))
        at = match.end()
    return slots + [[[word]] for word in _english_words(text[at:])]


def _spelled(text: str) -> str:
    text = text.lower().replace("’", "'")
    for pattern, plain in (*_SPELLINGS, *_CONTRACTIONS):
        text = re.sub(pattern, plain, text)
    return text


def _english_words(text: str) -> list[str]:
    return _ENGLISH_WORD.findall(_spelled(text))
