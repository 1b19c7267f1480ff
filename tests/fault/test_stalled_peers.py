"""Peers that stop reading: whatever the server or the client does next with them ends in bounded time and memory."""

import asyncio
import socket
import time

import pytest

import client
from bench._common import percentile
from deploy.faulty_proxy import DOWN, UP, Connection, Direction
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import encode
from server.gateway import listener as gateway_listener
from tests.support.faults import SHORT, Scene, descriptors, scene, speak
from tests.support.loops import each_loop
from tests.support.resumer import Resumer
from tests.support.server import running, url_of

LONG = "山高水远，天蓝云白，风轻日暖。" * 60
TALL_ORDER = 100_000  # pings


async def connections_gone(there: Scene, timeout: float) -> float:
    """How long it takes until the server has no connection any more."""
    listener = there.server.listener
    assert listener is not None
    began = time.monotonic()
    async with asyncio.timeout(timeout):
        while listener.connection_count:
            await asyncio.sleep(0.01)
    return time.monotonic() - began


@each_loop
async def test_the_connection_is_given_up_and_the_session_kept() -> None:
    async with scene(detach_after_s=0.6, resume_ttl_s=3.0, buffer_bytes=8_192) as there:
        undisturbed = await there.undisturbed(LONG)
        bare = Resumer(there.proxy.url)
        await bare.open()
        await bare.say(1, LONG)
        await bare.until_bytes(100_000)
        connection = await there.proxy.connection(1)
        connection.stall(DOWN)
        assert await connections_gone(there, 3.0) < 2.0
        assert there.server.sessions.taken == 1
        bare.abort()
        await bare.resume()
        await bare.until(s.Done)
        assert bytes(bare.pcm) == undisturbed.pcm
        await bare.close()


async def test_keep_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gateway_listener._BOUNDS, "ping_interval", 0.2)
    monkeypatch.setitem(gateway_listener._BOUNDS, "ping_timeout", 0.3)
    await asyncio.gather(one_that_has_nothing_to_read_is_found(), one_that_reads_nothing_is_found())


async def one_that_has_nothing_to_read_is_found() -> None:
    """Its pongs do not come."""
    async with scene(alone=False) as there:
        bare = Resumer(there.proxy.url)
        await bare.open()
        (await there.proxy.connection(1)).silence()
        assert await connections_gone(there, 4.0) < 3.0
        assert there.server.sessions.taken == 1
        await bare.resume()
        await bare.close()


async def one_that_reads_nothing_is_found() -> None:
    """The ping itself cannot be written: the trap that ping and pong alone fall into."""
    async with scene(alone=False, stall_timeout_s=1.0, buffer_bytes=4_096) as there:
        bare = Resumer(there.proxy.url)
        await bare.open()
        connection = await there.proxy.connection(1)
        connection.stall(DOWN)
        flooding = asyncio.create_task(_flood(bare))
        try:
            assert await connections_gone(there, 6.0) < 5.0
        finally:
            flooding.cancel()
            await asyncio.gather(flooding, return_exceptions=True)
        bare.abort()


async def _flood(bare: Resumer) -> None:
    """Questions without end; the answers are never read."""
    ping = encode(c.Ping(1))
    for _ in range(TALL_ORDER):
        await bare.client.socket.send(ping)


async def test_the_server_stops_in_bounded_time() -> None:
    hows = (lambda each: each.stall(DOWN), Connection.silence, Connection.half_open)
    before = descriptors()
    async with scene(drain_timeout_s=0.5, buffer_bytes=4_096) as there:
        bares = []
        for number, how in enumerate(3 * hows, 1):
            bare = Resumer(there.proxy.url)
            await bare.open()
            await bare.say(1, LONG)
            await bare.until_bytes(20_000)
            how(await there.proxy.connection(number))
            bares.append(bare)
        floods = [asyncio.create_task(_flood(bare)) for bare in bares[:3]]
        await asyncio.sleep(0.1)
        began = time.monotonic()
        await there.server.stop()
        took = time.monotonic() - began
        for task in floods:
            task.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
        for bare in bares:
            bare.abort()
        assert took < 0.5 + 3.5
        assert there.server.sessions.taken == 0
    await asyncio.sleep(0.05)
    assert descriptors() <= before + 2


async def test_a_session_in_the_middle_of_a_resume_does_not_hold_up_the_stop() -> None:
    async with running(drain_timeout_s=0.2) as server:
        bare = Resumer(url_of(server))
        await bare.open()
        await bare.say(1, LONG)
        await bare.until_bytes(20_000)
        bare.abort()
        half = [await bare.dial() for _ in range(5)]  # connected, and silent
        began = time.monotonic()
        await server.stop()
        assert time.monotonic() - began < 3.0
        for each in half:
            each.socket.transport.abort()


async def test_the_client_closes_in_bounded_time() -> None:
    await asyncio.gather(*(the_client_closes_in_bounded_time(*ways) for ways in ((UP,), (DOWN,), (UP, DOWN))))


async def the_client_closes_in_bounded_time(*ways: Direction) -> None:
    """While nothing is read."""
    async with scene(alone=False, resume_ttl_s=0.5, detach_after_s=0.5, drain_timeout_s=0.1) as there:
        session = await client.connect(there.proxy.url)
        utterance = await session.start()
        await utterance.write(LONG)
        await anext(utterance)
        connection = await there.proxy.connection(1)
        for way in ways:
            connection.stall(way)
        began = time.monotonic()
        await session.close()
        assert time.monotonic() - began < 3.0
        connection.reset()


async def test_a_reader_who_stops_costs_little_and_disturbs_nobody() -> None:
    async with scene(detach_after_s=3.0) as there:
        url = url_of(there.server)
        alone = await _time_to_end(url)
        text = LONG * 22  # 20,000 characters
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", there.proxy.upstream_port))
        bare = Resumer(url, {"sock": raw})
        await bare.open()
        for number, at in enumerate(range(0, len(text), 16_000)):
            if number == 0:
                await bare.client.numbered(c.Start, utterance=1)
            await bare.client.numbered(c.Text, text=text[at : at + 16_000])
        bare.client.socket.transport.pause_reading()
        times = []
        for _ in range(4):
            await asyncio.sleep(0.4)
            times.append(await _time_to_end(url))
        live = there.server.sessions._live[bare.state.session]
        assert live.session.delivery.ring.bytes < 2_000_000
        assert percentile(times, 0.9) < 2 * alone + 0.3
        bare.abort()


async def _time_to_end(url: str) -> float:
    began = time.monotonic()
    await speak(url, SHORT)
    return time.monotonic() - began
