"""Who comes first after `ready` waits no longer than those who follow: nothing is loaded, built or imported then."""

import asyncio
import statistics
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import orjson

import client
from tests.support.processes import ServerProcess, server_process

ZH = "价格是 12.5 元，大约 3kg。"
EN = "Call me at 5pm on May 3, 1987."
TIMES = 4


async def test_the_first_request_of_each_kind_is_as_cheap_as_the_next(tmp_path: Path, voices: Path) -> None:
    """By the server's own CPU time, which another process on this machine hardly changes."""
    kinds: dict[str, Callable[[ServerProcess], Awaitable[None]]] = {
        "zh": partial(stream, ZH),
        "en": partial(stream, EN),
        "opus": partial(stream, EN, format="opus", decode=False),
        "8 kHz": partial(stream, EN, sample_rate=8_000),
        "block": partial(stream, ZH, mode="block"),
        "shaped": partial(stream, EN, speed=1.3, pitch=1.2),
        "wav": partial(post, "wav"),
        "ogg": partial(post, "opus"),
    }
    # Python then tells of every import, where the log goes.
    env = {"COSYSTREAM_MODEL_DIR": str(voices), "PYTHONPROFILEIMPORTTIME": "1"}
    with ExitStack() as running:
        process = server_process(tmp_path / "log", "--context-cache-mb", "0", env=env)
        server = await asyncio.to_thread(running.enter_context, process)
        for name, ask in kinds.items():
            spent = [await cpu_ms(server, ask) for _ in range(TIMES)]
            assert spent[0] < 1.5 * statistics.median(spent[1:]) + 15, (name, spent)
        imported = after_ready(server.log_file)
    assert imported == []


async def stream(text: str, server: ServerProcess, **options: Any) -> None:
    async with client.connect(server.url, **options) as session:
        async for _ in session.speak(text):
            pass


async def post(format_: str, server: ServerProcess) -> None:
    request = urllib.request.Request(f"{server.http}/v1/speak", orjson.dumps({"text": EN, "format": format_}))

    def read() -> None:
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert len(answer.read()) > 1_000

    await asyncio.to_thread(read)


async def cpu_ms(server: ServerProcess, ask: Callable[[ServerProcess], Awaitable[None]]) -> float:
    """What the server's threads compute from asking until a moment after the answer."""

    def spent() -> int:
        tasks = Path(f"/proc/{server.process.pid}/task")
        return sum(int(path.read_text().split()[0]) for path in tasks.glob("*/schedstat"))

    before = spent()
    await ask(server)
    await asyncio.sleep(0.05)
    return (spent() - before) / 1e6


def after_ready(log: Path) -> list[str]:
    """The modules that were imported once the server could speak."""
    told = log.read_text().partition('"event":"ready"')[2]
    assert "session ended" in told
    return [line.rpartition("|")[2].strip() for line in told.splitlines() if line.startswith("import time:")]
