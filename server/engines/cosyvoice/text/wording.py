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
_MARK: Final = re.compile(r"\[[^\]]*\]|<[^>]*>")
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
        elif is_tag(token.text):
            opens = token.text[0] == "<" and token.text[1] != "/"
            blank = " " if opens and left == "en" else ""
            pieces.append(TextPiece(blank + token.text, token.start, token.end, spoken=False))
            left = "open" if opens else left
        else:
            language = _language(token)
            blank = " " if language == left == "en" else ""
            pieces.append(TextPiece(blank + _word(token.text), token.start, token.end, spoken=True))
            left = language
    return (*pieces, *_end(tokens[-1], boundary, "en" if left == "en" else "zh"))


def is_tag(word: str) -> bool:
    """Whether a word of the server is one or several tags such as `[breath]`, of which no word is heard."""
    return word[0] in "[<" and all(mark in _TAGS for mark in _MARK.findall(word))


def text_of(pieces: Sequence[TextPiece]) -> str:
    """All of it, as the tokenizer gets it."""
    return "".join([piece.text for piece in pieces])


def estimate_tokens(text: str) -> int:
    """About how many text tokens a text becomes, rather too many: a Hanzi, a digit, a mark and five letters are one."""
    return sum(1 + (len(match.group()) - 1) // _LETTERS_PER_TOKEN for match in _COUNTED.finditer(text))


def _language(token: Token) -> Language:
    """Sounds are English where they are ARPAbet's capitals, else Chinese."""
    if token.text[0] == "[":
        return "en" if token.text[1].isascii() and token.text[1].isupper() else "zh"
    return token.language


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
