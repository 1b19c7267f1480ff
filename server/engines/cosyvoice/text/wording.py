"""The text that the language model reads, of the words and marks that the server says of a segment. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from server.engines.cosyvoice.text.marks import TAGS
from server.text.characters import HANZI_CLASS
from server.text.tokens import Boundary, Language, Token

_MARKS: Final[dict[Language, dict[str, str]]] = {
    "zh": {",": "，", ";": "；", ":": "：", ".": "。", "?": "？", "!": "！", "—": "，"},
    "en": {"、": ",", "…": "...", "—": ","},
}
_ENDS: Final = frozenset(".?!…")
_SPELLED: Final = re.compile(r"(?:[A-Za-z]\.)+")
_TAGS: Final = frozenset(TAGS)
_TAG: Final = "|".join(map(re.escape, TAGS))
_PART: Final = re.compile(rf"{_TAG}|(?:(?!{_TAG})\[[^\]]*\])+|.+", re.DOTALL)
"""Of a word: a tag, a row of sounds, or all of it."""
_COUNTED: Final = re.compile(rf"[{HANZI_CLASS}]|[^\W\d_]+|[^\w\s]|\d")
_LETTERS_PER_TOKEN: Final = 5


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A word, a mark or a tag with the blank before it, if any: joined, the pieces are the text. `[start, end)` is
    where it was written; empty for an end mark that nobody wrote. `spoken`: it is a word, which can be heard.
    """

    text: str
    start: int
    end: int
    spoken: bool


def wording(tokens: Sequence[Token], boundary: Boundary) -> tuple[TextPiece, ...]:
    """What is read of a segment; () where it says nothing.

    Hanzi stand without blanks, words with them, marks in the form of their language. A sentence ends in a mark that
    ends sentences, a clause in one at least; a segment that was cut between words ends in none that nobody wrote.
    """
    if not any(token.kind == "word" for token in tokens):
        return ()
    pieces: list[TextPiece] = []
    left: Language | Literal["open", ""] = ""  # what a blank depends on: what stands to the left
    for token in tokens[:-1] if tokens[-1].kind == "mark" else tokens:
        if token.kind == "mark":
            pieces.append(TextPiece(_mark(token.text, token.language), token.start, token.end, spoken=False))
            left = token.language
            continue
        for part in _PART.findall(token.text):
            tag = part in _TAGS
            opens = tag and part[0] == "<" and part[1] != "/"
            language = _language(part, token.language)
            blank = " " if left == "en" and (opens or (language == "en" and not tag)) else ""
            pieces.append(TextPiece(blank + (part if tag else _word(part)), token.start, token.end, spoken=not tag))
            left = "open" if opens else left if tag else language
    return (*pieces, *_end(tokens[-1], boundary, "en" if left == "en" else "zh"))


def text_of(pieces: Sequence[TextPiece]) -> str:
    """All of it, as the tokenizer gets it."""
    return "".join([piece.text for piece in pieces])


def estimate_tokens(text: str) -> int:
    """About how many text tokens a text becomes, rather too many: a Hanzi, a digit, a mark and five letters are one."""
    return sum(1 + (len(match.group()) - 1) // _LETTERS_PER_TOKEN for match in _COUNTED.finditer(text))


def _language(part: str, written: Language) -> Language:
    """Sounds are English where they are ARPAbet's capitals, else Chinese."""
    if part[0] == "[":
        return "en" if part[1].isascii() and part[1].isupper() else "zh"
    return written


def _word(text: str) -> str:
    """Letters that are to be spelled stand apart: dots would be read as ends."""
    return " ".join(text.replace(".", "")) if _SPELLED.fullmatch(text) else text


def _mark(text: str, language: Language) -> str:
    return _MARKS[language].get(text, text)


def _end(last: Token, boundary: Boundary, language: Language) -> list[TextPiece]:
    """The mark at the end: what was written where it fits the boundary."""
    written = last.text if last.kind == "mark" else ""
    if boundary in (Boundary.SENTENCE, Boundary.PARAGRAPH):
        mark = written if written in _ENDS else "."
    else:
        mark = written or ("," if boundary is Boundary.CLAUSE else "")
    if not mark:
        return []
    start = last.start if written else last.end
    return [TextPiece(_mark(mark, language), start, last.end, spoken=False)]
