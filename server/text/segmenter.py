"""Cuts text that is still arriving into the segments an engine speaks.

The cuts of an utterance depend on its text and on where it was flushed, never on how the text was parted into `feed`
calls nor on when `next` was called: every decision is taken as soon as the characters seen make it certain, and not
before. The first segment is short, so that sound starts early; the following ones grow. See docs/text.md for the rules
as users see them.
"""

import re
from collections import deque
from sys import maxsize

from server.text.breaks import Break
from server.text.characters import CLAUSE_MARKS, CLOSERS, NEWLINES, SENTENCE_MARKS, WEAK_MARKS, splits_character
from server.text.languages import dominating_language
from server.text.limits import WINDOW, SegmentLimits
from server.text.pacing import Pacing
from server.text.places import Place, Places
from server.text.sentence_end import Stop, judge_full_stop, looks_complete
from server.text.tokens import Boundary, Cut, CutCause, Language
from server.text.unit_sizes import UnitSizes
from server.text.units import Kind, Unit, read_unit

__all__ = ["SegmentLimits", "Segmenter"]

_TAIL = 200  # code points remembered for a soft flush
_MARKS = SENTENCE_MARKS | CLAUSE_MARKS | WEAK_MARKS | NEWLINES | {"."}
_MONTH_DAY = re.compile(
    r"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)[a-z]{0,6}\.?\s+\d{1,2}(?:st|nd|rd|th)?\Z"
)
_YEAR_FOLLOWS = re.compile(r"\s?\d")
_DATE_LENGTH = 32  # code points within which a month's name and its day are looked for

_WRAPPED_LINE = 40  # a line break after so many code points may be a mere wrap
_SLACK = 0.125  # how far a segment may pass its budget when its end is near: 2 of 16 Hanzi
_SECOND_CLAUSE = 0.4  # least size of a clause after the first: 6 Hanzi or 3 words
_WEAK_CLAUSE = 0.5  # least size of a segment that ends in an enumeration comma
_NEXT_WORD = 5  # code points until a segment could end again: a word and its space
_NEXT_PHRASE = 10  # after a clause mark
_COUNTED_MARKS = (Kind.WEAK_MARK, Kind.CLAUSE_MARK, Kind.SENTENCE_MARK, Kind.FULL_STOP)
_SEMICOLONS = frozenset("；;﹔؛")
_SENTENCE_ENDS = (Boundary.SENTENCE, Boundary.PARAGRAPH)
_LONGEST_CHARACTER = 64  # code points looked back over to keep an emoji sequence whole


_UNCERTAIN = Cut(0, 0, "", Boundary.WORD, CutCause.LENGTH, "zh")  # compared by identity: more text decides


class Segmenter:
    """One utterance's text in, its cuts out. Pull cuts with `next` until it gives None."""

    def __init__(self, *, language: Language | None = None, limits: SegmentLimits | None = None) -> None:
        """`language`: of text without letters, until letters come (default: Chinese)."""
        self._limits = limits = limits or SegmentLimits()
        self._sizes = UnitSizes(limits)
        self._sentences = limits.whole_sentences
        self._max_chars = limits.segment_chars
        self._window = limits.window_tokens if self._sentences else maxsize  # tokens before a cut without a mark
        self._full = min(self._window, limits.segment_tokens)  # tokens of what such a cut would best leave
        self._clause_tokens = maxsize if self._sentences else limits.clause_tokens
        self._too_long = False  # the sentence has more tokens than a segment may have: cut it window by window
        self._language: Language = language or "zh"
        self._incoming: deque[str] = deque()
        self._taken = 0  # of the first incoming string
        self._fed = 0
        self._ended = False
        self._flushes: deque[tuple[int, CutCause]] = deque()  # source positions
        self._tail = ""  # the last characters fed
        self._position = 0
        self._text = ""  # from the segment's start on
        self._line_start = 0  # of the current line, in source positions
        self._spoken = 0.0  # size of all segments since the start or the last flush that cut
        self._pacing = Pacing()
        self._begin_segment()

    # -- input ---------------------------------------------------------------------------------------------------------

    def feed(self, text: str) -> None:
        """Append text. ValueError after `end`."""
        if self._ended:
            raise ValueError("text after the end of the utterance")
        if text:
            self._incoming.append(text)
            self._fed += len(text)
            self._tail = (self._tail + text[-_TAIL:])[-_TAIL:]

    def flush(self, *, soft: bool = False) -> CutCause | None:
        """Ask for a cut after the text fed so far; returns its cause, or None when there is nothing to do.

        Hard: whenever anything is pending. Soft: only where the pending text looks like a finished clause or sentence
        (see `looks_complete`). A cut that punctuation makes at the same place anyway keeps the cause PUNCTUATION.
        """
        if self._ended or self.pending == 0:
            return None
        if self._flushes and self._flushes[-1][0] == self._fed and (soft or self._flushes[-1][1] is CutCause.FLUSH):
            return None
        if soft and not (self._pending_speaks() and looks_complete(self._tail)):
            return None
        cause = CutCause.SOFT_FLUSH if soft else CutCause.FLUSH
        self._flushes.append((self._fed, cause))
        self._tail = ""
        return cause

    def end(self) -> None:
        """No more text comes; `next` gives what is left. Harmless when repeated."""
        self._ended = True

    # -- output --------------------------------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        """Where the next cut starts, in code points of the utterance."""
        return self._position

    @property
    def pending(self) -> int:
        """Code points fed but not yet cut."""
        return self._fed - self._position

    def next(self) -> Cut | None:
        """The next cut, or None until more text, a flush or the end makes one certain. Work is bounded per call."""
        while True:
            self._load()
            end, cause = self._horizon()
            while self._scan < end:
                unit = read_unit(self._text, self._scan, end, final=cause is not None)
                if unit is None:
                    return None
                cut = self._take(unit, end, cause)
                if cut is _UNCERTAIN:
                    return None
                if cut is not None:
                    return cut
            if cause is None:
                if not self._incoming:
                    return None
            else:
                cut = self._close(end, cause)
                if cut is not None or cause is CutCause.END:
                    return cut

    # -- the text window -----------------------------------------------------------------------------------------------

    def _load(self) -> None:
        """Join incoming text until the window is full."""
        room = WINDOW - len(self._text)
        if not self._incoming or room < WINDOW // 2:
            return
        parts = [self._text]
        while self._incoming and room > 0:
            head = self._incoming[0]
            part = head[self._taken : self._taken + room]
            parts.append(part)
            room -= len(part)
            self._taken += len(part)
            if self._taken == len(head):
                self._incoming.popleft()
                self._taken = 0
        self._text = "".join(parts)

    def _horizon(self) -> tuple[int, CutCause | None]:
        """Up to where the window may be read, and what parts it from whatever follows (None: more may come)."""
        end = len(self._text)
        if self._flushes and self._flushes[0][0] <= self._position + end:
            return self._flushes[0][0] - self._position, self._flushes[0][1]
        return end, CutCause.END if self._ended and not self._incoming else None

    def _pending_speaks(self) -> bool:
        """Whether what is pending has a letter or digit, judged by its first and last characters."""
        return any(char.isalnum() for char in self._text[:_TAIL] + self._tail[-self.pending :])

    # -- one segment ---------------------------------------------------------------------------------------------------

    def _begin_segment(self) -> None:
        self._scan = 0
        self._seen = 0  # end of the unit being looked at
        self._deadline = self._pacing.deadline - self._position  # in the window
        self._tokens = 0
        self._size = 0.0  # 1.0 = as much as the first segment may hold
        self._most = self._full if self._too_long else self._limits.segment_tokens
        self._speaks = False
        self._before: Unit | None = None  # the last unit that is no space
        self._places = Places(self._full)
        self._furthest: Place | None = None  # the last start of a unit within the window: better than none

    def _take(self, unit: Unit, end: int, cause: CutCause | None) -> Cut | None:
        """Add a unit to the segment; a cut if that completes one, `_UNCERTAIN` if the next character decides."""
        self._seen = unit.end
        if unit.end > self._max_chars:
            return self._cut_overlong(unit, end)
        kind = unit.kind
        if self._sentences and self._tokens and self._tokens + self._mark_tokens(unit) > self._most:
            self._too_long = True
            return self._cut_inside(unit, end, max(1.0, 2 * self._spoken))
        if kind is Kind.NEWLINE:
            wrapped = self._is_wrapped(unit, end, cause)
            if wrapped is None:
                return _UNCERTAIN
            self._line_start = self._position + unit.end
            if self._speaks and not wrapped:
                return self._cut(unit.end, Boundary.PARAGRAPH, CutCause.PUNCTUATION)
        elif kind is Kind.SENTENCE_MARK:
            if self._follows_speech(unit):
                return self._cut(unit.end, Boundary.SENTENCE, CutCause.PUNCTUATION)
        elif kind is Kind.FULL_STOP:
            return self._take_full_stop(unit, end, cause)
        elif kind in (Kind.CLAUSE_MARK, Kind.WEAK_MARK):
            return self._take_clause_mark(unit, end, cause)
        elif kind is not Kind.SPACE:
            return self._take_speech(unit, end, cause)
        self._advance(unit)
        return None

    def _advance(self, unit: Unit) -> None:
        self._scan = unit.end
        if self._sentences:
            self._tokens += self._mark_tokens(unit)
        if unit.kind not in (Kind.SPACE, Kind.NEWLINE):
            self._before = unit

    def _mark_tokens(self, unit: Unit) -> int:
        return self._sizes.of_mark(self._text[unit.start : unit.end]) if unit.kind in _COUNTED_MARKS else 0

    def _follows_speech(self, unit: Unit) -> bool:
        """False for a "!" or "?" that stands alone ("a != b", "![image]") or before anything was said."""
        return self._speaks and (self._text[unit.start] not in "!?" or not self._text[unit.start - 1].isspace())

    def _is_wrapped(self, unit: Unit, end: int, cause: CutCause | None) -> bool | None:
        """Whether a line break only wraps a long English line: it then counts as a space. None: not known yet."""
        length = self._position + unit.start - self._line_start
        before = self._text[unit.start - 1] if unit.start else " "
        if length < _WRAPPED_LINE or not (before == "," or (before.isascii() and before.isalnum())):
            return False
        if unit.end == end:
            return None if cause is None else False
        return "a" <= self._text[unit.end] <= "z"

    def _take_full_stop(self, unit: Unit, end: int, cause: CutCause | None) -> Cut | None:
        if not self._speaks or self._text[unit.start - 1].isspace():
            self._advance(unit)
            return None
        before = self._before
        word, first = "", False
        if before is not None and before.end == unit.start and before.kind in (Kind.WORD, Kind.NUMBER):
            word = self._text[before.start : before.end]
            first = not any(char.isalnum() for char in self._text[: before.start])
        stop = judge_full_stop(word, first, self._text, unit.end, end, final=cause is not None)
        if stop is Stop.UNKNOWN:
            return _UNCERTAIN
        if stop is Stop.GOES_ON:
            self._advance(unit)
            return None
        closed = unit.end < end and self._text[unit.end] in CLOSERS
        at_horizon = unit.end == end and cause is not None and cause is not CutCause.END
        reason = cause if at_horizon and cause is not None else CutCause.PUNCTUATION
        return self._cut(unit.end + closed, Boundary.SENTENCE, reason)

    def _take_clause_mark(self, unit: Unit, end: int, cause: CutCause | None) -> Cut | None:
        weak = unit.kind is Kind.WEAK_MARK
        if not self._speaks:
            self._advance(unit)
            return None
        date_start = max(0, unit.start - _DATE_LENGTH)
        if self._text[unit.start] == "," and _MONTH_DAY.search(self._text, date_start, unit.start):
            if cause is None and self._text[unit.end : end] in ("", " "):
                return _UNCERTAIN
            if _YEAR_FOLLOWS.match(self._text, unit.end, end):
                self._advance(unit)
                return None
        late = unit.end + _NEXT_PHRASE > self._deadline
        if self._size >= self._least_clause(weak) or self._tokens >= self._clause_tokens or late:
            return self._cut(unit.end, Boundary.CLAUSE, CutCause.PUNCTUATION)
        self._advance(unit)
        if self._tokens <= self._window:
            rating = Break.WEAK_MARK if weak else Break.CLAUSE_MARK
            if self._sentences and self._text[unit.start] in _SEMICOLONS:
                rating = Break.STRONG_MARK
            self._places.add(Place(unit.end, self._tokens, self._size, self._line_start, rating, unit, unit))
        return None

    def _least_clause(self, weak: bool) -> float:
        """The size from which a clause mark ends a segment: any at first, then as much as was said so far."""
        least = 0.0 if self._spoken == 0 else max(_SECOND_CLAUSE, self._spoken)
        return max(least, _WEAK_CLAUSE) if weak else least

    def _take_speech(self, unit: Unit, end: int, cause: CutCause | None) -> Cut | None:
        """A word, number, Hanzi, URL or symbol: count it; cut before it when the segment is full."""
        before = self._before
        spaced = before is not None and before.end < unit.start
        unit, tokens, size = self._sizes.of(self._text, unit, spaced=spaced)
        fits = self._tokens <= self._window or self._furthest is None
        place = self._place_before(unit) if self._tokens and fits else None
        if place is not None and not self._tears(unit):
            self._furthest = place
        if tokens and (self._speaks or (self._sentences and self._tokens)):
            full = self._tokens + tokens > self._most
            budget = max(1.0, 2 * self._spoken)
            long = self._size + size > budget * (1 + _SLACK)
            if full or long:
                if cause is None and unit.end == end:
                    return _UNCERTAIN
                if full or not (unit.end < end and self._text[unit.end] in _MARKS):
                    self._too_long |= full and self._sentences
                    return self._cut_inside(unit, end, budget, place)
            ahead = 1 if unit.kind is Kind.HANZI else _NEXT_WORD
            if unit.end + ahead > self._deadline and (cut := self._cut_in_time(unit, place)) is not None:
                return cut
        if place is not None and place.before.kind < Kind.WEAK_MARK:
            self._places.add(place)
        self._tokens += tokens
        self._size += size
        self._speaks = self._speaks or size > 0
        self._advance(unit)
        return None

    def _place_before(self, unit: Unit) -> Place:
        return Place(unit.start, self._tokens, self._size, self._line_start, None, self._before or unit, unit)

    def _tears(self, unit: Unit) -> bool:
        """Whether a cut before the unit would tear an emoji; clauses are never so full of them."""
        touchy = self._sentences and unit.kind in (Kind.SYMBOL, Kind.WORD)
        return touchy and splits_character(self._text[unit.start - 1], self._text[unit.start])

    # -- making cuts ---------------------------------------------------------------------------------------------------

    def _cut_inside(self, unit: Unit, end: int, budget: float, newest: Place | None = None) -> Cut:
        """The segment is full before `unit`: end it at the best place so far."""
        best, rating = self._places.best(self._text[:end], budget, newest)
        if best is not None:
            return self._cut_at(best, rating)
        place = self._furthest or self._place_before(unit)
        before = place.before
        sign = before.kind is Kind.SYMBOL and before.start > 0 and before.end == place.at
        if sign and not self._tears(before):
            place.at = before.start  # it goes with its number
        return self._cut_at(place, Break.NONE)

    def _cut_in_time(self, unit: Unit, newest: Place | None) -> Cut | None:
        """The sound so far ends soon: end the segment before `unit` or earlier, if there is a fair place."""
        # What follows the unit may not have arrived, so it must not count.
        best, rating = self._places.best(self._text[: unit.end], self._size, newest)
        if best is not None and (rating >= Break.FAIR or unit.end > self._deadline):
            return self._cut_at(best, rating)
        return None

    def _cut_at(self, place: Place, rating: Break) -> Cut:
        self._size = place.size
        self._line_start = place.line_start
        return self._cut(place.at, Boundary.CLAUSE if rating >= Break.WEAK_MARK else Boundary.WORD, CutCause.LENGTH)

    def _cut_overlong(self, unit: Unit, end: int) -> Cut:
        """More text than a segment may have: it says next to nothing (spaces, symbols), or it has long words."""
        at = self._max_chars
        if self._sentences:
            best, rating = self._places.best(self._text[:end], max(1.0, 2 * self._spoken))
            self._too_long = self._speaks
            if best is not None:
                return self._cut_at(best, rating)
            at = unit.start if unit.kind is not Kind.SPACE else at
        while at > self._max_chars - _LONGEST_CHARACTER and splits_character(self._text[at - 1], self._text[at]):
            at -= 1
        return self._cut(at, Boundary.WORD, CutCause.LENGTH)

    def _close(self, end: int, cause: CutCause) -> Cut | None:
        """Everything before a flush or the end was read: cut what is left of it."""
        if cause is not CutCause.END:
            self._flushes.popleft()
        if end == 0 or (cause is CutCause.SOFT_FLUSH and not self._speaks):
            return None
        last = self._before
        ends_clause = last is not None and last.kind in (Kind.CLAUSE_MARK, Kind.WEAK_MARK)
        whole = cause is CutCause.END or (last is not None and last.kind in (Kind.SENTENCE_MARK, Kind.FULL_STOP))
        boundary = Boundary.CLAUSE if ends_clause or not whole else Boundary.SENTENCE
        return self._cut(end, boundary, cause)

    def _cut(self, at: int, boundary: Boundary, cause: CutCause) -> Cut:
        text = self._text[:at]
        self._language = dominating_language(text, self._language)
        cut = Cut(self._position, self._position + at, text, boundary, cause, self._language)
        flushed = cause in (CutCause.FLUSH, CutCause.SOFT_FLUSH)
        self._spoken = 0.0 if flushed else self._spoken + self._size
        if flushed or boundary in _SENTENCE_ENDS:
            self._too_long = False
        if flushed:
            self._pacing.flushed(cut.end)
        else:
            self._pacing.cut(text, boundary, self._position + max(at, self._seen))
        if flushed and self._flushes and self._flushes[0][0] == cut.end:
            self._flushes.popleft()
        self._text = self._text[at:]
        self._position = cut.end
        self._begin_segment()
        return cut
