"""The proxy itself: accepts connections and holds what they share."""

import asyncio
import random
import socket
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from deploy.faulty_proxy.connection import Connection
from deploy.faulty_proxy.line import Cut, Direction, Line
from deploy.faulty_proxy.peer import Peer

BUFFER_BYTES: Final = 65_536  # held for each direction of a connection, besides the kernel's own buffers
CLOSE_TIMEOUT_S: Final = 2.0


class FaultyProxy:
    """Listens on `port` of 127.0.0.1 while it is entered and passes everything on to `upstream_port`.

    `upstream_port` may be changed: it holds for connections to come. `tcp_backoff`: see the package's text.
    """

    def __init__(
        self, upstream_port: int, *, buffer_bytes: int = BUFFER_BYTES, tcp_backoff: bool = False, seed: int = 0
    ) -> None:
        self.upstream_port = upstream_port
        self.buffer_bytes = buffer_bytes
        self.tcp_backoff = tcp_backoff
        self.refusing = False  # new connections get a RST
        self.port = 0
        self.accepted = 0  # connections
        self.lines = {direction: Line() for direction in Direction}
        self.carried = dict.fromkeys(Direction, 0)  # bytes, all connections
        self.connections: list[Connection] = []  # those that are not closed, oldest first
        self.chance = random.Random(seed)
        self._server: asyncio.Server | None = None
        self._cuts: deque[Cut] = deque()
        self._changed = asyncio.Event()

    @property
    def url(self) -> str:
        """Of the server's WebSocket, through the proxy."""
        return f"ws://127.0.0.1:{self.port}/v1/stream"

    @property
    def round_trip_s(self) -> float:
        """Without jitter."""
        return sum(line.delay_s for line in self.lines.values())

    async def __aenter__(self) -> Self:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.buffer_bytes)  # what is accepted inherits it
        sock.bind(("127.0.0.1", 0))
        self.port = sock.getsockname()[1]
        self._server = await asyncio.get_running_loop().create_server(self._accept, sock=sock)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.each(Connection.reset)
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            while self.connections:
                await self._change()
            await self._server.wait_closed()

    def change(self, *directions: Direction, **fields: Any) -> None:
        """Set fields of `Line` for one or both directions, for what comes from now on."""
        for direction in directions:
            for name, value in fields.items():
                setattr(self.lines[direction], name, value)
        for connection in self.connections:
            for pipe in connection.pipes.values():
                pipe.pump()

    def hole(self, *directions: Direction) -> None:
        """Nothing passes this way until `heal`, on no connection."""
        for direction in directions:
            self.lines[direction].hole = True
        for connection in self.connections:
            for direction in directions:
                connection.pipes[direction].hole_begins()

    def heal(self) -> None:
        """The line is whole again."""
        for line in self.lines.values():
            line.hole = False
        for connection in list(self.connections):
            for pipe in connection.pipes.values():
                pipe.hole_ends()

    def each(self, how: Callable[[Connection], None]) -> None:
        """Do this to every connection: `proxy.each(Connection.reset)`."""
        for connection in list(self.connections):
            how(connection)

    def cut_next(self, *cuts: Cut) -> None:
        """Cut the next connection here; with several cuts, each further connection at the next one."""
        self._cuts.extend(cuts)

    async def connection(self, number: int) -> Connection:
        """The connection of this number (1 is the first), once it has come. Raises LookupError for one that is over."""
        while self.accepted < number:
            await self._change()
        for connection in self.connections:
            if connection.number == number:
                return connection
        raise LookupError(f"connection {number} is over")

    def loop_time(self) -> float:
        """The clock of everything here: seconds, with microseconds (uvloop's own has milliseconds)."""
        return time.monotonic()

    def forget(self, connection: Connection) -> None:
        """A connection has closed both its sockets."""
        if connection in self.connections:
            self.connections.remove(connection)
        self._changed.set()

    def _accept(self) -> Peer:
        if self.refusing:
            connection = Connection(self, 0)
            connection.closed.set()  # it is reset as soon as it appears
            self.connections.append(connection)
            return connection.client
        self.accepted += 1
        connection = Connection(self, self.accepted)
        if self._cuts:
            connection.cut(self._cuts.popleft())
        self.connections.append(connection)
        self._changed.set()
        return connection.client

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
