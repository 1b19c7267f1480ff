"""Latin words to the phonemes of the English voice, with a map from phonemes back to words."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.engines.embedded.pieces import Ending, Mark, Piece

PAD = 0
_WRITTEN = {
    Mark.ENUMERATION: ",",
    Mark.COMMA: ",",
    Mark.COLON: ";",
    Mark.STOP: ".",
    Mark.QUESTION: "?",
    Mark.EXCLAMATION: "!",
}
_ACRONYM = re.compile("[A-Z]{2,5}")
_WORDS_OF_A_LETTER = frozenset("aAI")
_SAID_AS = {"JSON": "Jason"}  # said as a word, but in no dictionary
_PRIMARY = "ˈ"


@dataclass(frozen=True, slots=True)
class PhonemeRow:
    """Phoneme ids between two pads; `owners[i]` is the index in `piece.words` that id `i` sounds for, or None."""

    ids: tuple[int, ...]
    owners: tuple[int | None, ...]


class EnglishPhonemes:
    """Wraps hibari's grapheme-to-phoneme tables. Tables only: nothing here can download a voice."""

    def __init__(self, g2p: Any, vocabulary: Mapping[str, int]) -> None:
        """`g2p`: a `hibari.g2p.G2P`; `vocabulary`: the network's number of each phoneme and mark."""
        self._g2p = g2p
        self._vocabulary = vocabulary

    def row(self, piece: Piece) -> PhonemeRow:
        """Ids for a whole piece; words without any phoneme are silent, and a row of none of them is empty."""
        marks = _written_marks(piece)
        text = " ".join(word.text + mark for word, mark in zip(piece.words, marks, strict=True))
        ids: list[int] = [PAD]
        owners: list[int | None] = [None]

        def add(character: str, owner: int | None) -> None:
            if (number := self._vocabulary.get(character)) is not None:
                ids.append(number)
                owners.append(owner)

        def end_word(mark: str) -> None:
            if mark and ids[-1] != self._vocabulary[mark]:  # taken for an abbreviation's: "B." has lost its stop
                add(mark, None)

        owner = 0
        for token in self._spoken(text):
            sounding = any(c.isalnum() for c in token.text)
            for character in token.phonemes or "":
                add(character, owner if sounding else None)
            if token.whitespace:  # written between words and nowhere else
                end_word(marks[owner])
                owner += 1
                add(" ", None)
        end_word(marks[-1])
        if all(owner is None for owner in owners):
            return PhonemeRow((), ())
        return PhonemeRow((*ids, PAD), (*owners, None))

    def _spoken(self, text: str) -> Sequence[Any]:
        """hibari's tokens with phonemes. Acronyms and lone letters are spelt unless the dictionary knows them."""
        tokens = self._g2p.tokenize(text)
        for index, token in enumerate(tokens):
            if self._is_spelt(token.text, first=index == 0, alone=len(tokens) <= 2):
                token.phonemes = self._letters(token.text)
            token.alias = _SAID_AS.get(token.text)
        spoken: Sequence[Any] = self._g2p.phonemize_tokens(tokens)
        return spoken

    def _is_spelt(self, text: str, first: bool, alone: bool) -> bool:
        if text in _SAID_AS:
            return False
        if len(text) == 1:
            return text.isalpha() and (alone or text not in _WORDS_OF_A_LETTER or (text == "A" and not first))
        known = self._g2p.lexicon.golds
        return _ACRONYM.fullmatch(text) is not None and text not in known and text.lower() not in known

    def _letters(self, text: str) -> str | None:
        phonemes, _ = self._g2p.lexicon.get_NNP(text.upper())
        return phonemes if phonemes is None or _PRIMARY in phonemes else _PRIMARY + phonemes


def _written_marks(piece: Piece) -> list[str]:
    """What stands after each word: its mark, and after the last one what the ending asks for."""
    inner = [_WRITTEN[mark] if mark else "" for mark in piece.marks[:-1]]
    return [*inner, _closing(piece.ending, piece.marks[-1])]


def _closing(ending: Ending, mark: Mark | None) -> str:
    if ending is Ending.JOIN:
        return ""
    if ending is Ending.CLAUSE:
        return _WRITTEN[mark] if mark in (Mark.ENUMERATION, Mark.COMMA, Mark.COLON) else ","
    return _WRITTEN[mark] if mark in (Mark.QUESTION, Mark.EXCLAMATION) else "."
