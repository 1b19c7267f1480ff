"""The line that fails on request does exactly what it is told, and leaves nothing behind."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from deploy.faulty_proxy import DOWN, UP, Connection, Cut, FaultyProxy, next_attempt
from tests.support.loops import each_loop

PATIENCE_S = 5.0


@dataclass
class End:
    """One accepted connection of the test's own server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


@dataclass
class Place:
    """A server that does nothing by itself, behind a proxy."""

    proxy: FaultyProxy
    ends: list[End] = field(default_factory=list)
    came: asyncio.Event = field(default_factory=asyncio.Event)

    async def dial(self) -> End:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy.port)
        return End(reader, writer)

    async def pair(self) -> tuple[End, End]:
        """A client's end and the server's end of one connection."""
        count = len(self.ends)
        client = await self.dial()
        async with asyncio.timeout(PATIENCE_S):
            while len(self.ends) == count:
                self.came.clear()
                await self.came.wait()
        return client, self.ends[-1]


@asynccontextmanager
async def place(*, tcp_backoff: bool = False, buffer_bytes: int = 65_536) -> AsyncIterator[Place]:
    """Closed in the end; fails where descriptors stay behind."""
    found: Place

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.ends.append(End(reader, writer))
        found.came.set()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    before = descriptors()
    try:
        async with FaultyProxy(port, tcp_backoff=tcp_backoff, buffer_bytes=buffer_bytes) as proxy:
            found = Place(proxy)
            yield found
        assert proxy.connections == []
    finally:
        close(*found.ends)
        await asyncio.sleep(0.02)
        left = descriptors() - before
        server.close()
        await server.wait_closed()
    assert left <= 0


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # listing, no paths


async def read(end: End, size: int) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return await end.reader.readexactly(size)


async def until_end(end: End, seconds: float) -> bytes:
    """What comes until a FIN, a RST or so long a silence."""
    data = b""
    try:
        async with asyncio.timeout(seconds):
            while piece := await end.reader.read(10_000):
                data += piece
    except (ConnectionResetError, TimeoutError):
        pass
    return data


async def is_silent(end: End, seconds: float = 0.1) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await end.reader.read(1)
    except TimeoutError:
        return True
    return False


def close(*ends: End) -> None:
    for end in ends:
        end.writer.transport.abort()


@each_loop
async def test_bytes_pass_both_ways_and_both_ends_close_in_order() -> None:
    async with place() as there:
        client, server = await there.pair()
        data = os.urandom(1_000_000)
        client.writer.write(data)
        server.writer.write(data[::-1])
        up, down = await asyncio.gather(read(server, len(data)), read(client, len(data)))
        assert (up, down[::-1]) == (data, data)
        assert there.proxy.carried == {UP: len(data), DOWN: len(data)}
        client.writer.write_eof()
        assert await server.reader.read() == b""
        server.writer.write(b"still open")
        assert await read(client, 10) == b"still open"
        server.writer.close()
        assert await client.reader.read() == b""
        client.writer.close()
        await asyncio.sleep(0.02)
        assert there.proxy.connections == []


@each_loop
async def test_delay_holds_both_for_data_and_for_connecting() -> None:
    async with place() as there:
        there.proxy.change(UP, DOWN, delay_s=0.05)
        began = time.monotonic()
        client = await there.dial()
        client.writer.write(b"a")
        async with asyncio.timeout(PATIENCE_S):
            await there.came.wait()
        server = there.ends[0]
        assert await read(server, 1) == b"a"
        server.writer.write(b"b")
        assert await read(client, 1) == b"b"
        took = time.monotonic() - began
        assert 0.195 < took < 0.35  # one round trip to connect, one to ask
        close(client)


@each_loop
async def test_a_rate_is_kept_by_all_connections_together() -> None:
    async with place(buffer_bytes=8_192) as there:
        there.proxy.change(DOWN, rate=100_000)
        pairs = [await there.pair() for _ in range(2)]
        began = time.monotonic()
        for _, server in pairs:
            server.writer.write(bytes(20_000))
        await asyncio.gather(*(read(client, 20_000) for client, _ in pairs))
        assert 0.35 < time.monotonic() - began < 0.7
        close(*(client for client, _ in pairs))


@each_loop
async def test_jitter_never_changes_the_order() -> None:
    async with place() as there:
        there.proxy.change(UP, jitter_s=0.01)
        client, server = await there.pair()
        sent = b"".join(n.to_bytes(2, "big") for n in range(100))
        for at in range(0, len(sent), 2):
            client.writer.write(sent[at : at + 2])
            await asyncio.sleep(0)
        assert await read(server, len(sent)) == sent
        close(client)


@each_loop
async def test_a_hole_holds_everything_and_gives_it_back_in_order() -> None:
    async with place() as there:
        client, server = await there.pair()
        client.writer.write(b"1")
        assert await read(server, 1) == b"1"
        there.proxy.hole(UP)
        client.writer.write(b"2")
        assert await is_silent(server)
        server.writer.write(b"down is free")
        assert await read(client, 12) == b"down is free"
        client.writer.write(b"3")
        there.proxy.heal()
        assert await read(server, 2) == b"23"
        close(client)


@each_loop
async def test_after_a_hole_the_old_connection_waits_for_its_next_attempt_and_a_new_one_does_not() -> None:
    async with place(tcp_backoff=True) as there:
        client, server = await there.pair()
        there.proxy.hole(UP, DOWN)
        lost = time.monotonic()
        server.writer.write(b"old")
        await asyncio.sleep(0.7)  # attempts after 0.2, 0.6 and 1.4 s
        there.proxy.heal()
        fresh, fresh_server = await there.pair()
        fresh_server.writer.write(b"new")
        assert await read(fresh, 3) == b"new"
        assert time.monotonic() - lost < 0.9
        assert await read(client, 3) == b"old"
        assert 1.3 < time.monotonic() - lost < 1.6
        close(client, fresh)


@each_loop
async def test_a_connection_asked_for_in_a_hole_comes_with_its_next_attempt() -> None:
    async with place(tcp_backoff=True) as there:
        there.proxy.hole(UP, DOWN)
        began = time.monotonic()
        client = await there.dial()
        client.writer.write(b"hello")
        await asyncio.sleep(0.2)
        there.proxy.heal()
        async with asyncio.timeout(PATIENCE_S):
            await there.came.wait()
        assert await read(there.ends[0], 5) == b"hello"
        assert 0.95 < time.monotonic() - began < 1.3
        close(client)


@each_loop
async def test_a_client_that_gave_up_in_a_hole_never_reaches_the_server() -> None:
    async with place(tcp_backoff=True) as there:
        there.proxy.hole(UP, DOWN)
        client = await there.dial()
        close(client)
        await asyncio.sleep(0.05)
        there.proxy.heal()
        await asyncio.sleep(0.05)
        assert there.ends == []


@each_loop
async def test_without_acknowledgements_a_sender_stops_soon() -> None:
    async with place(tcp_backoff=True) as there:
        client, server = await there.pair()
        there.proxy.hole(DOWN)
        client.writer.write(b"a")
        assert await read(server, 1) == b"a"
        await asyncio.sleep(0.25)
        client.writer.write(b"b")
        assert await is_silent(server)
        there.proxy.heal()
        assert await read(server, 1) == b"b"
        close(client)


def test_attempts_double_their_distance() -> None:
    times = [next_attempt(10.0, 0.25, now) for now in (10.0, 10.3, 10.8, 12.0, 14.0)]
    assert times == [10.25, 10.75, 11.75, 13.75, 17.75]
    assert next_attempt(0.0, 1.0, 400.0) == 127 + 3 * 120


@each_loop
async def test_a_reset_reaches_both_ends() -> None:
    async with place() as there:
        client, server = await there.pair()
        there.proxy.each(Connection.reset)
        for end in (client, server):
            with pytest.raises(ConnectionResetError):
                await asyncio.wait_for(end.reader.read(1), PATIENCE_S)


@each_loop
async def test_a_fin_reaches_both_ends() -> None:
    async with place() as there:
        client, server = await there.pair()
        there.proxy.each(Connection.finish)
        assert [await asyncio.wait_for(end.reader.read(), PATIENCE_S) for end in (client, server)] == [b"", b""]
        close(client, server)


@each_loop
async def test_a_reset_by_one_end_is_a_reset_at_the_other() -> None:
    async with place() as there:
        client, server = await there.pair()
        server.writer.write(b"unread")
        await asyncio.sleep(0.05)
        client.reader._buffer.clear()  # type: ignore[attr-defined]
        client.writer.get_extra_info("socket").setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SO_LINGER: closing sends a RST
        close(client)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(server.reader.read(1), PATIENCE_S)


@each_loop
async def test_half_open() -> None:
    async with place() as there:
        client, server = await there.pair()
        (await there.proxy.connection(1)).half_open()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(client.reader.read(1), PATIENCE_S)
        assert await is_silent(server)
        server.writer.write(b"anybody?")
        assert await is_silent(server)


@each_loop
async def test_silence() -> None:
    async with place() as there:
        client, server = await there.pair()
        there.proxy.each(Connection.silence)
        client.writer.write(b"a")
        server.writer.write(b"b")
        assert await is_silent(server)
        assert await is_silent(client)
        other, other_server = await there.pair()
        other.writer.write(b"c")
        assert await read(other_server, 1) == b"c"
        there.proxy.each(Connection.heal)
        assert await read(server, 1) == b"a"
        assert await read(client, 1) == b"b"
        close(client, other)


@each_loop
async def test_a_stalled_side_makes_its_sender_wait_within_the_buffers() -> None:
    async with place(buffer_bytes=16_384) as there:
        client, server = await there.pair()
        connection = await there.proxy.connection(1)
        connection.stall(DOWN)
        server.writer.transport.set_write_buffer_limits(high=0)
        server.writer.write(bytes(16_000_000))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(server.writer.drain(), 0.3)
        assert await is_silent(client)
        connection.stall(DOWN, False)
        await read(client, 16_000_000)
        close(client)


@each_loop
async def test_a_hole_s_buffer_is_bounded() -> None:
    async with place(buffer_bytes=16_384) as there:
        _, server = await there.pair()
        there.proxy.hole(DOWN)
        connection = await there.proxy.connection(1)
        server.writer.write(bytes(16_000_000))
        await asyncio.sleep(0.2)
        assert connection.pipes[DOWN]._held < 16_384 + 300_000  # one read of the event loop more


@pytest.mark.parametrize("how", [Connection.reset, Connection.finish, Connection.silence])
@each_loop
async def test_a_cut_is_exact(how: object) -> None:
    assert callable(how)
    async with place() as there:
        for place_ in (0, 1, 999, 1_000, 1_001):
            there.proxy.cut_next(Cut(UP, how, byte=place_))
            client, server = await there.pair()
            for _ in range(3):
                client.writer.write(bytes(1_000))
            assert len(await until_end(server, 0.1)) == place_
            close(client, server)
        assert there.proxy.accepted == 5


@each_loop
async def test_a_cut_at_a_message_s_end() -> None:
    head = b"HTTP/1.1 101 \r\n\r\n"
    message = b"\x82\x0a" + bytes(10)
    async with place() as there:
        for shift in (-1, 0, 1):
            there.proxy.cut_next(Cut(DOWN, Connection.reset, message=2, shift=shift))
            client, server = await there.pair()
            server.writer.write(head + 4 * message)
            got = await until_end(client, PATIENCE_S)
            assert len(got) == len(head) + 2 * len(message) + shift
            close(server)


@each_loop
async def test_refused_connections_are_reset_and_not_counted() -> None:
    async with place() as there:
        there.proxy.refusing = True
        client = await there.dial()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(client.reader.read(1), PATIENCE_S)
        there.proxy.refusing = False
        client, server = await there.pair()
        client.writer.write(b"a")
        assert await read(server, 1) == b"a"
        assert there.proxy.accepted == 1
        close(client)


@each_loop
async def test_a_server_that_is_not_there_is_a_reset() -> None:
    async with place() as there:
        there.proxy.upstream_port = 1
        client = await there.dial()
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(client.reader.read(1), PATIENCE_S)


@each_loop
async def test_connections_are_waited_for_by_number() -> None:
    async with place() as there:
        waiting = asyncio.ensure_future(there.proxy.connection(2))
        first, _ = await there.pair()
        assert not waiting.done()
        second, _ = await there.pair()
        assert (await asyncio.wait_for(waiting, PATIENCE_S)).number == 2
        connection = await there.proxy.connection(1)
        connection.reset()
        await asyncio.wait_for(connection.closed.wait(), PATIENCE_S)
        await asyncio.sleep(0.02)
        with pytest.raises(LookupError, match="connection 1"):
            await there.proxy.connection(1)
        close(first, second)
