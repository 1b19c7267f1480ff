"""A WebSocket client that costs next to nothing, so that thousands of them leave the machine to the server.

It speaks to our own server only: it answers pings, and takes messages that are not fragmented, which ours never are.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

from protocol import STREAM_PATH, SUBPROTOCOL

TEXT: Final = 1
BINARY: Final = 2
_CLOSE: Final = 8
_PING: Final = 9
_PONG: Final = 10
_MASK: Final = bytes(4)  # zeros: masking changes nothing and costs nothing

OnMessage = Callable[[int, bytes], None]
"""Called with the opcode (`TEXT` or `BINARY`) and the payload."""


def masked_frame(opcode: int, payload: bytes) -> bytes:
    """A whole frame as a client sends it."""
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | opcode, 0x80 | size))
    elif size < 65_536:
        head = bytes((0x80 | opcode, 0xFE)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x80 | opcode, 0xFF)) + size.to_bytes(8, "big")
    return head + _MASK + payload


class LightSocket(asyncio.Protocol):
    """A connection. `ended` is done when it is gone, with the close code, or None where there was none."""

    def __init__(self, on_message: OnMessage) -> None:
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int | None] = loop.create_future()
        self._on_message = on_message
        self._opened: asyncio.Future[None] = loop.create_future()
        self._data = bytearray()
        self._code: int | None = None
        self._switched = False
        self._transport: asyncio.Transport

    @classmethod
    async def connect(cls, port: int, on_message: OnMessage) -> "LightSocket":
        """To the server on this port of this machine. Raises OSError where it refuses."""
        loop = asyncio.get_running_loop()
        _, socket = await loop.create_connection(lambda: cls(on_message), "127.0.0.1", port)
        await socket._opened
        return socket

    def send(self, message: str) -> None:
        """A text message."""
        self._transport.write(masked_frame(TEXT, message.encode()))

    def close(self) -> None:
        """Say that it is over; the server ends the connection."""
        self._transport.write(masked_frame(_CLOSE, (1000).to_bytes(2, "big")))

    def abort(self) -> None:
        """End it without a word."""
        self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for a WebSocket."""
        self._transport = cast(asyncio.Transport, transport)
        lines = (
            f"GET {STREAM_PATH} HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade",
            "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
            f"Sec-WebSocket-Protocol: {SUBPROTOCOL}", "", "",
        )  # fmt: skip
        self._transport.write("\r\n".join(lines).encode())

    def data_received(self, data: bytes) -> None:
        """Take what is whole."""
        self._data += data
        if not self._switched:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            line = bytes(self._data[: self._data.find(b"\r\n")])
            if b" 101 " not in line:
                if not self._opened.done():
                    self._opened.set_exception(ConnectionRefusedError(line.decode("latin-1")))
                self._transport.abort()
                return
            self._switched = True
            del self._data[: end + 4]
            if not self._opened.done():  # else nobody waits for it any more
                self._opened.set_result(None)
        at = 0
        while (found := self._frame(at)) is not None:
            opcode, start, end = found
            at = end
            payload = bytes(self._data[start:end])
            if opcode in (TEXT, BINARY):
                self._on_message(opcode, payload)
            elif opcode == _PING:
                self._transport.write(masked_frame(_PONG, payload))
            elif opcode == _CLOSE:
                self._code = int.from_bytes(payload[:2], "big")
                self._transport.write(masked_frame(_CLOSE, payload[:2]))
        del self._data[:at]

    def _frame(self, at: int) -> tuple[int, int, int] | None:
        """Opcode, and from where to where the payload goes."""
        data = self._data
        if len(data) < at + 2:
            return None
        size, start = data[at + 1], at + 2
        if size >= 126:
            wide = 2 if size == 126 else 8
            if len(data) < start + wide:
                return None
            size, start = int.from_bytes(data[start : start + wide], "big"), start + wide
        return None if len(data) < start + size else (data[at] & 0x0F, start, start + size)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        if not self._opened.done():
            self._opened.set_exception(ConnectionResetError("the server ended the connection before it answered"))
        if not self.ended.done():
            self.ended.set_result(self._code)
