"""What was said just before a cut in the same sentence: context that helps a voice to go on as it began."""

from collections import deque
from collections.abc import Callable
from typing import Final

from server.text.characters import NEWLINES, SENTENCE_MARKS, splits_character
from server.text.languages import longest_reading, spoken_size
from server.text.tokens import Boundary, Cut, CutCause
from server.text.units import MAX_URL, Kind, read_unit

_MAX_CHARS: Final = MAX_URL  # of a context: more than 64 words of any language have
_ENDS: Final = (Boundary.SENTENCE, Boundary.PARAGRAPH)
_PAUSES: Final = (CutCause.FLUSH, CutCause.SOFT_FLUSH, CutCause.END)
_SILENT: Final = (Kind.SPACE, Kind.NEWLINE)
_BEGINS: Final = (Kind.HANZI, Kind.WORD, Kind.NUMBER, Kind.URL, Kind.SYMBOL, Kind.PIECE)
_GOES_ON: Final = (Kind.SYMBOL, Kind.PIECE)  # what touches one belongs to it: "$5", an emoji, the rest of a long run


class Overlap:
    """Follows an utterance's cuts, each one once and in order. What it says depends on them alone."""

    def __init__(self, tokens: int, count_tokens: Callable[[str], int] | None = None) -> None:
        """`tokens`: the most that a context may have, by `count_tokens` of each word, Hanzi and mark (default: a word
        and a Hanzi have one, a mark none), a number as many as it may have read out. 0: no context, and no work.
        """
        self._most = tokens
        self._count = count_tokens or _count
        self._units: deque[tuple[str, int, bool]] = deque()  # text, tokens, whether a context may begin with it
        self._last = ""  # the last character of the sentence so far
        self._goes_on = False  # what comes next may belong to what was last

    def before(self, cut: Cut) -> str:
        """The source text right before `cut`, from the start of a word on. Empty at the start of a sentence or line and
        after a flush, and where what was last has more tokens than allowed.
        """
        if self._most <= 0:
            return ""
        if _begins_anew(cut.text):
            self.forget()
        context = "".join(text for text, *_ in self._units)
        if cut.boundary in _ENDS or cut.cause in _PAUSES:
            self.forget()
        else:
            self._add(cut.text)
            self._trim()
        return context

    def forget(self) -> None:
        """The next cut has no context: a silence comes first, say."""
        self._units.clear()
        self._last, self._goes_on = "", False

    def _add(self, text: str) -> None:
        at = 0
        while at < len(text):
            unit = read_unit(text, at, len(text), final=True)
            assert unit is not None  # `final` leaves nothing open
            written = text[at : unit.end]
            torn = self._goes_on or (self._last != "" and splits_character(self._last, text[at]))
            tokens = 0 if unit.kind in _SILENT else self._count(written)
            if unit.kind is Kind.NUMBER:
                tokens = max(tokens, longest_reading(written))
            self._units.append((written, tokens, unit.kind in _BEGINS and not torn))
            self._last, self._goes_on = written[-1], unit.kind in _GOES_ON
            at = unit.end

    def _trim(self) -> None:
        """Keep what the next context consists of; what does not fit now never will."""
        tokens = chars = kept = 0
        for count, (text, size, begins) in enumerate(reversed(self._units), 1):
            tokens += size
            chars += len(text)
            if tokens > self._most or chars > _MAX_CHARS:
                break
            if begins:
                kept = count
        while len(self._units) > kept:
            self._units.popleft()


def _begins_anew(text: str) -> bool:
    """Whether a line or sentence ends before anything is said."""
    for char in text:
        if char in NEWLINES or char in SENTENCE_MARKS:
            return True
        if char.isalnum():
            return False
    return False


def _count(written: str) -> int:
    return spoken_size(written) if any(char.isalnum() for char in written) else 0
