"""Modelled TCP connections that carry WebSocket messages over a `Link`.

Enough of TCP for what is measured here: packets in flight and lost, in-order delivery, delayed acks, a congestion
window, fast retransmission, and above all the retransmission time-out with its back-off, which is what keeps an old
connection silent for seconds after a hole. Without TCP's own keep-alive and windows of receivers: readers read.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from bench._simulated_clock import Alarm, Clock
from bench._simulated_link import Wire

Message: TypeAlias = "str | bytes | Close"

MSS: Final = 1_400
HEADERS: Final = 52  # IPv4 and TCP with time stamps
FIRST_WINDOW: Final = 10 * MSS  # RFC 6928
FIRST_RTO_S: Final = 1.0  # RFC 6298, also of the handshake
MIN_VARIANCE_S: Final = 0.2  # Linux: the time-out is never nearer to the round trip than this
MAX_RTO_S: Final = 120.0
DELAYED_ACK_S: Final = 0.04  # Linux
REORDERED: Final = 3  # packets that may overtake before one counts as lost
SEND_BUFFER: Final = 262_144  # bytes a program may hand over before the kernel makes it wait


@dataclass(frozen=True, slots=True)
class Close:
    """The WebSocket's last word."""

    code: int
    reason: str = ""


class Endpoint(Protocol):
    """One end of a connection, as a program sees it."""

    @property
    def is_open(self) -> bool:
        """Whether the handshake is through."""

    @property
    def is_closed(self) -> bool:
        """Whether it is over."""

    @property
    def is_writable(self) -> bool:
        """Whether `write` would not block."""

    def write(self, message: str | bytes) -> None:
        """Send a message. A closed end ignores it."""

    def abort(self) -> None:
        """End it without a word. The handler is not called."""


class Handler(Protocol):
    """What an end of a connection calls."""

    def opened(self, end: Endpoint) -> None:
        """The WebSocket is open."""

    def received(self, end: Endpoint, message: str | bytes) -> None:
        """A whole message came."""

    def writable(self, end: Endpoint) -> None:
        """After `write` filled the buffer: there is room again."""

    def closed(self, end: Endpoint, code: int | None, reason: str) -> None:
        """It is over; `code` None: without a close frame."""


@dataclass(slots=True)
class _Packet:
    start: int
    end: int
    order: int
    sent_at: float


class End:
    """One end of a connection: sends a stream of messages, and receives the other's."""

    def __init__(self, clock: Clock, wire: Wire, handler: Handler, mask: int, send_buffer: int) -> None:
        self.handler = handler
        self.peer: End = self
        self.is_open = False  # the handshake is through
        self.is_closed = False
        self.sent_bytes = 0  # handed over by the program
        self._clock = clock
        self._wire = wire
        self._mask = mask  # bytes of a WebSocket frame's header that only clients send
        self._buffer = send_buffer
        self._blocked = False
        self._messages: deque[tuple[int, Message]] = deque()  # (end in the stream, message), not yet delivered
        self._written = 0
        self._next = 0  # first byte never sent
        self._una = 0  # first byte not acked
        self._flight: dict[int, _Packet] = {}  # by start, in the order of sending
        self._flying = 0
        self._lost: dict[int, int] = {}  # start and end of what must be sent again
        self._window = FIRST_WINDOW
        self._threshold = 1 << 30
        self._recovery = 0  # the window is not cut again until this byte is acked
        self._order = 0
        self._srtt: float | None = None
        self._rttvar = 0.0
        self._backoff = 0
        self._rto = Alarm(clock, self._timed_out)
        self._received = 0  # in order
        self._early: dict[int, int] = {}  # start and end of what came out of order
        self._newest = 0  # order of the newest packet received
        self._unacked_packets = 0
        self._ack_timer = Alarm(clock, self._send_ack)

    # The program's side

    @property
    def is_writable(self) -> bool:
        """Whether `write` would not block."""
        return not self.is_closed and self._written - self._una < self._buffer

    def write(self, message: Message) -> None:
        """Send a message. A closed end ignores it."""
        if self.is_closed:
            return
        size = _payload(message) + self._mask
        self.append(message, size + (2 if size < 126 else 4))
        self._blocked = not self.is_writable

    def abort(self) -> None:
        """End it without a word, as `transport.abort()` does. The handler is not called."""
        if not self.is_closed:
            self._shut()
            self._reset()

    def close(self, code: int, reason: str = "") -> None:
        """Say why, then end it; the handler is not called."""
        self.write(Close(code, reason))
        self.handler = Nobody()

    def cut(self) -> None:
        """The network resets the connection on this side."""
        if not self.is_closed:
            self._shut()
            self.handler.closed(self, None, "")

    # The stream

    def append(self, message: Message, size: int) -> None:
        """Send a message that takes `size` bytes of the stream."""
        self._written += size
        self.sent_bytes += size
        self._messages.append((self._written, message))
        self._push()

    def _push(self) -> None:
        """Send what the window allows, lost packets first."""
        while self._lost and self._flying < self._window:
            start = min(self._lost)
            self._transmit(start, self._lost.pop(start))
        while self._next < self._written and self._flying < self._window:
            end = min(self._next + MSS, self._written)
            self._transmit(self._next, end)
            self._next = end

    def _transmit(self, start: int, end: int) -> None:
        now = self._clock.now
        self._order += 1
        self._flight[start] = packet = _Packet(start, end, self._order, now)
        self._flying += end - start
        if self._rto.due is None:
            self._rto.set(now + self._timeout)
        received, newest, peer = self._received, self._newest, self.peer
        self._acks_sent()
        order = packet.order
        arrives = self._wire.carry(now, end - start + HEADERS)
        if arrives is not None:
            self._clock.at(arrives, lambda: peer._arrived(start, end, order, received, newest))

    @property
    def _timeout(self) -> float:
        rto = FIRST_RTO_S if self._srtt is None else self._srtt + max(MIN_VARIANCE_S, 4 * self._rttvar)
        return float(min(MAX_RTO_S, rto * 2**self._backoff))

    def _timed_out(self) -> None:
        if self.is_closed or not (self._flight or self._lost):
            return
        self._threshold = max(self._flying // 2, 2 * MSS)
        self._lost.update({packet.start: packet.end for packet in self._flight.values()})
        self._flight.clear()
        self._flying = 0
        self._window = MSS
        self._recovery = self._next
        self._backoff += 1
        self._push()

    def _acked(self, received: int, newest: int, start: int) -> None:
        """The peer has everything up to `received`, and the packet at `start` (-1: none beyond that)."""
        now, flight = self._clock.now, self._flight
        gained = 0
        for packet in [p for p in flight.values() if p.end <= received or p.start == start]:
            del flight[packet.start]
            self._flying -= packet.end - packet.start
            gained += packet.end - packet.start
            if packet.order == newest:
                self.measured(now - packet.sent_at)
        for begin in [b for b, end in self._lost.items() if end <= received or b == start]:
            gained += self._lost.pop(begin) - begin
        self._una = max(self._una, received)
        if gained:
            self._backoff = 0
            if 2 * (self._flying + gained) >= self._window:  # one that is not used does not grow
                slow_start = self._window < self._threshold
                self._window += gained if slow_start else MSS * gained // self._window
            self._rto.set(now + self._timeout if flight else None)
        missing = [p for p in flight.values() if p.order <= newest - REORDERED]
        if missing:
            if self._una >= self._recovery:
                self._recovery = self._next
                self._threshold = self._window = max(self._flying // 2, 2 * MSS)
            for packet in missing:
                del flight[packet.start]
                self._flying -= packet.end - packet.start
                self._lost[packet.start] = packet.end
        self._push()
        if self._blocked and self.is_writable:
            self._blocked = False
            self.handler.writable(self)

    def measured(self, rtt: float) -> None:
        """A round trip took so long (RFC 6298)."""
        if self._srtt is None:
            self._srtt, self._rttvar = rtt, rtt / 2
        else:
            self._rttvar += (abs(self._srtt - rtt) - self._rttvar) / 4
            self._srtt += (rtt - self._srtt) / 8

    def _arrived(self, start: int, end: int, order: int, received: int, newest: int) -> None:
        """A packet of the peer's stream."""
        if self.is_closed:
            self._reset()
            return
        self._newest = max(self._newest, order)
        self._acked(received, newest, -1)
        if start > self._received or end <= self._received:
            if end > self._received:
                self._early[start] = end
            self._send_ack(start)
            return
        self._received = end
        while self._received in self._early:
            self._received = self._early.pop(self._received)
        self._unacked_packets += 1
        if self._unacked_packets >= 2 or self._early:
            self._send_ack()
        elif self._ack_timer.due is None:
            self._ack_timer.set(self._clock.now + DELAYED_ACK_S)
        self._deliver()

    def _deliver(self) -> None:
        messages = self.peer._messages
        while messages and messages[0][0] <= self._received and not self.is_closed:
            message = messages.popleft()[1]
            if isinstance(message, Close):
                self._shut()
                self.peer._shut()
                self.handler.closed(self, message.code, message.reason)
            else:
                self.handler.received(self, message)

    def _send_ack(self, start: int = -1) -> None:
        received, newest, peer = self._received, self._newest, self.peer
        self._acks_sent()
        arrives = self._wire.carry(self._clock.now, HEADERS)
        if arrives is not None:
            self._clock.at(arrives, lambda: peer._ack_arrived(received, newest, start))

    def _ack_arrived(self, received: int, newest: int, start: int) -> None:
        if not self.is_closed:
            self._acked(received, newest, start)

    def _acks_sent(self) -> None:
        self._unacked_packets = 0
        self._ack_timer.set(None)

    def _reset(self) -> None:
        arrives = self._wire.carry(self._clock.now, HEADERS)
        if arrives is not None:
            self._clock.at(arrives, self.peer.cut)

    def _shut(self) -> None:
        self.is_closed = True
        self._rto.set(None)
        self._ack_timer.set(None)


class Nobody:
    """Takes what comes after a program lost interest."""

    def opened(self, end: Endpoint) -> None:
        """See Handler."""

    def received(self, end: Endpoint, message: str | bytes) -> None:
        """See Handler."""

    def writable(self, end: Endpoint) -> None:
        """See Handler."""

    def closed(self, end: Endpoint, code: int | None, reason: str) -> None:
        """See Handler."""


def _payload(message: Message) -> int:
    if isinstance(message, bytes):
        return len(message)
    if isinstance(message, Close):
        return 2 + len(message.reason)
    return len(message) if message.isascii() else len(message.encode())
