"""How long segments may get."""

from collections.abc import Callable
from dataclasses import dataclass

from server.text.units import MAX_URL

WINDOW = 8192  # code points the segmenter keeps joined; more than the longest segment with its look-ahead


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """How long segments may get.

    `max_tokens` is the engine's limit and `count_tokens` its way to count (default: a Hanzi, a word, a digit is one).
    `first_max_*`: without punctuation the first segment is cut at a word boundary after about so much.
    `clause_tokens`: from this size on, later segments end at any clause mark.
    `max_chars` bounds text that says nothing.
    """

    max_tokens: int = 40
    count_tokens: Callable[[str], int] | None = None
    first_max_chars: int = 16
    first_max_words: int = 6
    clause_tokens: int = 20
    max_chars: int = 2000

    def __post_init__(self) -> None:
        """Raises ValueError for limits that no text could keep to."""
        if min(self.max_tokens, self.first_max_chars, self.first_max_words, self.clause_tokens) < 1:
            raise ValueError("segment limits must be at least 1")
        if not MAX_URL <= self.max_chars <= WINDOW // 2 - MAX_URL:
            raise ValueError(f"max_chars must be between {MAX_URL} and {WINDOW // 2 - MAX_URL}")
