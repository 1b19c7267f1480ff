"""What waits to be sent: answers first, then events and audio in the order of the timeline."""

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final, TypeAlias

from protocol import server_messages as s
from protocol.frames import AudioFrame

Item: TypeAlias = s.Event | AudioFrame

MAX_ANSWERS: Final = 64  # pongs, `cancelled` and the like that a client has not read
MAX_EVENTS: Final = 2_048  # segments without sound are bounded by this, audio by `read_ahead_ms`


class Outbox:
    """Two queues and what is in them; the session looks at the bounds before it adds more."""

    def __init__(self) -> None:
        self.samples = 0  # of the audio in it
        self._answers: deque[s.ServerMessage] = deque()
        self._timeline: deque[Item] = deque()
        self._items: Counter[int] = Counter()  # in the timeline, by utterance
        self._events = 0  # in the timeline
        self._cancelled = 0  # of these, `cancelled`: answers, too

    @property
    def empty(self) -> bool:
        """Whether nothing of any utterance waits."""
        return not self._timeline

    @property
    def answers_wait(self) -> bool:
        """Whether an answer is still to be sent."""
        return bool(self._answers)

    @property
    def full_of_answers(self) -> bool:
        """Whether no more messages should be read from this client before it reads."""
        return len(self._answers) + self._cancelled >= MAX_ANSWERS

    @property
    def full_of_events(self) -> bool:
        """Whether no more segments should be rendered."""
        return self._events >= MAX_EVENTS

    @property
    def head(self) -> Item | None:
        """What the timeline has to send next."""
        return self._timeline[0] if self._timeline else None

    def answer(self, message: s.ServerMessage) -> None:
        """Queue an answer."""
        self._answers.append(message)

    def next_answer(self) -> s.ServerMessage | None:
        """Take the next answer."""
        return self._answers.popleft() if self._answers else None

    def add(self, item: Item) -> None:
        """Queue an event or audio."""
        self._timeline.append(item)
        self._count(item, 1)

    def take(self) -> Item:
        """Take the timeline's head."""
        item = self._timeline.popleft()
        self._count(item, -1)
        return item

    def cancel(self, utterance: int) -> None:
        """Forget what waits of an utterance. Costs nothing where nothing does."""
        if not self._items.pop(utterance, 0):
            return
        kept: deque[Item] = deque()
        for item in self._timeline:
            if item.utterance != utterance:
                kept.append(item)
            elif isinstance(item, AudioFrame):
                self.samples -= item.count
            else:
                self._events -= 1
        self._timeline = kept

    def tell_cancelled(self, events: Sequence[s.Cancelled]) -> None:
        """Queue these before everything else: they do not wait for the audio of others."""
        self._timeline.extendleft(reversed(events))
        for event in events:
            self._count(event, 1)

    def _count(self, item: Item, by: int) -> None:
        if isinstance(item, AudioFrame):
            self.samples += by * item.count
        else:
            self._events += by
            if isinstance(item, s.Cancelled):
                self._cancelled += by
                return  # its utterance is over: there is nothing left to cancel
        self._items[item.utterance] += by
        if not self._items[item.utterance]:
            del self._items[item.utterance]
