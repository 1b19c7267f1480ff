"""One WebSocket of the client: what is posted goes out in order, and of the acks those that still tell something."""

import asyncio
from typing import Any

import pytest

from client.errors import ClientError, ConnectFailed
from client.wire import Socket, Wire
from protocol import client_messages as c
from protocol import decode_client


class FakeTransport:
    """Remembers that it was aborted."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True


class FakeSocket:
    """Sends when it is allowed to, and never hears anything."""

    heard_at = 0.0

    def __init__(self) -> None:
        self.transport = FakeTransport()
        self.may_send = asyncio.Event()
        self.sent: list[c.ClientMessage] = []

    async def send(self, data: str | bytes) -> None:
        await self.may_send.wait()
        self.sent.append(decode_client(data))

    async def recv(self) -> str:
        await asyncio.Event().wait()
        raise AssertionError


class Heard:
    """What a wire told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def wire_opened(self, wire: Wire) -> None:
        self.told.append("opened")

    def wire_refused(self, wire: Wire, error: ClientError) -> None:
        self.told.append(f"refused: {error}")

    def wire_received(self, wire: Wire, data: str | bytes) -> None:
        self.told.append("received")

    def wire_closed(self, wire: Wire, code: int | None, reason: str) -> None:
        self.told.append("closed")

    def wire_sent(self, wire: Wire) -> None:
        """Of no interest."""


async def opened(socket: Any) -> Socket:
    return socket  # type: ignore[no-any-return]  # it behaves like one


async def test_the_newest_ack_of_each_utterance_is_sent() -> None:
    socket, heard = FakeSocket(), Heard()
    wire = Wire(1, lambda: opened(socket), heard)
    await asyncio.sleep(0)
    messages: list[c.ClientMessage] = [c.Ack(1, 1, 10), c.Ack(1, 1, 20, 20), c.Ack(1, 2, 0), c.End(1), c.Ack(1, 2, 30)]
    for message in messages:
        wire.post(message)
    socket.may_send.set()
    await asyncio.sleep(0.01)
    assert socket.sent == [c.Ack(1, 1, 20, 20), c.End(1), c.Ack(1, 2, 30)]
    wire.abort()
    await asyncio.gather(wire.task, return_exceptions=True)
    assert socket.transport.aborted
    assert heard.told == ["opened"]


async def test_an_abort_while_it_opens_says_nothing() -> None:
    heard = Heard()

    async def refused() -> Socket:
        await asyncio.sleep(0.01)
        raise ConnectFailed("no")

    wire = Wire(1, refused, heard)
    await asyncio.sleep(0)
    wire.abort()
    with pytest.raises(asyncio.CancelledError):
        await wire.task
    assert heard.told == []
    await Wire(2, refused, heard).task
    assert heard.told == ["refused: no"]
