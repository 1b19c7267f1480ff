"""A server that stops: who may finish does, the others go on elsewhere, probes are told, and all of it is bounded."""

import asyncio
import signal
import socket
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import orjson
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_server
from tests.support.processes import ServerProcess, get, server_process
from tests.support.resumer import resumer
from tests.support.server import bare_client

DRAIN_S = 1.5
SHORT = "好的。"
LONG = "山高水远，天蓝云白，风轻日暖。 " * 6


@contextmanager
def two_servers(folder: Path, *args: str) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """With one store."""
    options = (
        "--engine",
        "tone",
        "--engine-option",
        "step_delay_ms=20",
        "--store",
        f"file:{folder / 'store'}",
        "--resume-ttl-s",
        "20",
        *args,
    )
    with server_process(folder / "1", *options) as first, server_process(folder / "2", *options) as second:
        yield first, second


async def test_who_can_finish_does_and_the_others_go_on_elsewhere(tmp_path: Path) -> None:
    with ExitStack() as servers:
        start = two_servers(tmp_path, "--drain-timeout-s", str(DRAIN_S))
        first, second = await asyncio.to_thread(servers.enter_context, start)
        async with (
            resumer(second.url) as whole,
            resumer(first.url) as cut,
            resumer(first.url) as away,
            bare_client(first.url, open=c.Open()) as fast,
        ):
            await whole.say(1, LONG)
            await whole.until(s.Done)
            cut.acks = False  # it takes nothing more soon, and cannot finish
            await cut.say(1, LONG)
            await cut.until_bytes(50_000)
            await away.say(1, SHORT)
            await away.until(s.SegmentBegin)
            away.abort()
            await fast.say(1, SHORT)
            request = asyncio.create_task(asyncio.to_thread(speak_over_http, first))
            await asyncio.sleep(0.2)

            began = time.monotonic()
            first.process.terminate()
            over = asyncio.create_task(ends(first))
            await asyncio.sleep(0.1)
            await is_stopping(first)
            # Without a connection nothing is waited for: another process has it at once.
            away.url = second.url
            assert (await away.resume()).epoch == 1
            await away.until(s.Done)
            await fast.until(s.Done)
            assert await closed(fast.receive) == 1012
            assert await request == await asyncio.to_thread(speak_over_http, second)
            assert time.monotonic() - began < DRAIN_S
            assert await closed(cut.receive) == 1012
            assert DRAIN_S - 0.2 < time.monotonic() - began < DRAIN_S + 1
            # Whoever hears of the end can go on elsewhere, though this process may not be over.
            cut.url, cut.acks = second.url, True
            assert (await cut.resume()).epoch == 1
            await cut.until(s.Done)
            assert cut.pcm == whole.pcm
        assert await over - began < DRAIN_S + 5
        assert first.process.returncode == 0
        assert not [line for line in first.log() if line.get("level") == "error"]


def speak_over_http(server: ServerProcess) -> bytes:
    """Three seconds of audio."""
    body = orjson.dumps({"text": SHORT * 6, "format": "pcm"})
    with urllib.request.urlopen(urllib.request.Request(f"{server.http}/v1/speak", body), timeout=10) as answer:
        return bytes(answer.read())


async def ends(server: ServerProcess) -> float:
    """When it has ended (monotonic)."""
    await asyncio.to_thread(server.process.wait, 20)
    return time.monotonic()


async def closed(receive: Callable[[], Awaitable[object]]) -> int | None:
    """Receive to the end; the close code."""
    try:
        while True:
            await receive()
    except ConnectionClosed as over:
        return over.rcvd.code if over.rcvd is not None else None


async def is_stopping(server: ServerProcess) -> None:
    """What probes and those who come now are told."""
    assert (await asyncio.to_thread(get, f"{server.http}/healthz"))[0] == 200
    assert (await asyncio.to_thread(get, f"{server.http}/readyz"))[0] == 503
    async with connect(server.url, compression=None) as late:
        assert isinstance(busy := decode_server(str(await late.recv())), s.Busy)
        assert busy.retry_after_ms > 0
    with pytest.raises(InvalidStatus) as refused:  # so that a proxy can ask another server
        await connect(server.url, additional_headers={"X-Forwarded-For": "192.0.2.1"})
    assert refused.value.response.status_code == 503
    assert refused.value.response.headers["Retry-After"]


@pytest.mark.parametrize("gateways", [1, 2])
async def test_a_second_signal_ends_at_once_and_an_echo_does_not(tmp_path: Path, gateways: int) -> None:
    options = ("--engine", "tone", "--drain-timeout-s", "30", "--gateways", str(gateways))
    with ExitStack() as servers:
        server = await asyncio.to_thread(servers.enter_context, server_process(tmp_path / "log", *options))
        async with resumer(server.url) as client:
            client.acks = False
            await client.say(1, LONG)
            await client.until_bytes(50_000)
            processes = [server.process.pid, *children(server.process.pid)]
            assert len(processes) >= gateways
            server.process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.05)
            server.process.send_signal(signal.SIGINT)
            await asyncio.sleep(0.5)
            assert server.process.poll() is None  # it drains
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.process.wait, 5) == 1
            assert time.monotonic() - began < 1
        async with asyncio.timeout(2):
            while any(lives(pid) for pid in processes):
                await asyncio.sleep(0.02)
    assert any(line.get("event") == "stopped at once" for line in server.log())


def children(pid: int) -> list[int]:
    return [int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("gateways", [1, 2])
def test_the_service_manager_hears_of_it(tmp_path: Path, gateways: int) -> None:
    address = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(address))
        manager.settimeout(5)
        env = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "1000000"}
        options = ("--engine", "tone", "--drain-timeout-s", "3", "--gateways", str(gateways))
        with server_process(tmp_path / "log", *options, env=env) as server:
            heard = [manager.recv(1000).decode()]
            while not heard[-1].startswith("READY=1\n"):
                heard.append(manager.recv(1000).decode())
            assert set(heard[:-1]) <= {"WATCHDOG=1"}  # from the start, and one process speaks
            assert manager.recv(1000) == b"WATCHDOG=1"
            server.stop()
            manager.setblocking(False)
            rest = []
            while True:
                try:
                    rest.append(manager.recv(1000).decode())
                except BlockingIOError:
                    break
    (stopping,) = [each for each in rest if each != "WATCHDOG=1"]
    assert stopping.startswith("STOPPING=1\n")
    extension = int(stopping.rpartition("EXTEND_TIMEOUT_USEC=")[2])
    assert extension >= 3_000_000 + 10_000_000


def test_the_file_limit_is_raised_at_the_start(tmp_path: Path) -> None:
    limited = ["sh", "-c", 'ulimit -Sn 256; ulimit -Hn 2000; exec "$@"', "sh"]
    options = ("--engine", "tone", "--max-sessions")
    with server_process(tmp_path / "1", *options, "500", prefix=limited) as server:
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        assert f"{2 * 500 + 64 + 128}" in next(line for line in limits.splitlines() if "open files" in line)
        assert not [line for line in server.log() if line.get("level") == "warning"]
    with server_process(tmp_path / "2", *options, "5000", prefix=limited) as server:
        (warning,) = [line for line in server.log() if line.get("level") == "warning"]
        assert "2000 files" in str(warning["event"])
