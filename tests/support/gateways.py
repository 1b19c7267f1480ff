"""A server of several gateways, as users run it, and which of its processes is which."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson

from protocol import client_messages as c
from protocol import server_messages as s
from server.gateways.names import owner_of
from tests.support.processes import ServerProcess, get, server_process
from tests.support.resumer import EVERYTHING, Resumer


@dataclass
class Gateways(ServerProcess):
    """The parent process, and what it started."""

    def pids(self) -> dict[str, int]:
        """The gateways that were ever ready, by name, the latest last."""
        lines = [line for line in self.log() if line.get("event") == "a gateway is ready"]
        return {str(line["gateway"]): int(str(line["pid"])) for line in lines}

    def children(self) -> set[int]:
        """The processes that are the parent's children now."""
        return children_of(self.process.pid)

    def signal(self, name: str, number: signal.Signals) -> None:
        """To one gateway."""
        os.kill(self.pids()[name], number)

    async def settled(self, count: int) -> dict[str, int]:
        """Wait until so many gateways were ready so far; all of them by name."""
        async with asyncio.timeout(60):
            while len(self.pids()) < count:
                await asyncio.sleep(0.05)
        return self.pids()

    async def metric(self, name: str) -> float:
        """A figure of all gateways together."""
        _, text = await asyncio.to_thread(get, f"{self.http}/metrics")
        (line,) = [line for line in text.decode().splitlines() if line.startswith(name + " ")]
        return float(line.split()[1])

    @asynccontextmanager
    async def away_from(self, name: str) -> AsyncIterator[None]:
        """Meanwhile connections come to other gateways: this one has more of them than any other."""
        held: list[asyncio.StreamWriter] = []
        others: list[asyncio.StreamWriter] = []
        try:
            while not held:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                (held if orjson.loads(body)["gateway"] == name else others).append(writer)
            await close_all(others)
            others.clear()
            yield
        finally:
            await close_all([*held, *others])


async def close_all(writers: list[asyncio.StreamWriter]) -> None:
    """Close connections and give the server a moment to see it."""
    for writer in writers:
        writer.close()
        await writer.wait_closed()
    await asyncio.sleep(0.05)


@contextmanager
def gateways(log_file: Path, count: int, *args: str) -> Iterator[Gateways]:
    """Start `python -m server --gateways COUNT`; killed in the end, with all that it started."""
    options = ("--engine", "tone", "--log-level", "debug", "--drain-timeout-s", "0.2", "--gateways", str(count))
    started: set[int] = set()
    try:
        with server_process(log_file, *options, *args, timeout=60.0) as server:
            found = Gateways(server.process, server.port, server.log_file)
            try:
                yield found
            finally:
                started = found.children()
    finally:
        until = time.monotonic() + 10
        while any(alive(pid) for pid in started) and time.monotonic() < until:
            time.sleep(0.05)
        left = [pid for pid in started if alive(pid)]
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert not left, "gateways outlived their parent"


class Patient(Resumer):
    """A client that comes again where the server is busy, as a machine that runs many tests is."""

    async def open(self, message: c.Open = EVERYTHING) -> s.Opened:
        """See Resumer."""
        while True:
            await self.dial()
            await self.client.send(message)
            opened = await self.client.receive()
            if isinstance(opened, s.Opened):
                self.state = c.Resume(opened.session, opened.token, opened.epoch, opened.generation, 0, 0, 0)
                return opened
            await self._again(opened)

    async def ask(self, **changes: Any) -> s.Resumed | s.ResumeFailed:
        """See Resumer."""
        while True:
            await self.dial()
            await self.client.send(replace(self.state, **changes))
            answer = await self.client.receive()
            if isinstance(answer, s.Resumed | s.ResumeFailed):
                return answer
            await self._again(answer)

    async def _again(self, answer: Any) -> None:
        assert isinstance(answer, s.Busy), answer
        await self.client.socket.close()
        await asyncio.sleep(answer.retry_after_ms / 1000)


def owner(client: Resumer) -> str:
    """The gateway that made this client's session."""
    name = owner_of(client.state.session)
    assert name is not None
    return name


def children_of(pid: int) -> set[int]:
    """The child processes of a process."""
    try:
        return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except FileNotFoundError:
        return set()


def alive(pid: int) -> bool:
    """Whether a process runs; not where it only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
