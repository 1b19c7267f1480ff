"""Ends of connections: peers that take nothing are aborted, refused ones still get to read why."""

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final

LINGER_S: Final = 1.0  # how long a refused peer may take to read the answer and close
MAX_EXTENSIONS: Final = 10
_NO_LINGER: Final = struct.pack("ii", 1, 0)  # on, 0 s: close sends a RST


class AbortTimer:
    """Aborts a transport after `delay` seconds. Where it still moves, it waits again, `MAX_EXTENSIONS` times at most.

    Closing is not enough: once a peer stops reading, every orderly end waits for the buffer to drain, for ever.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._handle: asyncio.TimerHandle | None = None
        self._delay = 0.0
        self._extensions = 0
        self._size = 0

    def start(self, delay: float) -> None:
        """Count from now; harmless while it already counts."""
        if self._handle is None:
            self._extensions = 0
            self._wait(delay)

    def stop(self) -> None:
        """Count no longer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _wait(self, delay: float) -> None:
        self._delay = delay
        self._size = self._transport.get_write_buffer_size()
        self._handle = asyncio.get_running_loop().call_later(delay, self._fire)

    def _fire(self) -> None:
        self._handle = None
        if 0 < self._transport.get_write_buffer_size() < self._size and self._extensions < MAX_EXTENSIONS:
            self._extensions += 1
            self._wait(self._delay)
        else:
            self._transport.abort()


def reset(transport: asyncio.Transport) -> None:
    """End the connection such that the peer does not take it for an orderly end: `abort` alone sends a FIN, too."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):  # it may be closed already
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    transport.abort()


class _Discard(asyncio.Protocol):
    """What follows an answer that ends a connection: input is dropped until the peer closes or time is up."""

    def __init__(self, transport: asyncio.Transport, on_lost: Callable[[], None]) -> None:
        self._timer = AbortTimer(transport)
        self._timer.start(LINGER_S)
        self._on_lost = on_lost

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.stop()
        self._on_lost()


def end_with(transport: asyncio.Transport, answer: bytes, on_lost: Callable[[], None]) -> None:
    """Send `answer` and end the connection, such that the peer can read it; `on_lost` is called when it is gone.

    Closing at once would reset the connection where input is still unread, and a reset destroys the answer on its way.
    """
    transport.set_protocol(_Discard(transport, on_lost))
    transport.write(answer)
    if transport.can_write_eof():
        transport.write_eof()
        transport.resume_reading()
    else:  # TLS has no half-close
        transport.close()
