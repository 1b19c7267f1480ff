"""Makes modelled connections over one link: the three-way handshake, then the WebSocket's own."""

import random
from collections.abc import Callable
from typing import Final

from bench._simulated_clock import Clock
from bench._simulated_link import Link, Wire
from bench._simulated_tcp import FIRST_RTO_S, HEADERS, SEND_BUFFER, End, Endpoint, Handler, Nobody

UPGRADE_BYTES: Final = 350  # the request and the answer that make a WebSocket
ACCEPT_BYTES: Final = 250


class Network:
    """Makes connections over one link."""

    def __init__(self, clock: Clock, link: Link, seed: int, *, send_buffer: int = SEND_BUFFER) -> None:
        self.link = link
        rng = random.Random(seed)
        self.down = Wire(link.down, random.Random(rng.getrandbits(64)))
        self.up = Wire(link.up, random.Random(rng.getrandbits(64)))
        self._clock = clock
        self._buffer = send_buffer
        self._pairs: list[tuple[End, End]] = []
        for moment in link.resets:
            clock.at(moment, self.reset)

    def connect(self, client: Handler, accept: Callable[[], Handler]) -> End:
        """A new connection: `client.opened` follows after two round trips, `accept` is asked half a one before."""
        near = End(self._clock, self.up, client, 4, self._buffer)
        far = End(self._clock, self.down, Nobody(), 0, self._buffer)
        near.peer, far.peer = far, near
        self._pairs = [pair for pair in self._pairs if not (pair[0].is_closed and pair[1].is_closed)]
        self._pairs.append((near, far))
        _Handshake(self._clock, self, near, far, accept)
        return near

    def reset(self) -> None:
        """Every connection is reset on both sides: what is in flight is lost."""
        for near, far in self._pairs:
            far.cut()
            near.cut()


class _Handshake:
    """SYN, its answer, the WebSocket's request and answer. What is lost is sent again by its sender's time-out."""

    def __init__(self, clock: Clock, network: Network, near: End, far: End, accept: Callable[[], Handler]) -> None:
        self._clock = clock
        self._network = network
        self._near = near
        self._far = far
        self._accept = accept
        self._tries = 0
        self._sent_at = 0.0
        self._answered = False
        self._syn()

    def _syn(self) -> None:
        if self._near.is_closed or self._answered:
            return
        arrives = self._network.up.carry(self._clock.now, HEADERS)
        if arrives is not None:
            self._clock.at(arrives, self._syn_arrived)
        self._sent_at = self._clock.now
        self._clock.after(FIRST_RTO_S * 2**self._tries, self._syn)
        self._tries += 1

    def _syn_arrived(self) -> None:
        arrives = self._network.down.carry(self._clock.now, HEADERS)
        if arrives is not None:
            self._clock.at(arrives, self._answer_arrived)

    def _answer_arrived(self) -> None:
        if self._answered or self._near.is_closed:
            return
        self._answered = True
        rtt = self._clock.now - self._sent_at
        self._near.measured(rtt)
        self._far.measured(rtt)
        self._far.handler = _Requested(self._far, self._accept)
        self._near.handler = _Accepted(self._near, self._near.handler)
        self._near.append("", UPGRADE_BYTES)


class _Requested(Nobody):
    """The server's end until the WebSocket's request is there."""

    def __init__(self, far: End, accept: Callable[[], Handler]) -> None:
        self._far = far
        self._accept = accept

    def received(self, end: Endpoint, message: str | bytes) -> None:
        """The request."""
        self._far.handler = self._accept()
        self._far.is_open = True
        self._far.append("", ACCEPT_BYTES)
        self._far.handler.opened(self._far)


class _Accepted(Nobody):
    """The client's end until the server's answer is there."""

    def __init__(self, near: End, real: Handler) -> None:
        self._near = near
        self._real = real

    def received(self, end: Endpoint, message: str | bytes) -> None:
        """The answer."""
        self._near.handler = self._real
        self._near.is_open = True
        self._real.opened(self._near)

    def closed(self, end: Endpoint, code: int | None, reason: str) -> None:
        """Reset during the handshake."""
        self._real.closed(end, code, reason)
