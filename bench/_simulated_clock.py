"""Virtual time: a queue of what happens when. Nothing waits: an hour of a link passes as fast as it can be computed."""

import heapq
from collections.abc import Callable
from typing import TypeAlias

Action: TypeAlias = Callable[[], object]


class Event:
    """Something that will happen; `cancel` makes it not happen."""

    __slots__ = ("action", "at", "order")

    def __init__(self, at: float, order: int, action: Action) -> None:
        self.at = at
        self.order = order
        self.action: Action | None = action

    def cancel(self) -> None:
        """Forget it."""
        self.action = None

    def __lt__(self, other: "Event") -> bool:
        return (self.at, self.order) < (other.at, other.order)


class Clock:
    """Seconds since the beginning. Events of one moment happen in the order they were asked for."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self._events: list[Event] = []
        self._asked = 0

    def at(self, when: float, action: Action) -> Event:
        """Do this at `when`; a time that has passed means now, after what is already due."""
        self._asked += 1
        event = Event(max(when, self.now), self._asked, action)
        heapq.heappush(self._events, event)
        return event

    def after(self, seconds: float, action: Action) -> Event:
        """Do this so many seconds from now."""
        return self.at(self.now + seconds, action)

    def run(self, until: float) -> None:
        """Let everything up to `until` happen."""
        events = self._events
        while events and events[0].at <= until:
            event = heapq.heappop(events)
            if event.action is not None:
                self.now = event.at
                event.action()
        self.now = max(self.now, until)


class Alarm:
    """One event that is moved about: asked for again and again, it costs one entry in the queue, not one each time."""

    def __init__(self, clock: Clock, action: Action) -> None:
        self._clock = clock
        self._action = action
        self._due: float | None = None
        self._event: Event | None = None

    def set(self, due: float | None) -> None:
        """Ring at `due` instead of whenever before; None: not at all."""
        self._due = due
        if due is not None and (self._event is None or self._event.at > due):
            if self._event is not None:
                self._event.cancel()
            self._event = self._clock.at(due, self._ring)

    @property
    def due(self) -> float | None:
        """When it rings."""
        return self._due

    def _ring(self) -> None:
        self._event = None
        due = self._due
        if due is None:
            return
        if due > self._clock.now:
            self._event = self._clock.at(due, self._ring)
            return
        self._due = None
        self._action()
