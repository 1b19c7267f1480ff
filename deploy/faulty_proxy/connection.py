"""A client's connection to the proxy and the proxy's to the server, and what can happen to them."""

import asyncio
import socket
from typing import TYPE_CHECKING

from deploy.faulty_proxy.line import DOWN, UP, Cut, Direction
from deploy.faulty_proxy.peer import Peer
from deploy.faulty_proxy.pipe import End, Pipe

if TYPE_CHECKING:
    from deploy.faulty_proxy.proxy import FaultyProxy


class Connection:
    """One connection of a client. `number` counts from 1 in the order they came."""

    def __init__(self, proxy: "FaultyProxy", number: int) -> None:
        self.proxy = proxy
        self.number = number
        self.closed = asyncio.Event()
        self.was_cut = asyncio.Event()
        self.client = Peer(self, UP)
        self.server: Peer | None = None  # None until the server was reached
        self.pipes = {direction: Pipe(self, direction) for direction in Direction}
        self._dial: asyncio.Task[None] | None = None
        self._reached = False
        self._ended_by_reset = False
        self._finished: set[Direction] = set()

    # Faults

    def reset(self) -> None:
        """RST to both ends."""
        self._close(reset=True)

    def finish(self) -> None:
        """FIN to both ends."""
        self._close(reset=False)

    def silence(self) -> None:
        """From now on nothing passes, in neither direction, and nobody is told."""
        self.hole(UP, DOWN)

    def half_open(self) -> None:
        """The client's machine dies without a word: its socket is gone, the server hears nothing, nothing is taken."""
        self.silence()
        self.stall(DOWN)
        self.client.end(reset=True)

    def hole(self, *directions: Direction) -> None:
        """Hold what goes this way until `heal`."""
        for direction in directions:
            self.pipes[direction].hole = True
            self.pipes[direction].hole_begins()

    def heal(self) -> None:
        """End the holes of this connection."""
        for pipe in self.pipes.values():
            pipe.hole = False
        for pipe in self.pipes.values():
            pipe.hole_ends()

    def stall(self, direction: Direction, stalled: bool = True) -> None:
        """Read no more of what is sent this way: soon its sender sees a zero window."""
        self.pipes[direction].stalled = stalled
        self.pipes[direction].pace_sender()

    def cut(self, cut: Cut) -> None:
        """Cut this connection at a place still to come. Raises ValueError where a message's place is known no more."""
        pipe = self.pipes[cut.direction]
        if cut.message is not None:
            pipe.boundaries.want(cut.message)
        pipe.cut = cut

    # What its parts call

    def peer(self, sends: Direction) -> Peer | None:
        """The end that sends this way; None: the server was not reached yet."""
        return self.client if sends is UP else self.server

    def reaches_server(self) -> bool:
        """Whether the server is connected; if not, it is dialled as soon as a request to connect comes through."""
        if self.server is None and self._dial is None:
            when = self.pipes[UP].tries_at()
            if when is not None and when <= self.proxy.loop_time():
                self._dial = asyncio.create_task(self._connect(), name="faulty proxy dials")
            elif when is not None:
                self.pipes[UP].pump_at(when)
        return self.server is not None

    def appeared(self, peer: Peer) -> None:
        """One end is connected. The server's counts when `_connect` has it: only then may it be closed."""
        if self.closed.is_set():
            peer.end(reset=True)
        elif peer is self.client:
            self.pipes[UP].connect(self.proxy.loop_time())

    def vanished(self, peer: Peer, *, reset: bool) -> None:
        """One end is gone. The other hears of it as soon as the line lets it."""
        if self.client.gone and (self.server.gone if self.server is not None else not self._reached):
            self._close(reset=True)
            self.proxy.forget(self)
            return
        self.pipes[peer.sends.other].stop()
        self.pipes[peer.sends].feed(End.RESET if reset else End.FIN)

    def finished(self, direction: Direction) -> None:
        """A FIN was delivered."""
        self._finished.add(direction)
        sender = self.peer(direction)
        if len(self._finished) == len(Direction) or sender is None or sender.gone:
            self._close(reset=False)

    def cut_now(self, cut: Cut) -> None:
        """The place of the cut is reached."""
        self.pipes[cut.direction].cut = None
        self.silence()
        self.was_cut.set()
        cut.how(self)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.proxy.buffer_bytes)
            await loop.sock_connect(sock, ("127.0.0.1", self.proxy.upstream_port))
        except OSError:
            sock.close()
            self.reset()
            return
        except asyncio.CancelledError:
            sock.close()
            raise
        self._reached = True
        _, peer = await loop.create_connection(lambda: Peer(self, DOWN), sock=sock)
        self.server = peer
        if self.closed.is_set():
            peer.end(reset=self._ended_by_reset)
            return
        if peer.gone:
            self.reset()
            return
        for pipe in self.pipes.values():
            pipe.pump()

    def _close(self, *, reset: bool) -> None:
        if not self.closed.is_set():
            self.closed.set()
            self._ended_by_reset = reset
            for pipe in self.pipes.values():
                pipe.stop()
            if self._dial is not None and not self._reached and self._dial is not asyncio.current_task():
                self._dial.cancel()
        for peer in (self.client, self.server):
            if peer is not None:
                peer.end(reset=reset)
