"""How much a unit of text is: tokens for the engine's limit, and its share of what the first segment may hold."""

from typing import Final

from server.text.characters import splits_character
from server.text.languages import longest_reading, spoken_size
from server.text.limits import SegmentLimits
from server.text.units import Kind, Unit

_URL_TOKENS: Final = 16  # a URL is read shortened
_URL_LONGEST: Final = 64  # ... to no more than this, however small an engine's tokens are


class UnitSizes:
    """Measures units by an utterance's limits."""

    def __init__(self, limits: SegmentLimits) -> None:
        """`limits` say how tokens are counted."""
        self._limits = limits
        self._sentences = limits.whole_sentences

    def of(self, text: str, unit: Unit, *, spaced: bool) -> tuple[Unit, int, float]:
        """A word, number, Hanzi, URL or symbol with its tokens and size; `spaced`: there is a space before it.

        A word of more tokens than the engine takes is halved until it fits, where an engine speaks whole sentences:
        those that speak clauses count a word as one.
        """
        tokens, size = self._measure(text[unit.start : unit.end], unit.kind, spaced)
        while self._sentences and tokens > self._limits.max_tokens and unit.end - unit.start > 1:
            middle = (unit.start + unit.end) // 2
            while middle - unit.start > 1 and splits_character(text[middle - 1], text[middle]):
                middle -= 1
            unit = Unit(Kind.PIECE, unit.start, middle)
            tokens, size = self._measure(text[unit.start : unit.end], unit.kind, spaced)
        return unit, tokens, size

    def _measure(self, text: str, kind: Kind, spaced: bool) -> tuple[int, float]:
        limits = self._limits
        if kind is Kind.HANZI:
            own, share = 1, 1 / limits.first_max_chars
        elif kind is Kind.SYMBOL:
            own, share = 0, 0.0
        else:
            own = min(spoken_size(text), _URL_TOKENS) if kind is Kind.URL else spoken_size(text)
            share = own / limits.first_max_chars if kind is Kind.NUMBER else own / limits.first_max_words
            own = longest_reading(text) if kind is Kind.NUMBER else own
            if not any(char.isalnum() for char in text):
                own, share = 0, 0.0
        if limits.count_tokens is None:
            return own, share
        if not self._sentences:
            return limits.count_tokens(text), share
        counted = limits.count_tokens(" " + text if spaced else text)  # as an engine with small tokens sees it
        if kind is Kind.URL:
            return min(counted, _URL_LONGEST), share
        return max(counted, own) if kind is Kind.NUMBER else counted, share

    def of_mark(self, text: str) -> int:
        """Tokens of a mark, where whole sentences are cut."""
        return self._limits.count_tokens(text) if self._limits.count_tokens else 0
