"""What of a text is in the file: follows the events that came with the audio. Pure.

Positions of the text and samples are the file's own, over all utterances; `SavedSegment` has those of its utterance.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from client.captions import Span
from client.saved import SavedSegment
from protocol.server_messages import Event, SegmentBegin, SegmentEnd, Timing, Word


@dataclass(frozen=True, slots=True)
class Place:
    """A boundary between segments: the text before it is spoken whole by the samples before it."""

    text: int = 0
    samples: int = 0


START: Final = Place()
DEGRADED_SHOWN: Final = 3
MAX_REASON: Final = 200  # characters of it that are kept


@dataclass(slots=True)
class _Open:
    segment: SavedSegment
    words: list[Word] = field(default_factory=list)


class Degraded:
    """The segments in the file that do not sound as they should. `places`: where the first few begin in the text, and
    why.
    """

    def __init__(self) -> None:
        self.segments = 0
        self.places: list[tuple[int, str]] = []

    def add(self, position: int, reason: str) -> None:
        """Another one."""
        self.segments += 1
        if len(self.places) < DEGRADED_SHOWN:
            self.places.append((position, reason))

    def __str__(self) -> str:
        """One line for the user."""
        what = "1 segment does" if self.segments == 1 else f"{self.segments} segments do"
        places = ", ".join(f"at character {at:,}" + (f" ({reason})" if reason else "") for at, reason in self.places)
        more = self.segments - len(self.places)
        return f"{what} not sound as intended: {places}" + (f" and {more} more" if more else "")


class Ledger:
    """`whole`: the last boundary in the file. `event` and `told`: the last event, and segment, of the session.
    `degraded`: of the segments that became whole in this run.
    """

    def __init__(self, whole: Place) -> None:
        self.degraded = Degraded()
        self.whole = self.begun = whole  # `begun`: where the present utterance does
        self.event = 0
        self.told = 0
        self._open: deque[_Open] = deque()  # announced and not yet whole; the server's window bounds it

    @property
    def open_segments(self) -> tuple[SavedSegment, ...]:
        """Those that are not whole."""
        return tuple(replace(each.segment, words=tuple(each.words)) for each in self._open)

    def begin(self, begun: Place, segments: Sequence[SavedSegment] = (), event: int = 0, told: int = 0) -> None:
        """An utterance begins there; or goes on, with these segments."""
        self.begun, self.event, self.told = begun, event, told
        self._open = deque(_Open(segment, list(segment.words)) for segment in segments)

    def take(self, event: Event) -> None:
        """An event, in its order among the audio."""
        self.event = max(self.event, event.event)
        match event:
            case SegmentBegin():
                self._break_off(event.first_sample)
                self.told = max(self.told, event.segment)
                silent = event.kind == "silence"
                self._open.append(
                    _Open(SavedSegment(event.segment, event.start, event.end, event.first_sample, silent, None, "", ()))
                )
            case Timing():
                if (found := self._find(event.segment)) is not None:
                    found.words += event.words
            case SegmentEnd():
                if (found := self._find(event.segment)) is not None:
                    found.segment = replace(
                        found.segment, samples=event.samples, digest=event.digest,
                        degraded=event.reason[:MAX_REASON] if event.degraded else None,
                    )  # fmt: skip
            case _:
                pass

    def advance(self, samples: int) -> list[Span]:
        """The file holds so many samples. Gives the words of the segments that are whole now.

        A segment whose words have no times is one word.
        """
        spans: list[Span] = []
        while self._open and (first := self._open[0].segment).samples is not None:
            end = self.begun.samples + first.first_sample + first.samples
            if end > samples:
                break
            spans += self._spans(self._open.popleft())
            if first.degraded is not None:
                self.degraded.add(self.begun.text + first.start, first.degraded)
            self.whole = Place(max(self.whole.text, self.begun.text + first.end), end)
        return spans

    def spoken(self, samples: int) -> int:
        """About how much of the text sounds in so many samples: by words that end before, else by the share of the
        segment that is open, of which only the pace of the whole segments before may be known.
        """
        whole, at = self.whole, samples - self.begun.samples
        position = whole.text
        for each in self._open:
            segment = each.segment
            if segment.first_sample >= at:
                break
            if each.words:
                position = max(
                    [position, *(self.begun.text + word.end for word in each.words if word.end_sample <= at)]
                )
                continue
            characters, length = segment.end - segment.start, segment.samples
            if length is None and whole.text:
                length = characters * whole.samples // whole.text
            if length:
                share = min(characters, characters * (at - segment.first_sample) // length)
                position = max(position, self.begun.text + segment.start + share)
        return position

    def rest(self, samples: int) -> list[Span]:
        """Words of segments that broke off, as far as they sound in so many samples."""
        return [span for each in self._open for span in self._spans(each) if span[2] < samples]

    def _break_off(self, at: int) -> None:
        """Another session says the rest of what was open: what it says again did not sound before."""
        for each in self._open:
            if each.segment.samples is None:
                each.words = [word for word in each.words if word.end_sample <= at]
                end = max((word.end for word in each.words), default=each.segment.start)
                each.segment = replace(each.segment, samples=max(0, at - each.segment.first_sample), end=end)

    def _spans(self, each: _Open) -> list[Span]:
        segment, text, samples = each.segment, self.begun.text, self.begun.samples
        words = [(word.start, word.end, word.first_sample, word.end_sample) for word in each.words]
        if not words and segment.samples and segment.end > segment.start and not segment.is_silence:
            words = [(segment.start, segment.end, segment.first_sample, segment.first_sample + segment.samples)]
        return [(start + text, end + text, first + samples, last + samples) for start, end, first, last in words]

    def _find(self, number: int) -> _Open | None:
        return next((each for each in self._open if each.segment.number == number), None)
