"""Peers that break the rules: each ends with the right answer, in bounded time and memory, and the log stays empty."""

import asyncio
import logging
import os
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from websockets.asyncio.client import connect as ws_connect
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from server.gateway import connection as gateway_connection
from server.gateway import http_connection
from server.gateway.connection import CONTROL_BURST, MAX_FRAGMENTS
from server.gateway.http_connection import MAX_BODY_BYTES
from server.gateway.request_head import MAX_HEAD_BYTES
from tests.support.listening import listening
from tests.support.loops import each_loop
from tests.support.raw_http import (
    ask,
    close_code,
    connect,
    frame,
    get,
    handshake,
    parse_answers,
    read_all,
    send_and_read,
    talk,
)

MIB = 1_048_576


@pytest.fixture(autouse=True)
def _clean_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A client's fault is no event for the operator."""
    caplog.set_level(logging.WARNING)
    yield
    assert not caplog.records


async def rejected(*frames: bytes) -> int | None:
    """The close code of a WebSocket that sends `frames` to a handler that echoes; the rest must go on."""
    async with listening() as listener, ws_connect(f"ws://127.0.0.1:{listener.port}/v1/stream") as other:
        async with connect(listener.port) as (reader, writer):
            writer.write(handshake())
            await reader.readuntil(b"\r\n\r\n")
            data = await send_and_read(reader, writer, *frames)
        await other.send("undisturbed")
        assert await other.recv() == "undisturbed"
    return close_code(data)


# WebSocket


@each_loop
async def test_endless_empty_fragments() -> None:
    flood = frame(0, fin=False) * 1000
    tracemalloc.start()
    try:
        assert await rejected(frame(1, b"a", fin=False), *[flood] * 200) == 1008
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


@each_loop
async def test_fragments_below_the_bound_are_one_message() -> None:
    pieces = [frame(1, b"a", fin=False), *[frame(0, b"b", fin=False)] * (MAX_FRAGMENTS - 1), frame(0, b"c")]
    async with listening() as listener, connect(listener.port) as (reader, writer):
        for _ in range(2):  # the count starts again with each message
            writer.write(handshake() if _ == 0 else b"")
            writer.write(b"".join(pieces))
            expected = b"a" + b"b" * (MAX_FRAGMENTS - 1) + b"c"
            assert (await reader.readuntil(expected)).endswith(expected)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param(b"\x81\xff" + (1 << 40).to_bytes(8, "big") + bytes(5), 1009, id="claims 2**40 bytes"),
        pytest.param(b"\x81\xff" + (1 << 63).to_bytes(8, "big") + bytes(5), 1009, id="claims 2**63 bytes"),
        pytest.param(frame(1, b"deflated", first_bits=0x40), 1002, id="compressed, though not agreed"),
        pytest.param(frame(3, b"?"), 1002, id="unknown opcode"),
        pytest.param(b"\x81\x01a", 1002, id="not masked"),
        pytest.param(frame(0, b"a"), 1002, id="continues nothing"),
        pytest.param(frame(9, b"a", fin=False), 1002, id="ping in fragments"),
        pytest.param(frame(1, b"\xff"), 1007, id="not UTF-8"),
        pytest.param(frame(9) * (CONTROL_BURST * 3), 1008, id="flood of pings"),
        pytest.param(frame(10) * (CONTROL_BURST * 3), 1008, id="flood of pongs"),
    ],
)
@each_loop
async def test_bad_frames(data: bytes, code: int) -> None:
    assert await rejected(data) == code


@each_loop
async def test_a_message_too_big_is_not_taken_in() -> None:
    async with listening() as listener:
        websocket = await ws_connect(f"ws://127.0.0.1:{listener.port}/v1/stream", max_size=None).__aenter__()
        tracemalloc.start()
        size = 16 * MIB
        message = bytes(size)
        before = tracemalloc.get_traced_memory()[0]
        with pytest.raises(ConnectionClosed) as caught:  # noqa: PT012  # whichever of the two comes to know of it
            await websocket.send(message)
            await websocket.recv()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009
        assert grown < 3 * size  # the client's own copies; the server adds none


@each_loop
async def test_frames_before_the_handshake_is_answered_are_bounded_too() -> None:
    async with listening() as listener:
        data = await talk(listener.port, handshake() + frame(1, b"a", fin=False) + frame(0, fin=False) * 5_000)
    assert close_code(data) == 1008


@each_loop
async def test_a_peer_that_pings_and_never_reads_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_connection, "CONTROL_BURST", 10**9)
    async with listening() as listener, connect(listener.port) as (reader, writer):
        writer.write(handshake())
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # a full transport

        async def flood() -> None:
            while True:
                writer.write(frame(9, bytes(125)) * 1_000)
                await writer.drain()

        with pytest.raises(ConnectionError):
            await asyncio.wait_for(flood(), 10)


@each_loop
async def test_a_peer_that_never_reads_is_aborted() -> None:
    ended = asyncio.Event()

    async def flood(connection: ServerConnection) -> None:
        try:
            while True:
                await connection.send(bytes(65_536))
        except ConnectionClosed:
            ended.set()

    async with listening(flood, stall_timeout_s=1) as listener, connect(listener.port) as (_, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # a full transport
        writer.write(handshake())
        async with asyncio.timeout(3):
            await ended.wait()


@each_loop
async def test_a_peer_that_ignores_the_close_frame_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_connection, "CLOSE_TIMEOUT_S", 0.3)

    async def leave(connection: ServerConnection) -> None:
        await connection.close(1000)

    async with listening(leave) as listener, connect(listener.port) as (reader, writer):
        writer.write(handshake())
        before = time.monotonic()
        while not writer.transport.is_closing():  # chatting on does not help
            try:
                writer.write(frame(1, b"x"))
                await writer.drain()
                await asyncio.sleep(0.05)
            except ConnectionError:
                break
        assert time.monotonic() - before < 2
        assert close_code(await read_all(reader)) in (1000, None)


# The request head


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        pytest.param(b"\x16\x03\x01\x02\x00\x01", 400, id="TLS to a plain port"),
        pytest.param(b"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400, id="two spaces"),
        pytest.param(b"GET / HTTP/1.1\nHost: a\n\n", 400, id="bare LF"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", 400, id="bare CR"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n", 400, id="folded line"),
        pytest.param(b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400, id="space before the colon"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\x00b\r\n\r\n", 400, id="NUL"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", 400, id="no host"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, id="two hosts"),
        pytest.param(b"GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n", 400, id="target not ASCII"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, id="HTTP/2"),
        pytest.param(get("/", "Content-Length: x", method="POST"), 400, id="length no number"),
        pytest.param(get("/", "Content-Length: 3", "Transfer-Encoding: chunked", method="POST"), 400, id="two lengths"),
        pytest.param(get("/", "Transfer-Encoding: chunked", method="POST") + b"zz\r\n", 400, id="bad chunk"),
        pytest.param(get("/" + "a" * 9_000), 414, id="long target"),
        pytest.param(get("/", "X: " + "a" * 9_000), 431, id="long header"),
        pytest.param(get("/", *["X: " + "a" * 7_000] * 3), 431, id="long head"),
        pytest.param(b"GET / HTTP/1.1\r\nX: " + b"a" * MAX_HEAD_BYTES, 431, id="long head without an end"),
        pytest.param(get("/", *["X: a"] * 200), 431, id="many headers"),
        pytest.param(handshake("/v1/stream", "Content-Length: 3") + b"abc", 400, id="handshake with a body"),
        pytest.param(get("/", f"Content-Length: {MAX_BODY_BYTES + 1}", method="POST"), 413, id="long body announced"),
        pytest.param(get("/", "Content-Length: 99999999999999999999999", method="POST"), 400, id="absurd length"),
    ],
)
@each_loop
async def test_bad_requests(request_bytes: bytes, status: int) -> None:
    async with listening() as listener:
        answer = await ask(listener.port, request_bytes)
        assert answer.status == status
        assert answer.error["message"]
        assert answer.headers["connection"] == "close"


@each_loop
async def test_a_long_head_on_a_kept_connection() -> None:
    async with listening() as listener:
        for tail in (b"GET / HTTP/1.1\r\nX: ", b"GET /", b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: b\r\n" * 150):
            async with connect(listener.port) as (reader, writer):
                writer.write(get("/", close=False))
                await reader.readuntil(b"}")
                writer.write(tail + b"a" * 30_000)
                assert parse_answers(await read_all(reader))[0].status == 431


@each_loop
async def test_a_bad_request_does_not_harm_those_before_it() -> None:
    async with listening() as listener:
        for bad in (b"BAD\r\n\r\n", get("/", *["X: a"] * 200), b"GET / HTTP/1.1\r\nX: " + bytes(100_000)):
            data = await talk(listener.port, get("/", close=False) + get("/events", close=False) + bad)
            assert [answer.status for answer in parse_answers(data)] == [200, 200]


@each_loop
async def test_a_long_chunked_body_is_cut_off_while_it_comes() -> None:
    chunk = b"10000\r\n" + bytes(65_536) + b"\r\n"
    async with listening() as listener:
        data = await talk(listener.port, get("/", "Transfer-Encoding: chunked", method="POST"), *[chunk] * 40)
    assert [answer.status for answer in parse_answers(data)] == [413]


# Slow peers


@each_loop
async def test_half_handshakes_end_on_time_and_give_back_their_descriptors() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # listing, no paths

    async def trickle(port: int, first: bytes) -> float:
        async with connect(port) as (reader, writer):
            began = time.monotonic()
            writer.write(first)
            reading = asyncio.ensure_future(reader.read())
            while not reading.done():
                if first and not writer.transport.is_closing():
                    writer.write(b"x")
                await asyncio.wait([reading], timeout=0.1)
            if reading.exception() is None and reading.result():
                assert parse_answers(reading.result())[0].status == 408
            return time.monotonic() - began

    async with listening(head_timeout_s=0.5) as listener:
        before = descriptors()
        firsts = [b"", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nX: ", handshake()[:-2]]
        times = await asyncio.gather(*(trickle(listener.port, first) for first in firsts * 10))
        assert min(times) > 0.4
        assert max(times) < 2.0
        await asyncio.sleep(0.2)
        assert listener.connection_count == 0
        assert descriptors() == before


@each_loop
async def test_half_a_tls_handshake_ends_on_time() -> None:
    async with listening(secure=True, head_timeout_s=0.3) as listener:
        before = time.monotonic()
        assert await talk(listener.port, b"\x16\x03\x01\x02\x00\x01") == b""
        assert time.monotonic() - before < 1.5


@each_loop
async def test_a_slow_second_head_ends_on_time() -> None:
    async with listening(head_timeout_s=0.4) as listener, connect(listener.port) as (reader, writer):
        writer.write(get("/", close=False))
        await reader.readuntil(b"}")
        before = time.monotonic()
        reading = asyncio.ensure_future(reader.read())
        for byte in b"\r\n\r\n" + get("/"):
            if reading.done() or writer.transport.is_closing():
                break
            writer.write(bytes([byte]))
            await asyncio.wait([reading], timeout=0.05)
        assert parse_answers(await reading)[0].status == 408
        assert 0.3 < time.monotonic() - before < 1.5


@each_loop
async def test_a_slow_body_ends_on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "BODY_TIMEOUT_S", 0.3)
    async with listening() as listener:
        answer = await ask(listener.port, get("/", "Content-Length: 10", method="POST") + b"abc")
    assert answer.status == 408


@each_loop
async def test_an_idle_kept_connection_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "KEEP_ALIVE_S", 1.0)
    async with listening() as listener:
        before = time.monotonic()
        assert b'"length":0' in await talk(listener.port, get("/", close=False))
        assert 0.8 < time.monotonic() - before < 2.5


@each_loop
async def test_a_reader_of_http_that_stalls_is_aborted() -> None:
    async with listening(stall_timeout_s=1) as listener, connect(listener.port) as (_, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # a full transport
        writer.write(get("/endless"))
        await asyncio.sleep(0.5)
        assert listener.connection_count == 1
        await asyncio.sleep(1.5)
        assert listener.connection_count == 0


@each_loop
async def test_a_client_that_leaves_stops_the_work_for_it() -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def slow(_: Request) -> Response:
        return JSONResponse({})

    async def work(connection: ServerConnection) -> None:
        started.set()
        try:
            await connection.recv()
        except ConnectionClosed:
            stopped.set()

    async with listening(work, app=Route("/", slow)) as listener:
        async with connect(listener.port) as (_, writer):
            writer.write(handshake())
            await asyncio.wait_for(started.wait(), 2)
        await asyncio.wait_for(stopped.wait(), 1)


# Many peers


@each_loop
async def test_too_many_connections_are_refused_at_once() -> None:
    limit = 1 * 2 + 64
    async with listening(max_sessions=1) as listener:
        held = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(limit)]
        await asyncio.sleep(0.05)
        assert listener.connection_count == limit
        answer = parse_answers(await talk(listener.port))[0]
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        more = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(100)]
        await asyncio.sleep(0.1)
        assert listener.connection_count <= limit + 16  # beyond, there is not even an answer
        for _, writer in (*held, *more):
            writer.transport.abort()
        await asyncio.sleep(0.1)
        assert listener.connection_count == 0
        assert (await ask(listener.port, get("/"))).status == 200
