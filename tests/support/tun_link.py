"""Two network namespaces joined by a line of our own: kernel TCP over a link that delays, narrows, loses or swallows.

Each namespace has one TUN device; what the kernel sends into one comes out of the other when the line lets it. Needs
root, `/dev/net/tun` and iproute2; `missing()` says which of them is not there.
"""

import asyncio
import contextlib
import ctypes
import fcntl
import os
import random
import shutil
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from deploy.faulty_proxy import DOWN, UP, Direction, Line

T = TypeVar("T")

SERVER_ADDRESS: Final = "10.177.43.1"
CLIENT_ADDRESS: Final = "10.177.43.2"
QUEUE_BYTES: Final = 200_000  # of one direction; more is dropped, as routers do
PACKET_BYTES: Final = 65_536  # the longest that a TUN device hands out
_DEVICE: Final = Path("/dev/net/tun")
_TUNSETIFF: Final = 0x400454CA  # linux/if_tun.h
_IFF_TUN: Final = 0x0001
_IFF_NO_PI: Final = 0x1000  # packets without a header of the device's own
_CLONE_NEWNET: Final = 0x4000_0000  # linux/sched.h
_numbers = count()  # of the links of this process: several may exist side by side


def missing() -> str:
    """Why there can be no such link here; empty where there can."""
    if os.geteuid() != 0:
        return "not root"
    if not _DEVICE.exists():
        return f"no {_DEVICE}"
    if shutil.which("ip") is None:
        return "no iproute2"
    name = f"cosy-try-{os.getpid()}"
    try:
        os.close(_open_tun(name[:15]))
        _ip("netns", "add", name)
        _ip("netns", "del", name)
    except OSError as error:
        return f"no TUN device can be made: {error}"
    except subprocess.CalledProcessError as error:
        return f"no network namespace can be made: {error.stderr.decode().strip()}"
    return ""


def _open_tun(name: str) -> int:
    device = os.open(_DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    except OSError:
        os.close(device)
        raise
    return device


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@dataclass
class _Way:
    """One direction: packets that are under way."""

    line: Line = field(default_factory=Line)
    loss: float = 0.0  # the share of packets that vanish
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque)
    held: int = 0  # bytes
    last_due: float = 0.0
    timer: asyncio.TimerHandle | None = None
    dropped: int = 0
    carried: int = 0


class TunLink:
    """The namespaces exist while it is entered. The line runs in the event loop that entered it."""

    def __init__(self, seed: int = 0) -> None:
        stem = f"cosy{os.getpid() % 100_000}-{next(_numbers)}"
        self.namespaces = {DOWN: f"{stem}-server", UP: f"{stem}-client"}  # by what they send
        self._names = {DOWN: f"{stem}s", UP: f"{stem}c"}
        self._devices: dict[Direction, int] = {}  # by what the namespace behind it sends
        self._ways = {direction: _Way() for direction in Direction}
        self._chance = random.Random(seed)

    @property
    def server_prefix(self) -> tuple[str, ...]:
        """Before a command that shall run at the server's end."""
        return ("ip", "netns", "exec", self.namespaces[DOWN])

    async def __aenter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        loop = asyncio.get_running_loop()
        for direction, device in self._devices.items():
            loop.add_reader(device, self._read, direction)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for device in self._devices.values():
            loop.remove_reader(device)
        for way in self._ways.values():
            if way.timer is not None:
                way.timer.cancel()
        self._remove()

    def change(self, *directions: Direction, loss: float | None = None, **fields: Any) -> None:
        """Set fields of `Line` (and the share of packets lost) for one or both directions."""
        for direction in directions:
            way = self._ways[direction]
            way.loss = way.loss if loss is None else loss
            for name, value in fields.items():
                setattr(way.line, name, value)

    def hole(self, *directions: Direction) -> None:
        """Everything that comes this way is lost until `heal`."""
        self.change(*directions, hole=True)

    def heal(self) -> None:
        """The line is whole again."""
        self.change(UP, DOWN, hole=False)

    async def at_the_client(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` at the client's end: in an event loop of its own, in a thread whose sockets are there."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                self._enter(self.namespaces[UP])
                value = asyncio.run(_awaited(work))
            except BaseException as error:  # noqa: BLE001  # whatever it is, who waits must hear of it
                loop.call_soon_threadsafe(_fail, result, error)
            else:
                loop.call_soon_threadsafe(_succeed, result, value)

        thread = threading.Thread(target=run, name="client's end of the link", daemon=True)
        thread.start()
        try:
            return await result
        finally:
            await asyncio.to_thread(thread.join, 5.0)

    # The namespaces

    def _make(self) -> None:
        addresses = {DOWN: (SERVER_ADDRESS, CLIENT_ADDRESS), UP: (CLIENT_ADDRESS, SERVER_ADDRESS)}
        for direction, namespace in self.namespaces.items():
            name = self._names[direction]
            self._devices[direction] = _open_tun(name)
            ours, theirs = addresses[direction]
            _ip("netns", "add", namespace)
            _ip("link", "set", name, "netns", namespace)
            _ip("-n", namespace, "address", "add", ours, "peer", theirs, "dev", name)
            _ip("-n", namespace, "link", "set", "lo", "up")
            _ip("-n", namespace, "link", "set", name, "up")

    def _remove(self) -> None:
        for device in self._devices.values():
            os.close(device)
        self._devices.clear()
        for namespace in self.namespaces.values():
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", namespace)

    @staticmethod
    def _enter(namespace: str) -> None:
        """Move the calling thread into a namespace."""
        libc = ctypes.CDLL(None, use_errno=True)
        handle = os.open(f"/run/netns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.setns(handle, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            os.close(handle)

    # The line

    def _read(self, direction: Direction) -> None:
        """What a namespace sends."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._take(direction, os.read(self._devices[direction], PACKET_BYTES))

    def _take(self, direction: Direction, packet: bytes) -> None:
        way, now = self._ways[direction], time.monotonic()
        line = way.line
        if line.hole or self._chance.random() < way.loss or way.held + len(packet) > QUEUE_BYTES:
            way.dropped += 1
            return
        through = now
        if line.rate:
            through = line.free_at = max(line.free_at, now) + len(packet) / line.rate
        way.last_due = max(way.last_due, through + line.delay_s + self._chance.uniform(0, line.jitter_s))
        way.waiting.append((way.last_due, packet))
        way.held += len(packet)
        self._deliver(direction)

    def _deliver(self, direction: Direction) -> None:
        way = self._ways[direction]
        if way.timer is not None:
            way.timer.cancel()
            way.timer = None
        now = time.monotonic()
        while way.waiting and way.waiting[0][0] <= now:
            packet = way.waiting.popleft()[1]
            way.held -= len(packet)
            way.carried += len(packet)
            with contextlib.suppress(OSError):  # its queue is full, or the device is going: a lost packet
                os.write(self._devices[direction.other], packet)
        if way.waiting:
            wait = way.waiting[0][0] - now
            way.timer = asyncio.get_running_loop().call_later(wait, self._deliver, direction)


async def _awaited(work: Callable[[], Awaitable[T]]) -> T:
    return await work()


def _succeed(result: "asyncio.Future[T]", value: T) -> None:
    if not result.done():
        result.set_result(value)


def _fail(result: "asyncio.Future[T]", error: BaseException) -> None:
    if not result.done():
        result.set_exception(error)
