"""Accepts connections from a socket that other processes accept from, too, in turns.

A listening socket that several processes wait on wakes all of them. Who has more connections than others leaves the
next one to them for a moment, and takes it then if it still waits: they may be busy, or frozen.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

import structlog

PAUSE_S: Final = 0.5  # where no descriptor is left, or whatever it is may last: the connection stays in the queue

log = structlog.get_logger(__name__)


class SharedAcceptor:
    """What `loop.create_server` would give, for a socket that is shared. It serves at once."""

    def __init__(
        self,
        sock: socket.socket,
        factory: Callable[[], asyncio.Protocol],
        patience: Callable[[], float],
        *,
        ssl: ssl.SSLContext | None = None,
        ssl_handshake_timeout: float | None = None,
    ) -> None:
        """Inside the running event loop. `sock` does not block and is closed with this; `patience` gives the seconds
        for which the next connection is left to others.
        """
        self._sock: socket.socket | None = sock
        self._factory = factory
        self._patience = patience
        self._options: dict[str, Any] = {"ssl": ssl}
        if ssl is not None:
            self._options["ssl_handshake_timeout"] = ssl_handshake_timeout
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._starting: set[asyncio.Task[None]] = set()
        self._wait()

    # As asyncio.Server

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening socket."""
        return () if self._sock is None else (self._sock,)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """See asyncio.Server."""
        return self._loop

    def is_serving(self) -> bool:
        """See asyncio.Server."""
        return self._sock is not None

    async def start_serving(self) -> None:
        """See asyncio.Server."""

    def close(self) -> None:
        """Accept no more. What waits in the queue is for the other processes; connections go on."""
        if self._sock is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        else:
            self._loop.remove_reader(self._sock.fileno())
        self._sock.close()
        self._sock = None

    async def wait_closed(self) -> None:
        """Returns when no accepted connection is on its way to its protocol any more."""
        if self._starting:
            await asyncio.wait(set(self._starting))

    # Inside

    def _wait(self) -> None:
        self._timer = None
        if self._sock is not None:
            self._loop.add_reader(self._sock.fileno(), self._readable)

    def _readable(self) -> None:
        if patience := self._patience():
            self._pause(patience, self._insist)
        else:
            self._accept()

    def _insist(self) -> None:
        self._wait()
        self._accept()

    def _pause(self, seconds: float, then: Callable[[], None]) -> None:
        assert self._sock is not None
        self._loop.remove_reader(self._sock.fileno())
        self._timer = self._loop.call_later(seconds, then)

    def _accept(self) -> None:
        """One, not all: the others wake up for the next."""
        assert self._sock is not None
        try:
            accepted, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another process was faster, or the client gave up
        except OSError as problem:
            log.warning("no further connection can be accepted", reason=problem.strerror)
            self._pause(PAUSE_S, self._wait)
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # servers of event loops do this by themselves
        starting = self._loop.create_task(self._start(accepted))
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)

    async def _start(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, accepted, **self._options)
        except OSError:  # TLS errors and time-outs, too
            accepted.close()
