"""How long segments may get."""

from collections.abc import Callable
from dataclasses import dataclass

from server.text.units import MAX_URL

WINDOW = 8192  # code points the segmenter keeps joined; more than the longest segment with its look-ahead
LONGEST = WINDOW // 2 - MAX_URL  # code points of the longest segment: 256 English words are seldom half as many
CLAUSES_UP_TO = 64  # an engine that takes no more tokens at once speaks clauses, any other one sentences


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """How long segments may get.

    `max_tokens` is the engine's limit and `count_tokens` its way to count (default: a Hanzi, a word, a digit is one).
    `block_tokens`: a sentence of more is cut again, into blocks of at most `block_window_tokens`; no segment has more.
    `first_max_*`: without punctuation the first segment is cut at a word boundary after about so much.
    `clause_tokens`: from this size on, later segments end at any clause mark, where the engine speaks clauses.
    `max_chars` bounds text that says nothing; whole sentences may have up to `LONGEST`.
    """

    max_tokens: int = 40
    count_tokens: Callable[[str], int] | None = None
    block_tokens: int = 256
    block_window_tokens: int = 128
    first_max_chars: int = 16
    first_max_words: int = 6
    clause_tokens: int = 20
    max_chars: int = 2000

    def __post_init__(self) -> None:
        """Raises ValueError for limits that no text could keep to."""
        blocks = min(self.block_tokens, self.block_window_tokens)
        if min(self.max_tokens, blocks, self.first_max_chars, self.first_max_words, self.clause_tokens) < 1:
            raise ValueError("segment limits must be at least 1")
        if not MAX_URL <= self.max_chars <= LONGEST:
            raise ValueError(f"max_chars must be between {MAX_URL} and {LONGEST}")

    @property
    def whole_sentences(self) -> bool:
        """Whether a sentence stays in one piece where it fits."""
        return self.max_tokens > CLAUSES_UP_TO

    @property
    def segment_tokens(self) -> int:
        """The most tokens of any segment."""
        return min(self.max_tokens, self.block_tokens)

    @property
    def window_tokens(self) -> int:
        """The most tokens before a cut that no mark asks for, in whole sentences."""
        return min(self.segment_tokens, self.block_window_tokens)

    @property
    def segment_chars(self) -> int:
        """The most code points of any segment."""
        return LONGEST if self.whole_sentences else self.max_chars
