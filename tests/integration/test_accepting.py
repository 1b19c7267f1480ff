"""A listening socket that several acceptors share: turns, TLS, descriptors that run out, and the end."""

import asyncio
import errno
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import pytest

from server.gateway.accepting import PAUSE_S, SharedAcceptor
from tests.support.loops import each_loop
from tests.support.processes import ROOT

TLS = ROOT / "tests" / "support" / "tls"


class Hello(asyncio.Protocol):
    """Says the name of its acceptor and stays."""

    def __init__(self, name: str, counts: Counter[str]) -> None:
        self.name = name
        self.counts = counts

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.counts[self.name] += 1
        sock = transport.get_extra_info("socket")
        at_once = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        cast(asyncio.Transport, transport).write(f"{self.name if at_once else 'delayed'}\n".encode())

    def connection_lost(self, exc: Exception | None) -> None:
        self.counts[self.name] -= 1


def listening() -> socket.socket:
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    return sock


def acceptor(
    sock: socket.socket, name: str, counts: Counter[str], patience: Callable[[], float], **options: Any
) -> SharedAcceptor:
    return SharedAcceptor(sock.dup(), lambda: Hello(name, counts), patience, **options)


async def come(sock: socket.socket, **options: Any) -> tuple[str, asyncio.StreamWriter]:
    """A client; who took it."""
    async with asyncio.timeout(5):
        reader, writer = await asyncio.open_connection(*sock.getsockname(), **options)
        return (await reader.readline()).decode().strip(), writer


async def leave(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        await writer.wait_closed()


@each_loop
async def test_who_has_least_accepts() -> None:
    counts: Counter[str] = Counter()

    def patience(name: str) -> Callable[[], float]:
        return lambda: 0.0 if counts[name] <= min(counts[each] for each in "abc") else 0.005

    with listening() as sock:
        acceptors = [acceptor(sock, name, counts, patience(name)) for name in "abc"]
        clients = [await come(sock) for _ in range(12)]
        assert Counter(name for name, _ in clients) == {"a": 4, "b": 4, "c": 4}
        gone = [writer for name, writer in clients if name == "b"]
        await leave(*gone)
        while counts["b"]:
            await asyncio.sleep(0.01)
        clients += [await come(sock) for _ in range(4)]
        assert [name for name, _ in clients[12:]] == ["b"] * 4
        await leave(*(writer for _, writer in clients))
        for each in acceptors:
            each.close()
            await each.wait_closed()


@each_loop
async def test_whoever_waits_takes_it_when_nobody_else_does() -> None:
    counts: Counter[str] = Counter()
    with listening() as sock:
        patient = acceptor(sock, "patient", counts, lambda: 0.2)
        began = time.monotonic()
        name, writer = await come(sock)
        assert name == "patient"
        assert time.monotonic() - began >= 0.19
        await leave(writer)
        patient.close()


@each_loop
async def test_closing_leaves_what_waits_to_the_others() -> None:
    counts: Counter[str] = Counter()
    with listening() as sock:
        first = acceptor(sock, "first", counts, lambda: 10.0)
        coming = asyncio.create_task(come(sock))
        await asyncio.sleep(0.1)  # it steps aside for it
        first.close()
        first.close()
        assert not first.is_serving()
        assert first.sockets == ()
        second = acceptor(sock, "second", counts, lambda: 0.0)
        assert second.is_serving()
        name, writer = await coming
        assert name == "second"
        await leave(writer)
        second.close()


@each_loop
async def test_tls_and_handshakes_that_fail() -> None:
    counts: Counter[str] = Counter()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "certificate.pem", TLS / "key.pem")
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    with listening() as sock:
        one = acceptor(sock, "tls", counts, lambda: 0.0, ssl=context, ssl_handshake_timeout=0.3)
        reader, silent = await asyncio.open_connection(*sock.getsockname())
        _, plain = await asyncio.open_connection(*sock.getsockname())
        plain.write(b"GET / HTTP/1.1\r\n\r\n")
        name, writer = await come(sock, ssl=trusting)  # neither holds others up
        assert name == "tls"
        async with asyncio.timeout(3):
            assert await reader.read() == b""
        await leave(writer, silent)
        plain.transport.abort()
        one.close()
        async with asyncio.timeout(3):
            await one.wait_closed()


class Poor(socket.socket):
    """A socket that fails for some time, as where no descriptor is left."""

    refusals = 2
    problem = errno.EMFILE

    def accept(self) -> tuple[socket.socket, Any]:
        if self.refusals:
            self.refusals -= 1
            raise OSError(self.problem, "no")
        return super().accept()


@pytest.mark.parametrize("problem", [errno.EMFILE, errno.EINVAL])
@each_loop
async def test_without_descriptors_the_queue_waits(problem: int) -> None:
    counts: Counter[str] = Counter()
    with listening() as sock:
        poor = Poor(fileno=sock.dup().detach())
        poor.setblocking(False)
        poor.problem = problem
        one = SharedAcceptor(poor, lambda: Hello("poor", counts), lambda: 0.0)
        began = time.monotonic()
        name, writer = await come(sock)
        assert name == "poor"
        assert time.monotonic() - began >= 2 * PAUSE_S - 0.05
        await leave(writer)
        one.close()
