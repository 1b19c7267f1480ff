"""One direction of one connection: holds what came until it may be delivered."""

import asyncio
import time
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Final

from deploy.faulty_proxy.boundaries import MessageBoundaries
from deploy.faulty_proxy.line import Cut, Direction, next_attempt

if TYPE_CHECKING:
    from deploy.faulty_proxy.connection import Connection
    from deploy.faulty_proxy.peer import Peer

PACKET_BYTES: Final = 1_400  # how finely a limited rate is spread
RETRY_S: Final = 0.2  # TCP's first retransmission, beyond the round trip (Linux: at least 200 ms)
CONNECT_RETRY_S: Final = 1.0  # ... of a request to connect


class End(Enum):
    """How a sender ended."""

    FIN = "fin"
    RESET = "reset"


class Pipe:
    """See the module text. Every method that lets something through calls `pump`."""

    def __init__(self, connection: "Connection", direction: Direction) -> None:
        self.direction = direction
        self.delivered = 0  # bytes
        self.hole = False  # for this connection alone
        self.stalled = False  # nothing is read from the sender
        self.cut: Cut | None = None
        self.boundaries = MessageBoundaries()
        self._connection = connection
        self._proxy = connection.proxy
        self._line = connection.proxy.lines[direction]
        self._queue: deque[tuple[float, bytes | End]] = deque()  # when it has come through at the earliest, and what
        self._held = 0  # bytes
        self._last_due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stuck_since: float | None = None  # when the first byte was lost that must be sent again
        self._unacked_since: float | None = None  # since when acknowledgements meet a hole on their way back
        self._free_at = 0.0  # when the sender tries again

    @property
    def lost(self) -> bool:
        """Whether what is sent now meets a hole."""
        return self.hole or self._line.hole

    @property
    def blocked(self) -> bool:
        """Whether nothing passes until a hole ends."""
        return self.lost or self._stuck_since is not None

    def connect(self, now: float) -> None:
        """The request to connect: data follows a round trip later."""
        self._note_loss(now)
        self._last_due = now + self._line.delay_s + self._proxy.round_trip_s
        self._queue.append((now, b""))
        self.pump()

    def feed(self, item: bytes | End) -> None:
        """What the sender sent."""
        receiver = self._connection.peer(self.direction.other)
        if self._connection.closed.is_set() or (receiver is not None and receiver.gone):
            return
        now = time.monotonic()
        self._note_loss(now)
        delay = self._line.delay_s + self._proxy.chance.uniform(0, self._line.jitter_s)
        self._last_due = max(self._last_due, now + delay)
        if isinstance(item, End):
            self._queue.append((self._last_due, item))
        else:
            self.boundaries.feed(item)
            self._held += len(item)
            size = PACKET_BYTES if self._line.rate else len(item)
            self._queue.extend((self._last_due, item[at : at + size]) for at in range(0, len(item), size))
        self.pump()

    def pump(self) -> None:
        """Deliver what may be delivered now, and come back for the rest."""
        self._disarm()
        while not self._connection.closed.is_set() and self._connection.reaches_server():
            receiver = self._connection.peer(self.direction.other)
            if receiver is None or not receiver.writable:
                break
            if self.cut is not None and self._until_cut() == 0:
                self._connection.cut_now(self.cut)
                return
            if not self._queue or self.blocked:
                break
            due, item = self._queue[0]
            start = max(due, self._free_at)
            if self._line.rate and isinstance(item, bytes):
                start = max(start, self._line.free_at) + len(item) / self._line.rate
            now = time.monotonic()
            if start > now:
                self.pump_at(start)
                break
            self._queue.popleft()
            if self._line.rate:
                self._line.free_at = start
            self._deliver(receiver, item)
        self.pace_sender()

    def pump_at(self, when: float) -> None:
        """Try again then."""
        self._disarm()
        self._timer = asyncio.get_running_loop().call_later(when - time.monotonic(), self.pump)

    def hole_begins(self) -> None:
        """What is under way is lost."""
        if self._queue and self._stuck_since is None:
            self._stuck_since = time.monotonic()

    def hole_ends(self) -> None:
        """What was lost comes with the sender's next attempt."""
        if self.lost or (self._proxy.tcp_backoff and self._back.lost):
            return
        if self._stuck_since is not None and self._proxy.tcp_backoff:
            self._free_at = next_attempt(self._stuck_since, self._first_retry_s, time.monotonic())
        self._stuck_since = self._unacked_since = None
        self.pump()

    def tries_at(self) -> float | None:
        """When a request to connect comes through; None: not while the hole lasts."""
        return None if self.blocked else self._free_at

    def stop(self) -> None:
        """Drop what is held: nobody takes it any more."""
        self._disarm()
        self._queue.clear()
        self._held = 0
        self.pace_sender()

    def pace_sender(self) -> None:
        """Read from the sender unless enough is held."""
        sender = self._connection.peer(self.direction)
        if sender is not None:
            sender.read_if(not self.stalled and self._held < self._proxy.buffer_bytes)

    @property
    def _back(self) -> "Pipe":
        return self._connection.pipes[self.direction.other]

    @property
    def _first_retry_s(self) -> float:
        return CONNECT_RETRY_S if self._connection.server is None else RETRY_S + self._proxy.round_trip_s

    def _note_loss(self, now: float) -> None:
        if self._stuck_since is not None:
            return
        if self.lost:
            self._stuck_since = now
        elif self._proxy.tcp_backoff and self._back.lost:
            # This way is free, but no acknowledgement comes back: a sender soon stops sending anything new.
            if self._unacked_since is None:
                self._unacked_since = now
            elif now > self._unacked_since + self._first_retry_s:
                self._stuck_since = self._unacked_since

    def _deliver(self, receiver: "Peer", item: bytes | End) -> None:
        if item is End.RESET:
            self._connection.reset()
        elif item is End.FIN:
            receiver.write_fin()
            self._connection.finished(self.direction)
        elif item:
            self._held -= len(item)
            item = item[: self._until_cut()]
            self.delivered += len(item)
            self._proxy.carried[self.direction] += len(item)
            receiver.write(item)

    def _until_cut(self) -> int | None:
        """How many bytes may still be delivered; None: no end is known."""
        if self.cut is None:
            return None
        place = self.cut.byte if self.cut.message is None else self.boundaries.wanted_end
        return None if place is None else max(0, place + self.cut.shift - self.delivered)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
