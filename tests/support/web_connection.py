"""The browser's `Connection` in node, driven message by message, with a playout that counts what reaches it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.support.node import ROOT, node_command

SCRIPT = ROOT / "tests/web/node/connection_drive.mjs"
OPEN = {"max_lead_ms": 4000, "max_buffer_delay_ms": None}

Message = dict[str, Any]


class WebConnection:
    """`told` is all that the page and the playout were told, oldest first; the latter has `playout`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.told: list[Message] = []
        self.token: Message = {"token": None}  # the page's answer
        self._process = process
        self._more = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    def send(self, type: str, **fields: Any) -> None:
        """A message of the page."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"type": type, **fields}).encode() + b"\n")

    def speak(self, number: int, text: str, *, start: Message | None = None, **open: Any) -> None:
        """A whole utterance."""
        self.send("begin", id=number, open={**OPEN, **open}, start=start or {})
        self.send("write", id=number, text=text)
        self.send("end", id=number)

    def found(self, type: str, number: int | None = None, *, playout: bool = False) -> list[Message]:
        """The messages of this type, for the page or for the playout."""
        return [
            each
            for each in self.told
            if each["type"] == type and each.get("id") == number and bool(each.get("playout")) == playout
        ]

    def events(self, number: int, type: str) -> list[Message]:
        """The protocol's events of this type about this utterance."""
        return [each["message"] for each in self.found("event", number) if each["message"]["type"] == type]

    def states(self) -> list[str]:
        """What the page was told about the state."""
        return [each["state"] for each in self.found("state")]

    async def until(self, condition: Callable[[], Any], timeout_s: float = 15.0) -> Any:
        """Wait until it is true; AssertionError with the end of what was told where it takes longer."""
        try:
            async with asyncio.timeout(timeout_s), self._more:
                while not (value := condition()):
                    await self._more.wait()
                return value
        except TimeoutError:
            raise AssertionError(f"in vain; told last: {json.dumps(self.told[-12:], indent=1)}") from None

    async def state(self, state: str) -> Message:
        """Wait until the page was told this state."""
        await self.until(lambda: state in self.states())
        return next(each for each in self.found("state") if each["state"] == state)

    async def done(self, number: int, timeout_s: float = 30.0) -> Message:
        """Wait until all of an utterance was given to the playout; its `done`."""
        await self.until(lambda: self.found("complete", number, playout=True), timeout_s)
        await self.until(lambda: self.events(number, "done"))
        return self.events(number, "done")[0]

    async def checked(self, number: int) -> int:
        """Compare what reached the playout with the server's digest of each segment; the number of samples."""
        begins, ends = self.events(number, "segment_begin"), self.events(number, "segment_end")
        assert [each["segment"] for each in begins] == [each["segment"] for each in ends] == list(range(len(begins)))
        parts = [(begin["first_sample"], end["samples"]) for begin, end in zip(begins, ends, strict=True)]
        self.send("digests", id=number, parts=parts)
        found = (await self.until(lambda: self.found("digests", number)))[-1]
        wrong = [at for at, end in enumerate(ends) if found["digests"][at] != end["digest"]]
        assert not wrong, f"segments {wrong} of {len(ends)} are not what the server made"
        assert found["samples"] == sum(count for _, count in parts)
        assert not [each for each in self.told if each["type"] == "wrong"]
        return int(found["samples"])

    def signal(self, number: int) -> None:
        """To the process."""
        self._process.send_signal(number)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            message = json.loads(line)
            if message["type"] == "token":
                self.send("token", request=message["request"], **self.token)
            async with self._more:
                self.told.append(message)
                self._more.notify_all()

    async def close(self) -> None:
        """The page goes away; nothing keeps the process alive then."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(5):
                assert await self._process.wait() == 0
        finally:
            if self._process.returncode is None:
                self._process.kill()
            await self._reading


@asynccontextmanager
async def web_connection(url: str, *, speed: float = 8.0) -> AsyncIterator[WebConnection]:
    """Set up for this server; `speed`: of the playout, 1 is what people hear."""
    command = node_command(str(SCRIPT), str(speed))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=2**22)
    connection = WebConnection(process)
    try:
        connection.send("setup", url=url)
        yield connection
    finally:
        await connection.close()
