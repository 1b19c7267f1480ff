"""One of the two sockets of a connection."""

import asyncio
import contextlib
import socket
import struct
from typing import TYPE_CHECKING, Final, cast

from deploy.faulty_proxy.line import Direction
from deploy.faulty_proxy.pipe import End

if TYPE_CHECKING:
    from deploy.faulty_proxy.connection import Connection

_LINGER_NOT: Final = struct.pack("ii", 1, 0)  # closing then sends a RST


class Peer(asyncio.Protocol):
    """Hands what arrives to the connection's pipe, and takes from the other one while `writable`."""

    def __init__(self, connection: "Connection", sends: Direction) -> None:
        self.sends = sends
        self.transport: asyncio.Transport | None = None
        self.writable = True  # nothing waits in the transport
        self.gone = False
        self._connection = connection
        self._reading = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=0)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection.appeared(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        self._connection.pipes[self.sends].feed(bytes(data))

    def eof_received(self) -> bool:
        """A FIN came; the other direction stays open."""
        self._connection.pipes[self.sends].feed(End.FIN)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed: by a RST where there is an error, else by us."""
        self.gone, self.writable = True, False
        self._connection.vanished(self, reset=exc is not None)

    def pause_writing(self) -> None:
        """The kernel takes no more."""
        self.writable = False

    def resume_writing(self) -> None:
        """It took everything."""
        self.writable = True
        self._connection.pipes[self.sends.other].pump()

    def write(self, data: bytes) -> None:
        """Send."""
        assert self.transport is not None
        if not self.transport.is_closing():
            self.transport.write(data)

    def write_fin(self) -> None:
        """Send no more."""
        assert self.transport is not None
        if not self.transport.is_closing():
            with contextlib.suppress(OSError):  # it was reset, and that is not known yet
                self.transport.write_eof()

    def read_if(self, wanted: bool) -> None:
        """Take more from the socket, or leave it to the kernel, which makes the sender wait."""
        if self.transport is None or self.gone or self.transport.is_closing() or wanted is self._reading:
            return
        self._reading = wanted
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def end(self, *, reset: bool) -> None:
        """Close with a RST, or with a FIN after what was written."""
        if self.transport is None or self.gone:
            return
        if reset:
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            self.transport.abort()
        else:
            self.transport.close()
