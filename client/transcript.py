"""What one utterance was asked to say, and how far that is said: enough to go on from there in another session. Pure.

Text is forgotten once its segment was received as a whole. Positions and samples are those of this session's timeline.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from client.saved import SavedSession
from protocol.client_messages import End, Flush, Silence, Start, Text
from protocol.server_messages import SegmentBegin, SegmentEnd, Timing, Word

REMEMBERED_WORDS: Final = 1_024  # minutes of speech: further back nobody asks what was heard
MERGE_CHARS: Final = 1_024  # pieces of text are joined up to this length: a writer may send single characters
Piece: TypeAlias = str | Silence | Flush


@dataclass(slots=True)
class _Segment:
    number: int
    start: int
    end: int
    first_sample: int
    is_silence: bool
    samples: int | None = None
    words: list[Word] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Rest:
    """What is left to say. `position`: the characters before it were heard."""

    position: int
    start: Start
    pieces: tuple[Piece, ...]
    ended: bool

    def messages(self, max_chars: int) -> list[Start | Text | Silence | Flush | End]:
        """What says it, in messages of at most so many characters; `seq` is still to be filled in."""
        made: list[Start | Text | Silence | Flush | End] = [self.start]
        for piece in self.pieces:
            if isinstance(piece, str):
                made += [Text(0, piece[at : at + max_chars]) for at in range(0, len(piece), max_chars)]
            else:
                made.append(piece)
        return [*made, End(0)] if self.ended else made


class Transcript:
    """Follows the messages of an utterance, and the server's events about it."""

    def __init__(self, start: Start) -> None:
        self.start = start
        self.ended = False
        self.segments = 0  # that began
        self.replays = False  # the server restarted: it may tell again what it told before
        self._pieces: deque[Piece] = deque()
        self._forgotten = 0  # characters before the first piece
        self._open: deque[_Segment] = deque()  # announced, and not yet received as a whole
        self._told = -1  # the highest segment number that began
        self._ends: deque[tuple[int, int]] = deque(maxlen=REMEMBERED_WORDS)  # of words: sample, text position

    @classmethod
    def of(cls, rest: Rest) -> "Transcript":
        """Of what is left of another one."""
        transcript = cls(rest.start)
        transcript.ended = rest.ended
        transcript._pieces.extend(rest.pieces)
        return transcript

    def go_on(self, saved: SavedSession, ended: bool) -> None:
        """Another process followed the utterance until now. What that was asked to say is not known here."""
        self.ended, self._told = ended, saved.told
        for each in saved.segments:
            words = list(each.words)
            self._open.append(
                _Segment(each.number, each.start, each.end, each.first_sample, each.is_silence, each.samples, words)
            )

    # ---- what is asked for ----

    def write(self, text: str) -> None:
        """More text."""
        if self._pieces and isinstance(last := self._pieces[-1], str) and len(last) + len(text) <= MERGE_CHARS:
            self._pieces[-1] = last + text
        elif text:
            self._pieces.append(text)

    def silence(self, ms: int) -> None:
        """Then silence."""
        self._pieces.append(Silence(0, ms))

    def flush(self, soft: bool) -> None:
        """A cut here."""
        if self._pieces and self._pieces[-1] not in (Flush(0, soft), Flush(0, False)):
            self._pieces.append(Flush(0, soft))

    # ---- what is told ----

    def begin(self, event: SegmentBegin) -> bool:
        """A segment begins. False: that was told before."""
        if self.replays and event.segment <= self._told:
            return False
        self._told = max(self._told, event.segment)
        self.segments += 1
        silent = event.kind == "silence"
        self._open.append(_Segment(event.segment, event.start, event.end, event.first_sample, silent))
        return True

    def timing(self, event: Timing) -> Timing | None:
        """Words. Gives those that are new; None where none is."""
        segment = self._find(event.segment)
        if segment is None:
            return None if self.replays and event.segment <= self._told else event
        if self.replays:
            known = {(word.start, word.end, word.first_sample) for word in segment.words}
            words = tuple(word for word in event.words if (word.start, word.end, word.first_sample) not in known)
            if not words and event.words:
                return None
            event = replace(event, words=words)
        segment.words.extend(event.words)
        self._ends.extend((word.end_sample, word.end) for word in event.words)
        return event

    def end(self, event: SegmentEnd) -> bool:
        """A segment is complete. False: that was told before."""
        segment = self._find(event.segment)
        if segment is None:
            return not (self.replays and event.segment <= self._told)
        if self.replays and segment.samples is not None:
            return False
        segment.samples = event.samples
        if not segment.words:
            self._ends.append((segment.first_sample + event.samples, segment.end))
        return True

    def received(self, sample: int) -> None:
        """Audio is here up to this sample: forgets what need not be said again."""
        while (
            self._open and (first := self._open[0]).samples is not None and first.first_sample + first.samples <= sample
        ):
            self._forget(first)
            self._open.popleft()

    def heard_text_end(self, played: int) -> int:
        """The end of the last word that was played to its end; of the last segment where words have no times."""
        return next((end for sample, end in reversed(self._ends) if sample <= played), 0)

    def rest(self, received: int, at_least: int, sample_rate: int) -> Rest:
        """What to say again after audio up to `received`: from the word on in which it broke off.

        Without word times from the segment's start on; never before `at_least`, a position the server named, where the
        text has that position.
        """
        pieces = deque(self._pieces)
        position = self._forgotten
        if self._open:
            segment = self._open[0]
            if segment.is_silence:
                _shorten_silence(pieces, received - segment.first_sample, sample_rate)
            else:
                position = max(position, _broke_off(segment, received))
        total = self._forgotten + sum(len(piece) for piece in pieces if isinstance(piece, str))
        if at_least <= total:
            position = max(position, at_least)
        _drop_text(pieces, position - self._forgotten)
        return Rest(position, self.start, tuple(pieces), self.ended)

    # ---- inside ----

    def _find(self, number: int) -> _Segment | None:
        return next((segment for segment in self._open if segment.number == number), None)

    def _forget(self, segment: _Segment) -> None:
        if not segment.is_silence:
            _drop_text(self._pieces, segment.end - self._forgotten)
            self._forgotten = max(self._forgotten, segment.end)
            return
        while self._pieces and isinstance(self._pieces[0], Flush):
            self._pieces.popleft()
        if self._pieces and isinstance(self._pieces[0], Silence):
            self._pieces.popleft()


def _broke_off(segment: _Segment, received: int) -> int:
    """The text position at which a segment was when its audio broke off."""
    for index, word in enumerate(segment.words):
        if word.end_sample > received:
            return segment.start if index == 0 else word.start
    if not segment.words:
        return segment.start
    return segment.end if segment.samples is not None else segment.words[-1].end


def _drop_text(pieces: deque[Piece], characters: int) -> None:
    """Removes so many characters from the front, and the silences and flushes among them."""
    while pieces and characters > 0:
        piece = pieces.popleft()
        if isinstance(piece, str):
            if len(piece) > characters:
                pieces.appendleft(piece[characters:])
            characters -= len(piece)


def _shorten_silence(pieces: deque[Piece], heard: int, sample_rate: int) -> None:
    """The first silence is what is playing: only the rest of it is left."""
    while pieces and isinstance(pieces[0], Flush):
        pieces.popleft()
    if pieces and isinstance(silence := pieces[0], Silence):
        left = silence.ms - max(0, heard) * 1_000 // sample_rate
        pieces.popleft()
        if left > 0:
            pieces.appendleft(Silence(0, left))
