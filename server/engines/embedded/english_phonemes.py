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
_PRIMARY, _SECONDARY = "ˈ", "ˌ"


@dataclass(frozen=True, slots=True)
class PhonemeRow:
    """Phoneme ids between two pads; `owners[i]` is the index in `piece.words` that id `i` sounds for, or None."""

    ids: tuple[int, ...]
    owners: tuple[int | None, ...]


class EnglishPhonemes:
    """Wraps hibari's grapheme-to-phoneme tables. Tables only: nothing here can download a voice."""

    def __init__(self, g2p: Any, vocabulary: Mapping[str, int]) -> None:
        self._g2p = g2p
        self._vocabulary = vocabulary

    def row(self, piece: Piece) -> PhonemeRow:
        """Ids for a whole piece; words without any phoneme are silent, and a row of none of them is empty."""
        text, starts = self._written(piece)
        ids: list[int] = [PAD]
        owners: list[int | None] = [None]
        position = 0
        for token in self._spoken(text, len(piece.words) == 1):
            owner = self._owner(starts, position)
            position += len(token.text) + len(token.whitespace)
            sounding = any(c.isalnum() for c in token.text)
            for character in token.phonemes or "":
                if (number := self._vocabulary.get(character)) is not None:
                    ids.append(number)
                    owners.append(owner if sounding else None)
            if token.whitespace and len(ids) > 1:
                ids.append(self._vocabulary[" "])
                owners.append(None)
        if all(owner is None for owner in owners):
            return PhonemeRow((), ())
        return PhonemeRow((*ids, PAD), (*owners, None))

    @staticmethod
    def _written(piece: Piece) -> tuple[str, list[int]]:
        """The piece as a line of text, and where each word begins in it. A last mark is added where a pause follows."""
        text, starts = "", []
        for index, (word, mark) in enumerate(zip(piece.words, piece.marks, strict=True)):
            starts.append(len(text))
            text += word.text
            if index == len(piece.words) - 1:
                text += _closing(piece.ending, mark)
            else:
                text += f"{_WRITTEN[mark]} " if mark else " "
        return text, starts

    @staticmethod
    def _owner(starts: Sequence[int], position: int) -> int:
        owner = 0
        while owner + 1 < len(starts) and starts[owner + 1] <= position:
            owner += 1
        return owner

    def _spoken(self, text: str, alone: bool) -> Sequence[Any]:
        """hibari's tokens with phonemes. Acronyms and lone letters are spelt unless the dictionary knows them."""
        tokens = self._g2p.tokenize(text)
        for token in tokens:
            if self._is_spelt(token.text, alone):
                token.phonemes = self._letters(token.text)
        spoken: Sequence[Any] = self._g2p.phonemize_tokens(tokens)
        return spoken

    def _is_spelt(self, text: str, alone: bool) -> bool:
        if len(text) == 1:
            return text.isalpha() and (alone or text not in "aAI")
        acronym = _ACRONYM.fullmatch(text) is not None
        return acronym and text not in self._g2p.lexicon.golds and text.lower() not in self._g2p.lexicon.golds

    def _letters(self, text: str) -> str | None:
        phonemes, _ = self._g2p.lexicon.get_NNP(text.upper())
        return phonemes if phonemes is None or _PRIMARY in phonemes else _PRIMARY + phonemes


def _closing(ending: Ending, mark: Mark | None) -> str:
    if ending is Ending.JOIN:
        return ""
    if ending is Ending.CLAUSE:
        return _WRITTEN[mark] if mark in (Mark.ENUMERATION, Mark.COMMA, Mark.COLON) else ","
    return _WRITTEN[mark] if mark in (Mark.QUESTION, Mark.EXCLAMATION) else "."
