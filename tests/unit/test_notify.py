"""What the service manager hears (sd_notify), and that nobody suffers where it does not listen."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from server.notify import ServiceManager


@contextmanager
def listening(address: str) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.settimeout(2)
        channel.bind(address)
        yield channel


@pytest.mark.parametrize("abstract", [False, True])
def test_ready_and_stopping(tmp_path: Path, abstract: bool) -> None:
    name = f"cosystream-test-{os.getpid()}"
    address, shown = (f"\0{name}", f"@{name}") if abstract else (str(tmp_path / "notify"),) * 2
    with listening(address) as channel:
        environ = {"NOTIFY_SOCKET": shown, "HOME": "/"}
        manager = ServiceManager.of(environ)
        assert environ == {"HOME": "/"}  # child processes must not speak for us
        manager.ready("speaks")
        assert channel.recv(1000) == b"READY=1\nSTATUS=speaks"
        manager.stopping("stops", 4.5)
        assert channel.recv(1000) == b"STOPPING=1\nSTATUS=stops\nEXTEND_TIMEOUT_USEC=4500000"


def test_without_a_manager_nothing_happens() -> None:
    manager = ServiceManager.of({})
    assert manager.watchdog_s is None
    manager.ready("speaks")
    manager.stopping("stops", 1)


def test_a_manager_that_is_gone_is_a_warning(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        ServiceManager.of({"NOTIFY_SOCKET": str(tmp_path / "nobody")}).ready("speaks")
    assert [line["log_level"] for line in logs] == ["warning"]


@pytest.mark.parametrize(
    ("period", "pid", "expected"),
    [
        ("3000000", "", 3.0),
        ("3000000", str(os.getpid()), 3.0),
        ("3000000", "1", None),
        ("x", "", None),
        ("0", "", None),
    ],
    ids=["any process", "this one", "another one", "no number", "no time"],
)
def test_the_watchdog_is_the_managers_and_for_this_process(period: str, pid: str, expected: float | None) -> None:
    environ = {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": period, "WATCHDOG_PID": pid}
    assert ServiceManager.of(environ).watchdog_s == expected
    assert environ == {}


async def test_the_watchdog_hears_the_loop_turn_and_nothing_while_it_hangs(tmp_path: Path) -> None:
    with listening(str(tmp_path / "notify")) as channel:
        channel.setblocking(False)
        with ServiceManager(str(tmp_path / "notify"), watchdog_s=0.04).watched():
            await asyncio.sleep(0.1)
            heard = count(channel)
            assert heard >= 3
            hold_up(0.1)
            assert count(channel) == 0
            await asyncio.sleep(0.05)
            assert count(channel) > 0
        await asyncio.sleep(0.05)
        assert count(channel) == 0


def count(channel: socket.socket) -> int:
    heard = 0
    while True:
        try:
            assert channel.recv(100) == b"WATCHDOG=1"
        except BlockingIOError:
            return heard
        heard += 1


def hold_up(seconds: float) -> None:
    """As a fault would: the event loop stands still."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as nobody:
        nobody.settimeout(seconds)
        with pytest.raises(TimeoutError):
            nobody.recv(1)
