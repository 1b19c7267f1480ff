"""A relay between two WebSockets: every message, every kind of end, and a reader that stops."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Gauge
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.asyncio.server import ServerConnection, serve, unix_serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from protocol import SUBPROTOCOL
from protocol import client_messages as c
from protocol.errors import ErrorCode, ProtocolError
from server.gateway.relay import MAX_QUEUE, Elsewhere, Relay, TryAgain
from server.gateways.names import gateway_name, session_prefix
from server.gateways.siblings import Siblings

Owner = Callable[[ServerConnection], Awaitable[None]]


async def how_it_ends(connection: ClientConnection | ServerConnection) -> tuple[int, str] | None:
    """Read to the end: the close frame that came, or None."""
    try:
        while True:
            await connection.recv()
    except ConnectionClosed as closed:
        return None if closed.rcvd is None else (closed.rcvd.code, closed.rcvd.reason)


@asynccontextmanager
async def relayed(folder: Path, owner: Owner) -> AsyncIterator[tuple[ClientConnection, list[Relay]]]:
    """A client of `owner`, through a relay."""
    gauge = Gauge("relayed", "relayed", registry=CollectorRegistry())
    relays: list[Relay] = []

    async def front(client: ServerConnection) -> None:
        connection = await unix_connect(str(folder / "s"), compression=None, max_size=None, max_queue=MAX_QUEUE)
        relays.append(Relay(client, connection, gauge))
        assert gauge._value.get() == 0
        await relays[0].run()
        assert gauge._value.get() == 0

    async with (
        unix_serve(owner, str(folder / "s"), compression=None, max_size=None),
        serve(front, "127.0.0.1", 0, compression=None, max_queue=16) as server,
        connect(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}", compression=None, max_size=None) as client,
    ):
        yield client, relays


async def test_messages_arrive_both_ways_in_order_and_of_their_kind(tmp_path: Path) -> None:
    sizes = [0, 1, 125, 126, 65_536, 262_144] * 20
    sent: list[str | bytes] = [os.urandom(size) if at % 2 else "你" * (size // 3) for at, size in enumerate(sizes)]

    async def echo(connection: ServerConnection) -> None:
        async for message in connection:
            await connection.send(message)

    async with relayed(tmp_path, echo) as (client, _):

        async def send() -> None:
            for message in sent:
                await client.send(message)

        sending = asyncio.create_task(send())
        async with asyncio.timeout(20):
            for message in sent:
                assert await client.recv() == message
            await sending


@pytest.mark.parametrize("close", [(1000, ""), (1001, "bye"), (1012, "你好"), (4001, "x" * 123)])
async def test_closes_are_told_as_they_were(tmp_path: Path, close: tuple[int, str]) -> None:
    heard: list[tuple[int, str] | None] = []

    async def listen(connection: ServerConnection) -> None:
        heard.append(await how_it_ends(connection))

    async with relayed(tmp_path, listen) as (client, _):
        await client.send("x")
        await client.close(*close)
    assert heard == [close]

    async def leave(connection: ServerConnection) -> None:
        await connection.send("the last word")
        await connection.close(*close)

    (tmp_path / "s").unlink(missing_ok=True)
    async with relayed(tmp_path, leave) as (client, _):
        assert await client.recv() == "the last word"
        assert await how_it_ends(client) == close


async def test_what_breaks_at_one_end_breaks_at_the_other(tmp_path: Path) -> None:
    heard: asyncio.Future[tuple[int, str] | None] = asyncio.get_running_loop().create_future()

    async def listen(connection: ServerConnection) -> None:
        heard.set_result(await how_it_ends(connection))

    async with relayed(tmp_path, listen) as (client, _), asyncio.timeout(5):
        await client.send("x")
        client.transport.abort()
        assert await heard is None

    async def vanish(connection: ServerConnection) -> None:
        await connection.recv()
        connection.transport.abort()

    (tmp_path / "s").unlink(missing_ok=True)
    async with relayed(tmp_path, vanish) as (client, _), asyncio.timeout(5):
        await client.send("x")
        assert await how_it_ends(client) is None


async def test_an_owner_that_takes_nothing_does_not_keep_the_relay_of_a_client_that_left(tmp_path: Path) -> None:
    freed = asyncio.Event()

    async def take_nothing(connection: ServerConnection) -> None:
        await freed.wait()

    async with relayed(tmp_path, take_nothing) as (client, relays):
        # More than the owner's queue takes, and too little to stop the reading of the client.
        for _ in range(24):
            await client.send(bytes(65_536))
        await asyncio.sleep(0.2)
        assert not relays[0].over
        client.transport.abort()
        try:
            async with asyncio.timeout(5):
                while not relays[0].over:
                    await asyncio.sleep(0.01)
        finally:
            freed.set()


async def test_a_reader_that_stops_makes_the_writer_wait(tmp_path: Path) -> None:
    taken: list[int] = []

    async def talk(connection: ServerConnection) -> None:
        try:
            while True:
                await connection.send(bytes(32_768))
                taken.append(32_768)
        except ConnectionClosed:
            pass

    async with relayed(tmp_path, talk) as (client, _):
        before = -1
        while len(taken) != before:  # until nothing moves any more
            before = len(taken)
            await asyncio.sleep(0.3)
        assert 0 < sum(taken) < 16 * 1024 * 1024  # sockets on the way may hold some megabytes, the relay a few messages
        for _ in range(before + 100):
            await client.recv()
        assert len(taken) >= before + 100
        client.transport.abort()


async def test_stopping_waits_for_the_client_until_the_deadline(tmp_path: Path) -> None:
    async def listen(connection: ServerConnection) -> None:
        assert await how_it_ends(connection) == (1012, "the server is stopping")

    async with relayed(tmp_path, listen) as (client, relays):
        await client.send("x")
        async with asyncio.timeout(5):
            while not relays:
                await asyncio.sleep(0.01)
            stopping = asyncio.create_task(relays[0].stop(300))
            ending = asyncio.create_task(how_it_ends(client))
            await asyncio.sleep(0.1)
            assert not ending.done()
            assert await ending == (1012, "the server is stopping")
            await stopping


@pytest.mark.parametrize(("status", "raised"), [(401, ProtocolError), (503, TryAgain)])
async def test_a_key_that_the_owner_refuses_is_refused_and_not_tried_for_ever(
    tmp_path: Path, status: int, raised: type[Exception]
) -> None:
    ours, owner = gateway_name(1, "00ab34ef"), gateway_name(2, "00ab34ef")
    siblings = Siblings(ours, tmp_path)
    siblings.update([ours, owner])
    gauge = Gauge("relayed", "relayed", registry=CollectorRegistry())
    elsewhere = Elsewhere(siblings, gauge, relays=True)
    resume = c.Resume(session_prefix(owner) + "x", "token", 1, 0, 0, 0, 0)
    caught: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    async def front(client: ServerConnection) -> None:
        try:
            await elsewhere.before_claim(resume, client)
        except Exception as problem:  # noqa: BLE001  # looked at below
            caught.set_result(problem)

    def refuse(connection: ServerConnection, _: Request) -> Response:
        return connection.respond(status, "no")

    async def never(_: ServerConnection) -> None: ...

    async with (
        unix_serve(
            never, str(siblings.socket_of(owner)), process_request=refuse, subprotocols=[Subprotocol(SUBPROTOCOL)]
        ),
        serve(front, "127.0.0.1", 0) as server,
        connect(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"),
    ):
        problem = await asyncio.wait_for(caught, 5)
    assert isinstance(problem, raised)
    assert not isinstance(problem, ProtocolError) or problem.code == ErrorCode.UNAUTHORIZED
