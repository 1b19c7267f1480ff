"""The server dies or stops in mid-sentence; the client goes on with the next one, or says where it could not."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.faulty_proxy import DOWN, FaultyProxy
from tests.support.faults import Heard, check_digests, prove, speak
from tests.support.processes import ServerProcess, server_process

TEXT = "山高水远，天蓝云白，风轻日暖。 The server goes down, and the sentence goes on. " * 3  # 15 s of audio
STEPS = ("--engine", "tone", "--engine-option", "step_delay_ms=20", "--drain-timeout-s", "0.2")


@dataclass
class Shelf:
    """Starts servers that share a store."""

    folder: Path
    store: str
    started: int = 0

    @contextmanager
    def server(self) -> Iterator[ServerProcess]:
        """One more process; killed in the end."""
        self.started += 1
        self.folder.mkdir(exist_ok=True)
        log = self.folder / f"server-{self.started}.log"
        with server_process(log, *STEPS, "--store", self.store, "--resume-ttl-s", "20") as process:
            yield process

    def logged(self, event: str) -> list[dict[str, object]]:
        """The lines of all logs with this event."""
        found = []
        for path in sorted(self.folder.glob("server-*.log")):
            process = ServerProcess(None, 0, path)  # type: ignore[arg-type]  # only its log is read
            found += [line for line in process.log() if line.get("event") == event]
        return found


async def carries(proxy: FaultyProxy, count: int) -> None:
    """Wait until so many bytes came down the line."""
    async with asyncio.timeout(10):
        while proxy.carried[DOWN] < count:
            await asyncio.sleep(0.002)


async def struck(shelf: Shelf, number: signal.Signals, at_bytes: int, **options: Any) -> tuple[Heard, Heard]:
    """What was heard while the server got this signal after so many bytes; and the undisturbed run."""
    with contextlib.ExitStack() as servers:
        first = await asyncio.to_thread(servers.enter_context, shelf.server())
        undisturbed = await speak(first.url, TEXT, **options)
        async with FaultyProxy(first.port) as proxy:
            speaking = asyncio.ensure_future(speak(proxy.url, TEXT, **options))
            await carries(proxy, at_bytes)
            assert not speaking.done()
            first.process.send_signal(number)
            await asyncio.to_thread(first.process.wait, 5)  # a bounded stop
            proxy.upstream_port = (await asyncio.to_thread(servers.enter_context, shelf.server())).port
            heard = await speaking
            assert proxy.accepted > 1
    return heard, undisturbed


async def test_the_next_process_goes_on_at_the_next_sample(tmp_path: Path) -> None:
    cases = [(number, format_) for number in (signal.SIGKILL, signal.SIGTERM) for format_ in ("pcm", "opus")]
    await asyncio.gather(*(goes_on(tmp_path / f"{case}", *case) for case in cases))


async def goes_on(folder: Path, number: signal.Signals, format_: str) -> None:
    """With a store, in this folder."""
    shelf = Shelf(folder, f"file:{folder / 'store'}")
    options: dict[str, Any] = {"format": format_, "bitrate": 32_000}
    heard, undisturbed = await struck(shelf, number, 100_000 if format_ == "pcm" else 12_000, **options)
    assert heard.line.resumes == 1
    assert heard.line.restarts == 0
    assert heard.done is not None
    assert undisturbed.done is not None
    assert heard.done.digest == undisturbed.done.digest
    if format_ == "pcm":
        prove(heard, undisturbed)
    else:
        assert len(heard.pcm) == len(undisturbed.pcm) == 2 * heard.done.samples
        assert heard.words == undisturbed.words
    (restored,) = shelf.logged("session restored")
    assert restored["epoch"] == 1
    assert not shelf.logged("internal error")


async def test_killed_without_a_store_and_again_and_again_with_one(tmp_path: Path) -> None:
    await asyncio.gather(killed_without_a_store(tmp_path / "1"), killed_while_the_text_is_written(tmp_path / "2"))


async def killed_without_a_store(folder: Path) -> None:
    """The client speaks the rest and says so."""
    shelf = Shelf(folder, "memory")
    heard, undisturbed = await struck(shelf, signal.SIGKILL, 100_000)
    assert heard.line.restarts == 1
    assert any("character" in notice for notice in heard.notices), heard.notices
    assert undisturbed.done is not None
    # The segment that was cut short is spoken again from its beginning, and nothing else twice.
    assert len(undisturbed.pcm) <= len(heard.pcm) < len(undisturbed.pcm) + 2 * 24_000 * 4


async def killed_while_the_text_is_written(folder: Path) -> None:
    """Twice; every next process goes on."""
    shelf = Shelf(folder, f"file:{folder / 'store'}")

    async def slowly() -> AsyncIterator[str]:
        for at in range(0, len(TEXT), 8):
            yield TEXT[at : at + 8]
            await asyncio.sleep(0.1)

    with contextlib.ExitStack() as servers:
        server = await asyncio.to_thread(servers.enter_context, shelf.server())
        undisturbed = await speak(server.url, TEXT)
        async with FaultyProxy(server.port) as proxy:
            speaking = asyncio.ensure_future(speak(proxy.url, slowly(), patience_s=40))
            for _ in range(2):
                await carries(proxy, proxy.carried[DOWN] + 40_000)
                assert not speaking.done()
                server.process.kill()
                server = await asyncio.to_thread(servers.enter_context, shelf.server())
                proxy.upstream_port = server.port
            heard = await speaking
    prove(heard, undisturbed)
    check_digests(heard)
    assert heard.line.resumes == 2


async def test_what_is_over_leaves_nothing_in_the_store(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, f"file:{tmp_path / 'store'}")
    with contextlib.ExitStack() as servers:
        server = await asyncio.to_thread(servers.enter_context, shelf.server())
        await speak(server.url, "好。")
        await asyncio.sleep(0.1)
        left = [path for path in (shelf.folder / "store").rglob("*") if path.is_file() and path.stat().st_size > 0]
        assert left == []
