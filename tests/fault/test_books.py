"""A book read into a file by the command line, while everything dies: server, client, both. `--resume-from` goes on,
and the file is the one of an undisturbed run.
"""

import asyncio
import contextlib
import json
import random
import re
import signal
import wave
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import soundfile

from tests.support.client_process import Command, Ended, run
from tests.support.processes import ServerProcess, server_process

CHAPTERS, SENTENCES = 3, 25
BOOK = "\n".join(
    f"第{chapter}章\n" + "".join(f"第{chapter}章写到第{number}句。" for number in range(1, SENTENCES + 1)) + "\n"
    for chapter in range(1, CHAPTERS + 1)
)
TOLD = [f"第{chapter}章写到第{number}句。" for chapter in range(1, CHAPTERS + 1) for number in range(1, SENTENCES + 1)]
_undisturbed: dict[str, bytes] = {}  # what an undisturbed run wrote


@dataclass
class Desk:
    """A folder with a book, and servers that come and go."""

    folder: Path
    store: str
    servers: contextlib.ExitStack
    server: ServerProcess
    started: int = 0

    async def start_server(self) -> None:
        """One more process, on the port of the first."""
        self.started += 1
        port = ("--port", str(self.server.port)) if self.started > 1 else ()
        options = (
            "--engine", "tone", "--engine-option", "step_delay_ms=4", "--store", self.store,
            "--drain-timeout-s", "0.2", *port,
        )  # fmt: skip
        log = self.folder / f"server-{self.started}.log"
        self.server = await asyncio.to_thread(self.servers.enter_context, server_process(log, *options))

    async def run(self, *arguments: str) -> Ended:
        """The client, to its end."""
        return await run(self.folder, *arguments, url=self.server.url, patience_s=60)

    async def begin(self, *arguments: str) -> Command:
        """The client."""
        return await Command.start(self.folder, *arguments, url=self.server.url)

    def pcm(self, name: str) -> bytes:
        """The samples of a WAV or FLAC, or of a WAV that is not complete."""
        if name.endswith(".flac"):
            return bytes(soundfile.read(self.folder / name, dtype="int16")[0].tobytes())
        with wave.open(str(self.folder / name)) as file:
            return bytes(file.readframes(file.getnframes()))

    def names(self) -> set[str]:
        """What is there, besides logs and the store."""
        return {path.name for path in self.folder.iterdir() if path.suffix != ".log" and path.name != "store"}

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits."""
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.003)

    def size(self, name: str) -> int:
        """Bytes; 0 for no file."""
        path = self.folder / name
        return path.stat().st_size if path.exists() else 0

    def samples(self, name: str) -> int:
        """How much of a file is safe, as its state says; 0 for no state."""
        path = self.folder / f"{name}.state"
        return int(json.loads(path.read_bytes())["samples"]) if path.exists() else 0

    def told(self, captions: str) -> list[str]:
        """The sentences in the captions, in order."""
        text = (self.folder / captions).read_text(encoding="utf-8")
        lines = [line for line in text.splitlines() if line and "-->" not in line and line != "WEBVTT"]
        return re.findall(r"第\d章写到第\d+句。", re.sub(r"<[^>]*>", "", "".join(lines)))


@asynccontextmanager
async def desk(folder: Path, server: ServerProcess | None = None, *, store: str = "memory") -> AsyncIterator[Desk]:
    """With a server of its own, where there is none that it shares."""
    await asyncio.to_thread(folder.mkdir)
    (folder / "book.txt").write_text(BOOK, encoding="utf-8")
    with contextlib.ExitStack() as servers:
        made = Desk(folder, store if store == "memory" else f"file:{folder / 'store'}", servers, server)  # type: ignore[arg-type]  # or started next
        if server is None:
            await made.start_server()
        if not _undisturbed:
            control = await made.run("stream", "book.txt", "-o", "control.wav", "--captions", "control.vtt")
            assert control.code == 0, control.err
            _undisturbed.update({name: (folder / name).read_bytes() for name in ("control.wav", "control.vtt")})
        for name, data in _undisturbed.items():
            (folder / name).write_bytes(data)
        yield made


def is_the_control(made: Desk, name: str = "out.wav") -> None:
    """The file, its captions, and nothing else."""
    assert made.told("control.vtt") == TOLD
    assert made.told("out.vtt") == TOLD
    assert made.pcm(name) == made.pcm("control.wav")
    assert (made.folder / "out.vtt").read_bytes() == (made.folder / "control.vtt").read_bytes()
    assert made.names() == {"book.txt", "control.wav", "control.vtt", name, "out.vtt"}


async def side_by_side(*scenes: Coroutine[Any, Any, None]) -> None:
    """Where one fails the others are given up."""
    async with asyncio.TaskGroup() as group:
        for scene in scenes:
            group.create_task(scene)


async def test_servers_that_die(tmp_path: Path) -> None:
    async with desk(tmp_path / "0"):
        pass  # what everything is compared with is there now
    await side_by_side(
        the_server_is_killed_in_the_second_chapter(tmp_path / "1", "memory"),
        the_server_is_killed_in_the_second_chapter(tmp_path / "2", "file"),
        both_are_killed_twice(tmp_path / "3"),
        a_server_forgot_everything(tmp_path / "4"),
    )


async def test_clients_that_die(tmp_path: Path) -> None:
    async with desk(tmp_path / "0") as first:
        await side_by_side(
            a_client_is_killed_again_and_again(tmp_path / "1", first.server),
            the_client_is_killed_and_stopped(tmp_path / "2", first.server, "out.flac"),
            the_client_is_killed_and_stopped(tmp_path / "3", first.server, "out.opus"),
        )


async def the_server_is_killed_in_the_second_chapter(folder: Path, store: str) -> None:
    """And a new client goes on."""
    async with desk(folder, store=store) as made:
        half = len(made.pcm("control.wav")) // 2
        command = await made.begin("stream", "book.txt", "-o", "out.wav", "--captions", "out.vtt")
        await made.until(lambda: made.size("out.wav.part") > half)
        made.server.process.kill()
        await asyncio.sleep(0.3)
        command.process.kill()
        await command.end(patience_s=60)
        assert made.names() >= {"out.wav.part", "out.wav.state"}
        assert "out.wav" not in made.names()  # nothing looks finished
        state = json.loads((folder / "out.wav.state").read_bytes())
        assert (folder / "out.wav.state").stat().st_mode & 0o777 == 0o600
        kept = state["samples"] if store == "file" else state["whole"]["samples"]
        before = made.pcm("out.wav.part")[: 2 * kept]
        assert len(before) > half * 0.7  # the file is ahead of what is safe by a segment or two
        await made.start_server()
        ended = await made.run("stream", "--resume-from", "out.wav.state")
        assert ended.code == 0, ended.err
        assert ("in the same session" in ended.err) == (store == "file"), ended.err
        assert made.pcm("out.wav").startswith(before)
        is_the_control(made)


async def a_client_is_killed_again_and_again(folder: Path, server: ServerProcess) -> None:
    """Nothing is lost."""
    chance = random.Random(5)
    async with desk(folder, server) as made:
        arguments = ["stream", "book.txt", "-o", "out.wav", "--captions", "out.vtt"]
        sessions = 0
        for _ in range(12):
            command = await made.begin(*arguments)
            ended = asyncio.ensure_future(command.end(patience_s=60))
            goal = made.size("out.wav.part") + chance.randrange(250_000)
            if chance.random() < 0.2:
                await asyncio.sleep(chance.random())
            else:
                await made.until(lambda goal=goal, ended=ended: made.size("out.wav.part") > goal or ended.done())  # type: ignore[misc]
            with contextlib.suppress(ProcessLookupError):
                command.process.kill()
            sessions += "in the same session" in (await ended).err
            if made.size("out.wav.state"):
                arguments = ["stream", "--resume-from", "out.wav"]
            if made.size("out.wav"):
                break
        assert sessions > 3
        if made.size("out.wav.state"):
            last = await made.run(*arguments)
            assert last.code == 0, last.err
        is_the_control(made)


async def the_client_is_killed_and_stopped(folder: Path, server: ServerProcess, name: str) -> None:
    """Other containers are gone on with as well."""
    async with desk(folder, server) as made:
        arguments = ["stream", "book.txt", "-o", name, "--captions", "out.vtt"]
        for number in (signal.SIGKILL, signal.SIGTERM):
            command = await made.begin(*arguments)
            goal = made.samples(name) + made.size("control.wav") // 8
            await made.until(lambda goal=goal: made.samples(name) > goal)  # type: ignore[misc]
            command.process.send_signal(number)
            ended = await command.end(patience_s=60)
            arguments = ["stream", "--resume-from", f"{name}.state"]
            if number == signal.SIGTERM:
                assert ended.code == 143
                assert f"to go on: python -m client stream --resume-from {name}" in ended.err
        ended = await made.run(*arguments)
        assert ended.code == 0, ended.err
        assert made.told("out.vtt") == TOLD
        if name.endswith("flac"):
            is_the_control(made, name)
        else:
            length = len(soundfile.read(folder / name)[0])
            assert abs(length / (len(made.pcm("control.wav")) // 2) - 1) < 0.005


async def both_are_killed_twice(folder: Path) -> None:
    async with desk(folder) as made:
        arguments = ["stream", "book.txt", "-o", "out.wav", "--captions", "out.vtt"]
        for share in (0.3, 0.7):
            command = await made.begin(*arguments)
            goal = share * made.size("control.wav")
            await made.until(lambda goal=goal: made.size("out.wav.part") > goal)  # type: ignore[misc]
            command.process.kill()
            made.server.process.kill()
            await command.end(patience_s=60)
            await made.start_server()
            arguments = ["stream", "--resume-from", "out.wav.state"]
        ended = await made.run(*arguments)
        assert ended.code == 0, ended.err
        assert ended.err.count("does not know the session any more: going on with a new one, at ") == 1
        assert "going on with a new session" not in ended.err
        is_the_control(made)


async def a_server_forgot_everything(folder: Path) -> None:
    """A client that lives is not disturbed."""
    async with desk(folder) as made:
        command = await made.begin("stream", "book.txt", "-o", "out.wav", "--captions", "out.vtt")
        await made.until(lambda: made.size("out.wav.part") > 0.4 * made.size("control.wav"))
        made.server.process.kill()
        await asyncio.to_thread(made.server.process.wait)
        await made.start_server()
        ended = await command.end(patience_s=60)
        assert ended.code == 0, ended.err
        assert "the server does not know the session any more: going on with a new one, at " in ended.err
        is_the_control(made)
