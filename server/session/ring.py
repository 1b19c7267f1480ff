"""The timeline on its way to the client: what it has not confirmed yet, and what still waits to be sent.

    oldest unacked ... newest sent | next to send ... newest made
    ------------- kept ----------- | ----------- waiting ---------

What is kept was sent and is kept until the client has it, so that a new connection can go on where the old one broke.
Payloads stay as they were coded; only the split between the two sides moves.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from protocol import server_messages as s
from protocol.frames import HEADER, AudioFrame, Codec
from server.session.entries import Entry, Item, Place, answers_first, end_of, split
from server.session.opus_tail import OpusTail

MAX_EVENTS: Final = 2_048  # segments without sound are bounded by this, audio by `read_ahead_ms`


class RangeError(Exception):
    """The client asks to go on from where nothing is kept, or from what was never sent."""


class Ring:
    """See the module text. The session looks at the bounds before it adds more."""

    def __init__(self) -> None:
        self.samples = 0  # of the audio that waits
        self.kept_samples = 0
        self.bytes = 0  # of everything
        self.floor: Place = (0, 0)  # all audio up to here was confirmed and is gone
        self.last_sent: Place = (0, 0)  # on this connection
        self.furthest: Place = (0, 0)  # on any: a client may have got the last words of the one before
        self._kept: deque[Entry] = deque()
        self._waiting: deque[Entry] = deque()
        self._tail = OpusTail()
        self._items: Counter[int] = Counter()  # that wait, by utterance
        self._events = 0  # that wait
        self._cancelled = 0  # of these, `cancelled`: answers, too
        self._numbered = 0  # of these, with a number: only after a resume, and nothing goes before them
        self._kept_frames: Counter[int] = Counter()  # by utterance
        self._kept_events = 0
        self._first_kept_event = 1  # events before it are confirmed or gone

    # ---- bounds ----

    @property
    def empty(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting

    @property
    def all_confirmed(self) -> bool:
        """Whether the client has everything."""
        return not self._waiting and not self._kept

    @property
    def cancelled_ready(self) -> int:
        """How many `cancelled` wait for nothing but a client that reads."""
        return 0 if self._numbered else self._cancelled

    @property
    def cancelled_blocked(self) -> int:
        """How many wait behind events that have a number, and so perhaps for acks of the audio between those."""
        return self._cancelled if self._numbered else 0

    @property
    def full_of_events(self) -> bool:
        """Whether no more segments should be rendered."""
        return self._events >= MAX_EVENTS

    @property
    def audio_waits(self) -> bool:
        """Whether audio waits to be sent."""
        return self.samples > 0

    # ---- made, sent, confirmed ----

    @property
    def head(self) -> Entry | None:
        """What is to be sent next."""
        return self._waiting[0] if self._waiting else None

    def following(self) -> Iterator[Entry]:
        """Everything that waits, the head first."""
        return iter(self._waiting)

    def add(self, item: Item, after_record: int = 0) -> None:
        """Something was made."""
        self._enter(Entry(item, after_record))

    def _enter(self, entry: Entry) -> None:
        self._waiting.append(entry)
        self._count(entry, 1)
        self.bytes += entry.size

    def insert(self, events: Sequence[s.Event], after_record: int = 0) -> None:
        """Events that do not wait for the audio of others: they are sent next, after those that have a number."""
        entries = [Entry(event, after_record) for event in events]
        first = []
        numbered = self._numbered
        while numbered:
            entry = self._waiting.popleft()
            numbered -= entry.number > 0
            first.append(entry)
        self._waiting.extendleft(reversed(first + entries))
        for entry in entries:
            self._count(entry, 1)
            self.bytes += entry.size

    def sent(self) -> Entry:
        """The head goes out now; it is kept until it is confirmed."""
        entry = self._waiting.popleft()
        self._count(entry, -1)
        self._keep(entry)
        return entry

    def _keep(self, entry: Entry) -> None:
        self._kept.append(entry)
        if isinstance(entry.item, AudioFrame):
            self.kept_samples += entry.item.count
            self._kept_frames[entry.item.utterance] += 1
            self.last_sent = max(self.last_sent, end_of(entry.item))
            self.furthest = max(self.furthest, self.last_sent)
            return
        self._kept_events += 1
        if self._kept_events > MAX_EVENTS:  # a client that confirms no events cannot have them again
            self._forget(next(each for each in self._kept if not isinstance(each.item, AudioFrame)))

    def _forget(self, entry: Entry) -> None:
        self._kept.remove(entry)
        self._kept_events -= 1
        self._first_kept_event = entry.number + 1
        self.bytes -= entry.size

    def split_head(self, samples: int) -> None:
        """Cut the head, a PCM frame, after so many samples."""
        entry = self._waiting.popleft()
        first, second = split(entry, samples)
        self._waiting.extendleft((second, first))
        self._items[first.item.utterance] += 1
        self.bytes += HEADER.size

    def confirm(self, place: Place, event: int) -> list[Entry]:
        """The client has everything before `place`, and all events up to `event`. Returns what is kept no longer.

        A connection delivers in order: who has one thing has all that was sent before it.
        """
        count = 0
        audio_over, events_over = False, event < self._first_kept_event
        for at, entry in enumerate(self._kept, 1):
            if isinstance(entry.item, AudioFrame):
                if not entry.item.count:
                    continue  # nothing confirms an empty frame but what comes after it
                if end_of(entry.item) <= place:
                    count = at
                else:
                    audio_over = True
            elif entry.number <= event:
                count = at
            else:
                events_over = True
            if audio_over and events_over:
                break
        return [self._drop_first() for _ in range(count)]

    def _drop_first(self) -> Entry:
        entry = self._kept.popleft()
        self.bytes -= entry.size
        if isinstance(entry.item, AudioFrame):
            self.kept_samples -= entry.item.count
            _decrease(self._kept_frames, entry.item.utterance)
            self._gone(entry)
        else:
            self._kept_events -= 1
            self._first_kept_event = entry.number + 1
        return entry

    def _gone(self, entry: Entry) -> None:
        """The client has this frame."""
        assert isinstance(entry.item, AudioFrame)
        self.floor = max(self.floor, end_of(entry.item))
        self._tail.confirmed(entry.item, entry.after_record)

    # ---- a new connection ----

    def check(self, place: Place, events_seen: int, last_event: int) -> None:
        """Raises RangeError where a client that has this much cannot be served."""
        if events_seen > last_event:
            raise RangeError(f"event {events_seen} was not sent, the last is {last_event}")
        if events_seen < self._first_kept_event - 1:
            raise RangeError(f"events from {events_seen + 1} on are gone: they were confirmed")
        if place > self.furthest:
            raise RangeError(f"sample {place[1]} of utterance {place[0]} was not sent")
        if place < self.floor:
            raise RangeError(f"sample {place[1]} of utterance {place[0]} is gone: it was confirmed")

    def rewind(self, place: Place, events_seen: int, preroll: int | None) -> None:
        """Everything that a client with this much lacks waits again, cut to the sample. Opus packets stay whole;
        `preroll` not None: as many coded samples before `place` come again.

        What waits already is looked at, too: the client may have got more than it had when it came back before.
        """
        entries = [*self._kept, *self._waiting]
        for entry in self._waiting:
            self._count(entry, -1)
        self._kept.clear()
        self._waiting.clear()
        self._kept_frames.clear()
        self.kept_samples = self._kept_events = 0
        lacking = [rest for entry in entries if (rest := self._lacking(entry, place, events_seen)) is not None]
        if preroll is not None:
            warm = self._tail.before(place, preroll)
            self.bytes += sum(entry.size for entry in warm)
            lacking = warm + lacking
        self._waiting.extend(answers_first(lacking))
        for entry in lacking:
            self._count(entry, 1)
        self.last_sent = place

    def _lacking(self, entry: Entry, place: Place, events_seen: int) -> Entry | None:
        """What such a client lacks of an entry."""
        item = entry.item
        if not isinstance(item, AudioFrame):
            if not entry.number or entry.number > events_seen:
                return entry
            self.bytes -= entry.size
            self._first_kept_event = max(self._first_kept_event, entry.number + 1)
            return None
        if end_of(item) <= place and (item.count or item.utterance < place[0]):
            self.bytes -= entry.size
            self._gone(entry)
            return None
        if item.codec is Codec.PCM and (item.utterance, item.first_sample) < place < end_of(item):
            self.bytes -= entry.size
            self.floor = max(self.floor, place)
            entry = split(entry, place[1] - item.first_sample)[1]
            self.bytes += entry.size
        return entry

    def begin(self, place: Place, events_seen: int) -> None:
        """A client who has this much goes on with a ring that is empty."""
        self.floor = self.last_sent = self.furthest = place
        self._first_kept_event = events_seen + 1

    # ---- cancel ----

    def cancel(self, *utterances: int) -> None:
        """Forget what waits of utterances, and their audio that is kept; events that were sent keep their place.

        Costs little where there is nothing.
        """
        waiting = {each for each in utterances if self._items.pop(each, 0)}
        if waiting:
            self._waiting = deque(self._without(self._waiting, waiting, waiting=True))
        kept = {each for each in utterances if self._kept_frames.pop(each, 0)}
        if kept:
            self._kept = deque(self._without(self._kept, kept, waiting=False))

    def _without(self, entries: deque[Entry], utterances: Collection[int], *, waiting: bool) -> Iterator[Entry]:
        for entry in entries:
            if entry.item.utterance not in utterances or not (waiting or isinstance(entry.item, AudioFrame)):
                yield entry
                continue
            if entry.number:  # sent before a resume: its number is taken, so it must come
                self._items[entry.item.utterance] += not isinstance(entry.item, s.Cancelled)
                yield entry
                continue
            self.bytes -= entry.size
            if not isinstance(entry.item, AudioFrame):
                self._events -= 1
            elif waiting:
                self.samples -= entry.item.count
            else:
                self.kept_samples -= entry.item.count

    def _count(self, entry: Entry, by: int) -> None:
        item = entry.item
        if isinstance(item, AudioFrame):
            self.samples += by * item.count
        else:
            self._events += by
            self._numbered += by * (entry.number > 0)
            if isinstance(item, s.Cancelled):
                self._cancelled += by
                return  # its utterance is over: there is nothing left to cancel
        self._items[item.utterance] += by
        if not self._items[item.utterance]:
            del self._items[item.utterance]


def _decrease(counter: Counter[int], key: int) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
