"""One WebSocket of a session: a task that opens it and reads, and one that writes what was posted."""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic  # uvloop's own clock only counts milliseconds
from typing import Protocol

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from client.errors import ClientError
from client.outbox import Outbox
from protocol import encode
from protocol.client_messages import ClientMessage


class Socket(ClientConnection):
    """A WebSocket that remembers when bytes came last: a long message may take its time on a slow line."""

    heard_at = 0.0

    def data_received(self, data: bytes) -> None:
        """Called by the transport."""
        self.heard_at = monotonic()
        super().data_received(data)


class Listener(Protocol):
    """What a wire tells its session."""

    def wire_opened(self, wire: "Wire") -> None:
        """The WebSocket is open."""

    def wire_refused(self, wire: "Wire", error: ClientError) -> None:
        """It could not be opened."""

    def wire_received(self, wire: "Wire", data: str | bytes) -> None:
        """A message came."""

    def wire_closed(self, wire: "Wire", code: int | None, reason: str) -> None:
        """It was closed; `code` None: without a close frame."""

    def wire_sent(self, wire: "Wire") -> None:
        """Less waits to be sent than before."""


class Wire:
    """`opening` makes the socket; it is called in a task of its own and may raise ClientError."""

    def __init__(self, number: int, opening: Callable[[], Awaitable[Socket]], listener: Listener) -> None:
        self.number = number
        self.outbox = Outbox()  # posted and not yet sent; its session bounds it
        self._opening = opening
        self._listener = listener
        self._socket: Socket | None = None
        self._posted = asyncio.Event()
        self._aborted = False
        self.task = asyncio.create_task(self._run(), name=f"cosystream client connection {number}")

    @property
    def heard_at(self) -> float:
        """When bytes came last."""
        return self._socket.heard_at if self._socket is not None else 0.0

    def post(self, message: ClientMessage) -> None:
        """To be sent, in the order of `Outbox`."""
        self.outbox.post(message)
        self._posted.set()

    def abort(self) -> None:
        """Ends it without a word: the peer may not read any more."""
        self._aborted = True
        self.outbox.clear()
        if self._socket is not None:
            self._socket.transport.abort()
        self.task.cancel()

    async def close(self) -> None:
        """Says goodbye. May take as long as the peer likes."""
        if self._socket is not None:
            await self._socket.close()

    async def _run(self) -> None:
        try:
            self._socket = await self._opening()
        except ClientError as error:
            if not self._aborted:
                self._listener.wire_refused(self, error)
            return
        socket = self._socket
        try:
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(self._write(socket), name=f"cosystream client writer {self.number}")
                self._listener.wire_opened(self)
                await self._read(socket)
                writing.cancel()
        finally:
            socket.transport.abort()

    async def _read(self, socket: Socket) -> None:
        try:
            while not self._aborted:
                self._listener.wire_received(self, await socket.recv())
        except ConnectionClosed as closed:
            if not self._aborted:
                frame = closed.rcvd
                self._listener.wire_closed(self, frame.code if frame else None, frame.reason if frame else "")

    async def _write(self, socket: Socket) -> None:
        try:
            while True:
                while (message := self.outbox.next()) is not None:
                    await socket.send(encode(message))
                    self._listener.wire_sent(self)
                self._posted.clear()
                await self._posted.wait()
        except ConnectionClosed:
            pass  # the reader says why
