"""Connections in virtual time that break in every way a network can: for tests that try schedules by the thousand.

Nothing of TCP is modelled. Messages arrive one by one, in order, after random delays; connections are cut between any
two of them, on both sides or on one; links go dead in one direction and come back; readers are slow.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bench._simulated_clock import Clock
from bench._simulated_tcp import Handler, Nobody

Message = str | bytes


@dataclass(slots=True)
class Weather:
    """What the network does now, to every connection. Delays in seconds."""

    delay: float = 0.01
    spread: float = 0.01
    up: bool = True  # whether anything passes from the client to the server
    down: bool = True
    refuses: bool = False  # new connections


class ChaosEnd:
    """One end of a connection; see `bench._simulated_tcp.End`, which it stands in for."""

    def __init__(self, network: "ChaosNetwork", handler: Handler, *, is_client: bool) -> None:
        self.handler = handler
        self.is_open = False
        self.is_closed = False
        self.peer: ChaosEnd = self
        self._network = network
        self._is_client = is_client
        self._inbox: deque[Message] = deque()  # sent by the peer, not yet here
        self._last_arrival = 0.0
        self._arriving = False
        self._blocked = False

    @property
    def is_writable(self) -> bool:
        """Whether the peer's inbox has room."""
        return not self.is_closed and sum(map(len, self.peer._inbox)) < self._network.buffer

    def write(self, message: Message) -> None:
        """Send."""
        if self.is_closed:
            return
        if self.peer.is_closed:  # its end was not told here: now it is
            self._network.clock.after(self._network.weather.delay, self.cut)
            return
        self.peer._inbox.append(message)
        self._blocked = not self.is_writable
        self.peer.arrive()

    def abort(self) -> None:
        """End it. The peer learns of it when something passes."""
        if not self.is_closed:
            self.is_closed = True
            self._inbox.clear()
            if self._passes(to_client=not self._is_client):
                self._network.clock.after(self._network.weather.delay, self.peer.cut)

    def close(self, code: int, reason: str = "") -> None:
        """Say why, and end it."""
        if not self.is_closed:
            self.is_closed = True
            self._network.clock.after(self._network.weather.delay, lambda: self.peer.cut(code, reason))

    def cut(self, code: int | None = None, reason: str = "") -> None:
        """It breaks on this side."""
        if not self.is_closed:
            self.is_closed = True
            self._inbox.clear()
            self.handler.closed(self, code, reason)

    def _passes(self, *, to_client: bool) -> bool:
        weather = self._network.weather
        return weather.down if to_client else weather.up

    def arrive(self) -> None:
        """Let the next message come, if the network lets anything pass."""
        if self._arriving or not self._inbox or self.is_closed or not self._passes(to_client=self._is_client):
            return
        self._arriving = True
        clock, weather = self._network.clock, self._network.weather
        due = clock.now + weather.delay + self._network.rng.expovariate(1 / weather.spread)
        if clock.now - self._last_arrival < 1e-9 or self._network.rng.random() < 0.5:
            due = clock.now + self._network.rng.random() * 0.002  # right behind the one before
        clock.at(due, self._arrived)

    def _arrived(self) -> None:
        self._arriving = False
        if self.is_closed or not self._inbox or not self._passes(to_client=self._is_client):
            return
        self._last_arrival = self._network.clock.now
        message = self._inbox.popleft()
        self.handler.received(self, message)
        self.arrive()
        peer = self.peer
        if peer._blocked and peer.is_writable:
            peer._blocked = False
            peer.handler.writable(peer)


class ChaosNetwork:
    """All connections of one world."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self.clock = clock
        self.rng = rng
        self.weather = Weather()
        self.buffer = rng.choice((2_000, 8_000, 64_000))  # bytes between the two ends
        self.connections = 0
        self._ends: list[ChaosEnd] = []

    def connect(self, client: Handler, accept: Callable[[], Handler]) -> ChaosEnd:
        """A new connection, unless the network is down until the client gives it up."""
        near, far = ChaosEnd(self, client, is_client=True), ChaosEnd(self, Nobody(), is_client=False)
        near.peer, far.peer = far, near
        self.connections += 1
        self._knock(near, far, accept)
        return near

    def _knock(self, near: ChaosEnd, far: ChaosEnd, accept: Callable[[], Handler]) -> None:
        if near.is_closed:
            return
        if self.weather.refuses:
            self.clock.after(self.weather.delay, near.cut)
        elif self.weather.up and self.weather.down:
            self.clock.after(2 * self.weather.delay, lambda: self._open(near, far, accept))
        else:
            self.clock.after(0.1, lambda: self._knock(near, far, accept))

    def _open(self, near: ChaosEnd, far: ChaosEnd, accept: Callable[[], Handler]) -> None:
        if near.is_closed:
            return
        self._ends = [end for end in self._ends if not end.is_closed] + [near, far]
        far.handler = accept()
        for end in (far, near):
            end.is_open = True
            end.handler.opened(end)

    def change(self, **weather: float | bool) -> None:
        """Other weather from here on: what waited goes on its way when it clears."""
        for name, value in weather.items():
            setattr(self.weather, name, value)
        for end in list(self._ends):
            end.arrive()

    def cut(self, *, near: bool = True, far: bool = True) -> None:
        """Break every connection, on the client's side, the server's, or both. What is on its way is lost."""
        for end in list(self._ends):
            if not end.is_closed and (near if end._is_client else far):
                end.cut()
