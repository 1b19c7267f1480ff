"""A whole server with worker processes: they are killed as clients listen, and none of them outlives the server."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from server.cluster import EnginePool
from tests.support.faults import Heard, gauge, prove, speak
from tests.support.pools import worker_pool_of
from tests.support.processes import ROOT, ServerProcess, get, server_process
from tests.support.server import http_of, running, url_of

TEXT = "今天天气很好，我们去公园散步，晚上回家吃饭。 The weather is fine today, we walk to the park. " * 4


async def test_a_worker_killed_every_second_and_every_stream_is_complete_and_exact() -> None:
    async with running() as server:
        undisturbed = await speak(url_of(server), TEXT)
    async with running(workers=2, engine_options={"step_delay_ms": 60}) as server:
        listening = [asyncio.ensure_future(speak(url_of(server), TEXT, patience_s=60)) for _ in range(4)]
        kills = await _kill_every_second(server.pool, listening)
        for heard in await asyncio.gather(*listening):
            prove(heard, undisturbed)
        assert kills >= 3
        assert gauge(server, "cosystream_worker_losses_total") == kills
        assert gauge(server, "cosystream_sessions_open") == 0


async def _kill_every_second(pool: EnginePool | None, listening: Sequence[asyncio.Future[Heard]]) -> int:
    """One that serves, once the one before it is back, until everybody has heard everything; how many."""
    workers = worker_pool_of(pool)
    kills = 0
    while (await asyncio.wait(listening, timeout=1.0))[1]:
        serving = [each.pid for each in workers._connections if each.streams]
        if serving and workers.capacity().workers == 2:
            os.kill(serving[kills % len(serving)], signal.SIGKILL)
            kills += 1
    return kills


async def test_ready_while_one_works_and_not_without() -> None:
    async with running(workers=1) as server:
        ready = f"{http_of(server)}/readyz"
        assert (await asyncio.to_thread(get, ready))[0] == 200
        workers = worker_pool_of(server.pool)
        pid = workers._connections[0].pid
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(5):
            while workers.capacity().workers:
                await asyncio.sleep(0.001)
        status, body = await asyncio.to_thread(get, ready)
        assert (status, b"no engine is at work" in body) == (503, True)
        async with asyncio.timeout(10):
            while (await asyncio.to_thread(get, ready))[0] != 200:
                await asyncio.sleep(0.02)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with two workers, whose sockets lie in the test's folder."""
    env = {"TMPDIR": str(tmp_path)}
    with server_process(tmp_path / "log", "--engine", "tone", "--workers", "2", env=env) as started:
        yield started


def workers_of(server: ServerProcess) -> list[int]:
    """The workers' processes, once both are ready."""
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        found = [int(str(line["pid"])) for line in server.log() if line["event"] == "a worker is ready"]
        if len(found) == 2:
            return found
        time.sleep(0.02)
    raise AssertionError("two workers did not get ready")


def gone_after_s(pids: list[int]) -> float:
    """How long it takes until none of them is there."""
    began = time.monotonic()
    while any(Path(f"/proc/{pid}").exists() and not _is_zombie(pid) for pid in pids):
        assert time.monotonic() - began < 5, "a worker outlives its server"
        time.sleep(0.01)
    return time.monotonic() - began


def _is_zombie(pid: int) -> bool:
    """Whether it has ended and nobody has taken notice yet: not every container has an init that does."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_no_worker_outlives_a_server_that_is_killed(server: ServerProcess) -> None:
    pids = workers_of(server)
    os.kill(pids[0], signal.SIGSTOP)  # a frozen one neither
    server.process.kill()
    assert gone_after_s(pids) < 2


def test_an_orderly_stop_leaves_nothing(server: ServerProcess, tmp_path: Path) -> None:
    pids = workers_of(server)
    assert server.stop() < 3
    assert gone_after_s(pids) < 1  # they are gone as it returns; looking takes a moment
    assert not list(tmp_path.glob("cosystream-*"))
    assert server.process.returncode == 0


def test_ctrl_c_of_the_whole_group_is_an_orderly_stop(tmp_path: Path) -> None:
    with server_process(tmp_path / "log", "--engine", "tone", "--workers", "2", prefix=["setsid", "-w"]) as server:
        pids = workers_of(server)
        os.killpg(os.getpgid(pids[0]), signal.SIGINT)
        server.process.wait(5)
        assert gone_after_s(pids) < 1
    events = [line["event"] for line in server.log()]
    assert "stopped" in events
    assert "a worker ended" not in events


def test_an_engine_that_cannot_start_is_one_line_as_without_workers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "server", "--port", "0", "--engine", "tone", "--log-format", "json"]
    started = [
        subprocess.Popen(
            [*command, "--engine-option", "foo=1", "--workers", workers],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for workers in ("0", "2")
    ]
    said = []
    for process in started:
        _, err = process.communicate(timeout=30)
        assert process.returncode == 1
        (line,) = err.splitlines()
        said.append(line.partition(b'"timestamp"')[0])
    assert said[0] == said[1]
    assert b"engine option foo is not one of" in said[0]
