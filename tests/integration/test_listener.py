"""The one port: WebSockets and HTTP side by side, plain and with TLS, on both event loops, and how it ends."""

import asyncio
import logging
import socket
import ssl
import time
from pathlib import Path

import pytest
import structlog.testing
from websockets.asyncio.client import connect as ws_connect
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.typing import Origin, Subprotocol

from protocol import SUBPROTOCOL
from server.gateway.auth import Principals, hash_key
from server.gateway.listener import ListenError, start_listener
from server.settings import Settings
from tests.support.listening import echo, listening, small_app
from tests.support.loops import each_loop
from tests.support.raw_http import TLS, ask, client_tls, connect, get, handshake, parse_answers, read_all, talk


def url(port: int, path: str = "/v1/stream", *, secure: bool = False) -> str:
    return f"{'wss' if secure else 'ws'}://127.0.0.1:{port}{path}"


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@each_loop
async def test_websocket_and_http_share_the_port(secure: bool) -> None:
    async with listening(secure=secure) as listener:
        assert listener.urls == (f"{'https' if secure else 'http'}://127.0.0.1:{listener.port}",)
        async with ws_connect(url(listener.port, secure=secure), ssl=client_tls() if secure else None) as websocket:
            assert not websocket.protocol.extensions
            await websocket.send("你好")
            assert await websocket.recv() == "你好"
            answer = await ask(listener.port, get("/", method="POST", body=b"x" * 100_000), secure=secure)
            assert answer.status == 200
            assert b'"length":100000' in answer.body
            assert "date" in answer.headers
            assert "server" not in answer.headers


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@each_loop
async def test_streamed_kept_alive_pipelined_and_chunked_http(secure: bool) -> None:
    chunked = get("/", "Transfer-Encoding: chunked", method="POST", close=False) + b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
    async with listening(secure=secure) as listener:
        data = await talk(
            listener.port,
            get("/", close=False) + get("/events", close=False),
            chunked,
            get("/", method="POST", close=False, body=b"12"),
            get("/nothing"),
            secure=secure,
        )
    statuses, bodies = zip(*((each.status, each.body) for each in parse_answers(data)), strict=True)
    assert statuses == (200, 200, 200, 200, 404)
    assert bodies[1] == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    assert [b'"length":%d' % n in bodies[i] for i, n in ((0, 0), (2, 7), (3, 2))] == [True] * 3


@each_loop
async def test_head_and_expect_and_a_foreign_upgrade() -> None:
    async with listening() as listener:
        answer = await ask(listener.port, get("/events", method="HEAD"), "HEAD")
        assert (answer.status, answer.body) == (200, b"")
        async with connect(listener.port) as (reader, writer):
            writer.write(get("/", "Expect: 100-continue", "Content-Length: 3", method="POST"))
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"abc")
            assert b'"length":3' in await read_all(reader)
        before = time.monotonic()
        answer = await ask(listener.port, get("/", "Connection: Upgrade", "Upgrade: h2c", close=False))
        assert answer.status == 200
        assert time.monotonic() - before < 2  # ended, and not by the time-out of kept connections


@each_loop
async def test_a_request_may_arrive_byte_by_byte() -> None:
    async with listening() as listener:
        request = get("/", method="POST", body=b"abc")
        (answer,) = parse_answers(await talk(listener.port, *(bytes([each]) for each in b"\r\n" + request)))
        assert b'"length":3' in answer.body
        async with connect(listener.port) as (reader, writer):
            for each in handshake():
                writer.write(bytes([each]))
                await asyncio.sleep(0)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")


@each_loop
async def test_only_a_real_upgrade_is_taken_for_one() -> None:
    async with listening() as listener:
        for request in (
            get("/", "X-Note: upgrade: websocket", "Cookie: Connection: Upgrade"),
            get("/", "Upgrade: websocket"),
            get("/", "Connection: close, upgraded", "Upgrade: websocket", close=False),
            get("/", "Connection: close, Upgrade", "Upgrade: websocket", method="POST", close=False),
        ):
            assert (await ask(listener.port, request)).status == 200
        upgrade = handshake().replace(b"Connection: Upgrade", b"connection: keep-alive , uPGRADE")
        async with connect(listener.port) as (reader, writer):
            writer.write(upgrade.replace(b"Upgrade: websocket", b"UPGRADE:WebSocket"))
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")


@each_loop
@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
async def test_a_connection_that_was_kept_may_become_a_websocket(secure: bool) -> None:
    """Proxies keep connections and use them for whatever comes next."""
    cases = [
        (handshake(), 10_000, b"HTTP/1.1 101 "),
        (handshake(), 7, b"HTTP/1.1 101 "),
        (handshake("/v1/other"), 10_000, b"HTTP/1.1 404 "),
        (b"GET / HTTP/1.1\nHost: x\n\n", 10_000, b"HTTP/1.1 400 "),
    ]
    async with listening(secure=secure) as listener:
        for request, step, answer in cases:
            async with connect(listener.port, secure=secure) as (reader, writer):
                for before in (get("/", close=False), get("/", method="POST", close=False, body=b"12")):
                    writer.write(before)
                    head = await reader.readuntil(b"\r\n\r\n")
                    await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
                for at in range(0, len(request), step):
                    writer.write(request[at : at + step])
                    await writer.drain()
                    await asyncio.sleep(0)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(answer)


@each_loop
async def test_handshakes_are_refused_in_json() -> None:
    async with listening(principals=Principals({hash_key("right"): "ann"})) as listener:

        async def refused(*headers: str, path: str = "/v1/stream") -> tuple[int, str | None]:
            answer = await ask(listener.port, handshake(path, *headers))
            return answer.status, answer.error["code"]

        assert await refused(path="/v1/other") == (404, "not_found")
        assert await refused("Authorization: Bearer wrong") == (401, "unauthorized")
        assert await refused("Authorization: Bearer right", "Authorization: Bearer wrong") == (400, "bad_request")
        assert await refused("Origin: http://localhost", "Origin: http://localhost") == (400, "bad_request")
        assert await refused("Sec-WebSocket-Protocol: chat, other.v2") == (400, "bad_request")
        answer = await ask(
            listener.port, handshake().replace(b"Sec-WebSocket-Version: 13", b"Sec-WebSocket-Version: 8")
        )
        assert (answer.status, answer.error["code"]) == (400, "bad_request")
        with pytest.raises(InvalidStatus) as caught:
            await ws_connect(url(listener.port, "/else")).__aenter__()
        assert b"/v1/stream" in caught.value.response.body

        authorised = {"Authorization": "bearer right"}
        async with ws_connect(url(listener.port), additional_headers=authorised) as websocket:
            assert websocket.subprotocol is None
        offered = [Subprotocol("other.v9"), Subprotocol(SUBPROTOCOL)]
        async with ws_connect(url(listener.port, "/v1/stream?x=1"), subprotocols=offered) as websocket:
            assert websocket.subprotocol == SUBPROTOCOL


@each_loop
async def test_pages_from_elsewhere_open_no_websocket() -> None:
    async with listening() as listener:
        for origin_header in ("Origin: https://evil.example", "Origin: null"):
            answer = await ask(listener.port, handshake("/v1/stream", origin_header))
            assert (answer.status, answer.error["code"]) == (403, "forbidden")
        rebound = handshake().replace(b"Host: localhost", b"Host: evil.example")
        assert (await ask(listener.port, rebound)).status == 403
        for origin in (None, Origin(f"http://127.0.0.1:{listener.port}")):
            async with ws_connect(url(listener.port), origin=origin):
                pass
    async with listening(allow_origins="https://good.example") as listener:
        async with ws_connect(url(listener.port), origin=Origin("https://good.example")):
            pass
        assert (await ask(listener.port, handshake("/v1/stream", "Origin: https://good.example.org"))).status == 403


@each_loop
async def test_a_fault_of_a_handler_is_logged_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(connection: ServerConnection) -> None:
        await connection.recv()
        raise RuntimeError("our own fault")

    async with listening(fail) as listener:
        async with ws_connect(url(listener.port)) as websocket:
            await websocket.send("x")
            with pytest.raises(ConnectionClosedError) as caught:
                await websocket.recv()
        assert caught.value.rcvd is not None
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1011, "")
        assert (await ask(listener.port, get("/broken"))).status == 500
    logged = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [str(record.exc_info[1]) for record in logged if record.exc_info and record.exc_info[1]] == [
        "our own fault",
        "a fault of the server",
    ]


# Closing


@each_loop
async def test_closing_ends_every_kind_of_connection_in_order() -> None:
    async with listening() as listener:
        async with (
            ws_connect(url(listener.port)) as websocket,
            connect(listener.port) as (idle, idle_writer),
            connect(listener.port) as (half, half_writer),
        ):
            idle_writer.write(get("/", close=False))
            await idle.readuntil(b"\r\n\r\n")
            half_writer.write(b"GET / HT")
            await asyncio.sleep(0.1)
            assert listener.connection_count == 3
            before = time.monotonic()
            await listener.close(5, reason="bye")
            assert time.monotonic() - before < 1.5
            with pytest.raises(ConnectionClosedError) as caught:
                await websocket.recv()
            assert caught.value.rcvd is not None
            assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1012, "bye")
            await read_all(idle)
            assert await read_all(half) == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", listener.port)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@each_loop
async def test_closing_is_bounded_with_stalled_peers_and_handlers(secure: bool) -> None:
    async def flood(connection: ServerConnection) -> None:
        while True:
            await connection.send(bytes(65_536))

    async def stuck(_: ServerConnection) -> None:
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                stubborn.append(None)
                raise

    async def either(connection: ServerConnection) -> None:
        assert connection.request is not None
        await (stuck if "stuck" in connection.request.path else flood)(connection)

    stubborn: list[None] = []
    async with (
        listening(either, secure=secure) as listener,
        connect(listener.port, secure=secure) as (_, flooded),
        connect(listener.port, secure=secure) as (_, waiting),
        connect(listener.port, secure=secure) as (_, stalled),
    ):
        for writer in (flooded, waiting, stalled):
            writer.transport.pause_reading()  # type: ignore[attr-defined]  # a full transport, not only for writing
        flooded.write(handshake())
        waiting.write(handshake("/v1/stream?stuck"))
        stalled.write(get("/endless"))
        await asyncio.sleep(0.3)
        assert listener.connection_count == 3
        before = time.monotonic()
        await listener.close(0.3)
        assert time.monotonic() - before < 3.0
    assert stubborn == [None]


@each_loop
async def test_stop_accepting_leaves_those_who_are_there() -> None:
    async with listening() as listener, ws_connect(url(listener.port)) as websocket:
        listener.stop_accepting()
        await asyncio.sleep(0.05)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", listener.port)
        await websocket.send("still here")
        assert await websocket.recv() == "still here"


# Addresses


async def test_localhost_is_both_families_on_one_port() -> None:
    async with listening(host="localhost") as listener:
        assert {address.host for address in listener.addresses} == {"127.0.0.1", "::1"}
        assert len({address.port for address in listener.addresses}) == 1
        for address in listener.addresses:
            _, writer = await asyncio.open_connection(*address)
            writer.close()
            await writer.wait_closed()
        assert f"http://[::1]:{listener.port}" in listener.urls


async def test_everywhere_takes_ipv4_too() -> None:
    async with listening(host="::", insecure=True) as listener:
        assert (await ask(listener.port, get("/"))).status == 200


async def test_without_ipv6_it_is_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_ipv6", False)
    with structlog.testing.capture_logs() as logs:
        async with listening(host="::1") as listener:
            assert [address.host for address in listener.addresses] == ["127.0.0.1"]
        async with listening(host="localhost") as listener:
            assert [address.host for address in listener.addresses] == ["127.0.0.1"]
    assert [entry["log_level"] for entry in logs] == ["warning"]


async def test_an_address_that_cannot_be_had_is_one_clear_line() -> None:
    async def problem(**settings: object) -> str:
        with pytest.raises(ListenError) as caught:
            await start_listener(Settings(**settings), app=small_app(), websocket_handler=echo)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
        return str(caught.value)

    async with listening() as listener:
        assert "port is in use" in await problem(port=listener.port)
        assert "port is in use" in await problem(port=listener.port, host="localhost")
    assert "no such address" in await problem(host="203.0.113.7", port=0)
    assert "no address is known" in await problem(host="no.such.host.invalid", port=0)


async def test_a_bad_certificate_is_one_clear_line(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for certificate, key in ((empty, TLS / "key.pem"), (TLS / "certificate.pem", empty), (empty, tmp_path / "none")):
        settings = Settings(port=0, tls_cert=certificate, tls_key=key)
        with pytest.raises(ValueError, match=r"tls_cert .* cannot be") as caught:
            await start_listener(settings, app=small_app(), websocket_handler=echo)
        assert "\n" not in str(caught.value)


@each_loop
async def test_plain_text_to_a_tls_port_is_no_event(caplog: pytest.LogCaptureFixture) -> None:
    async with listening(secure=True) as listener:
        assert b"HTTP" not in await talk(listener.port, get("/"))
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection("127.0.0.1", listener.port, ssl=ssl.create_default_context())
        await asyncio.sleep(0.05)
    assert not caplog.records
