"""Worker processes that die, freeze, hang or never come: every stream goes on at its exact sample, or says why not."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from server.cluster import PoolUnavailable, WorkerLost
from server.cluster.workers import WorkerPool, WorkerProcesses
from server.cluster.workers.restarts import Backoff
from server.cluster.workers.stream import WorkerStream
from server.engines import EngineError, WordTiming, registry
from tests.support.pools import TEXT, Noted, collect, connected, in_process, pcm, processes, request

LONG = TEXT * 8  # 10 s of audio in 26 chunks


@dataclass
class Heard:
    """What came of a stream."""

    audio: bytes = b""
    words: list[WordTiming] = field(default_factory=list)
    gap_s: float = 0.0  # the longest wait for a chunk
    chunks: int = 0


@dataclass
class Site:
    """Workers, a pool of them, and what it told."""

    running: WorkerProcesses
    pool: WorkerPool
    noted: Noted

    async def back(self, count: int = 2) -> None:
        """Returns when so many workers are ready again."""
        async with asyncio.timeout(10):
            while self.pool.capacity().workers < count:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def site(
    count: int = 2, engine_options: dict[str, Any] | None = None, *, patience_s: float = 10.0, **options: Any
) -> AsyncIterator[Site]:
    engine_options = {"step_delay_ms": 10} if engine_options is None else engine_options
    noted = Noted()
    async with processes(count, engine_options, **options) as running:
        step_timeout_s = options.get("step_timeout_s", 5.0)
        async with connected(
            running.paths, observer=noted, step_timeout_s=step_timeout_s, patience_s=patience_s
        ) as pool:
            yield Site(running, pool, noted)


async def hear(stream: WorkerStream, heard: Heard | None = None) -> Heard:
    """All of it, with the time that it took."""
    heard = heard or Heard()
    asked = time.monotonic()
    async for chunk in stream:
        heard.gap_s = max(heard.gap_s, time.monotonic() - asked)
        heard.audio += chunk.pcm
        heard.words += chunk.words
        heard.chunks += 1
        asked = time.monotonic()
    return heard


async def undisturbed(text: str = LONG, sample_rate: int = 24_000) -> Heard:
    async with in_process(registry.create("tone", {})) as pool:
        chunks = await collect(pool.synthesize(request(text, sample_rate=sample_rate)))
    return Heard(pcm(chunks), [word for chunk in chunks for word in chunk.words])


def same(heard: Heard, whole: Heard) -> bool:
    return heard.audio == whole.audio and heard.words == whole.words


def worker_of(stream: WorkerStream) -> int:
    """The process that renders it now."""
    assert stream._connection is not None
    return stream._connection.pid


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def gone(pids: Iterable[int], timeout: float = 3.0) -> None:
    """Returns when none of these processes is there any more."""
    async with asyncio.timeout(timeout):
        while any(map(alive, pids)):
            await asyncio.sleep(0.02)


async def disturbed(
    place: Site, number: signal.Signals, streams: int = 4, sample_rate: int = 24_000
) -> tuple[list[Heard], int]:
    """Several streams; after a few chunks the worker of the first one gets a signal. What came, and which it was."""
    begun = [place.pool.synthesize(request(LONG, sample_rate=sample_rate)) for _ in range(streams)]
    heard = [Heard() for _ in begun]
    reading = [asyncio.ensure_future(hear(stream, into)) for stream, into in zip(begun, heard, strict=True)]
    while heard[0].chunks < 3:
        await asyncio.sleep(0.005)
    victim = worker_of(begun[0])
    os.kill(victim, number)
    await asyncio.gather(*reading)
    assert worker_of(begun[0]) != victim
    return heard, victim


@pytest.mark.parametrize("sample_rate", [24_000, 44_100])
async def test_a_killed_worker_costs_a_moment(sample_rate: int) -> None:
    whole = await undisturbed(sample_rate=sample_rate)
    async with site() as place:
        for _ in range(2):
            heard, _ = await disturbed(place, signal.SIGKILL, sample_rate=sample_rate)
            assert all(same(each, whole) for each in heard)
            assert max(each.gap_s for each in heard) < 1.2  # a frozen one takes 1.5 s at least
            await place.back()
        assert place.noted.losses == ["died"] * 2


async def test_a_frozen_worker_is_noticed_and_killed() -> None:
    whole = await undisturbed()
    async with site() as place:
        heard, frozen = await disturbed(place, signal.SIGSTOP)
        assert all(same(each, whole) for each in heard)
        assert 1.0 < max(each.gap_s for each in heard) < 5.0
        await gone([frozen])
        await place.back()
        assert place.noted.losses == ["hung"]


async def test_a_worker_that_is_told_to_end_hands_over_without_a_gap() -> None:
    whole = await undisturbed()
    async with site() as place:
        heard, leaving = await disturbed(place, signal.SIGTERM)
        assert all(same(each, whole) for each in heard)
        assert max(each.gap_s for each in heard) < 1.2
        await gone([leaving])
        await place.back()
        assert place.noted.losses == []


async def test_a_step_that_hangs_ends_its_worker_and_only_its_segment_is_lost() -> None:
    whole = await undisturbed()
    script = [{"match": "停", "at": 2, "action": "stall"}, {"match": "你", "at": 0, "action": "delay", "ms": 10}]
    async with site(engine_options={"script": script, "step_delay_ms": 20}, step_timeout_s=0.5, threads=2) as place:
        others = [asyncio.ensure_future(hear(place.pool.synthesize(request(LONG)))) for _ in range(2)]
        with pytest.raises(WorkerLost, match="one worker after the other"):
            await collect(place.pool.synthesize(request("停" + TEXT)))
        assert all(same(each, whole) for each in await asyncio.gather(*others))
        assert place.noted.losses == ["hung"] * 2
        await place.back()
        assert await collect(place.pool.synthesize(request()))


async def test_where_one_worker_is_all_there_is_its_streams_wait_for_the_next() -> None:
    whole = await undisturbed()
    async with site(1) as place:
        heard, _ = await disturbed(place, signal.SIGKILL, streams=2)
        assert all(same(each, whole) for each in heard)


async def test_workers_that_others_run_may_serve_several_gateways() -> None:
    whole = await undisturbed()
    async with site(2) as place, connected(place.running.paths, observer=(noted := Noted())) as second:
        steps = len(place.noted.steps)
        streams = [pool.synthesize(request(LONG)) for pool in (place.pool, second) for _ in range(2)]
        reading = [asyncio.ensure_future(hear(stream)) for stream in streams]
        await asyncio.sleep(0.1)
        os.kill(worker_of(streams[0]), signal.SIGKILL)
        assert all(same(each, whole) for each in await asyncio.gather(*reading))
        await asyncio.sleep(0.2)
        # Of what was heard nothing is rendered again, and every step is told once, to one of them.
        audio_s = sum(step.audio_s for step in [*place.noted.steps[steps:], *noted.steps])
        assert 3.9 * len(whole.audio) / 48_000 <= audio_s < 4.4 * len(whole.audio) / 48_000


async def test_garbage_from_a_gateway_ends_its_connection_alone() -> None:
    async with site(1) as place:
        for garbage in (b"\xff" * 100, b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 9):
            reader, writer = await asyncio.open_unix_connection(place.running.paths[0])
            writer.write(garbage)
            async with asyncio.timeout(2):
                await reader.read()
            writer.close()
        stream = place.pool.synthesize(request())
        assert await collect(stream)
        assert place.noted.losses == []


# Engines that end their process


ENGINE = """
import os
from pathlib import Path
from server.engines import tone

def create(options):
    starts = Path(options["starts"])
    with starts.open("a") as file:
        file.write("x")
    if starts.stat().st_size > int(options["good_starts"]) and not Path(options["starts"] + ".cured").exists():
        os._exit(3)
    return Mortal(step_delay_ms=10)

class Mortal(tone.ToneEngine):
    def step(self, jobs):
        if any("毒" in job.text and job.chunk == 1 for job in jobs):
            os._exit(4)
        return super().step(jobs)
"""


@pytest.fixture
def mortal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Options of an engine `mortal`, which ends its process as it starts, after some good starts, or because of 毒."""
    (tmp_path / "mortal_engine.py").write_text(ENGINE, encoding="utf-8")
    information = tmp_path / "mortal_engine-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: mortal-engine\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[cosystream.engines]\nmortal = mortal_engine:create\n")
    monkeypatch.syspath_prepend(tmp_path)  # workers find what their parent finds
    return {"starts": str(tmp_path / "starts"), "good_starts": "1000"}


def starts(options: dict[str, str]) -> int:
    """How often a worker's engine was started."""
    return Path(options["starts"]).stat().st_size


def cure(options: dict[str, str]) -> None:
    """From here on every start is good."""
    Path(options["starts"] + ".cured").touch()


async def test_workers_that_crash_again_and_again_cost_little_and_are_missed(mortal: dict[str, str]) -> None:
    whole = await undisturbed()
    backoff = lambda: Backoff(0.05, 0.4)  # noqa: E731
    options = {**mortal, "good_starts": "1"}
    async with site(1, options, engine="mortal", backoff=backoff, patience_s=1.0) as place:
        waiting = place.pool.synthesize(request(LONG))
        first = await anext(waiting)
        os.kill(worker_of(waiting), signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(PoolUnavailable, match="no worker process is ready"):
            await collect(place.pool.synthesize(request()))
        assert 0.9 < time.monotonic() - began < 5.0
        assert place.pool.capacity().workers == 0
        assert starts(mortal) <= 15  # in five seconds at most
        async with asyncio.timeout(10):
            while starts(mortal) < 4:
                await asyncio.sleep(0.02)
        cure(mortal)
        await place.back(1)
        rest = await hear(waiting)
        assert first.pcm + rest.audio == whole.audio


async def test_a_segment_that_kills_workers_is_lost_and_no_other(mortal: dict[str, str]) -> None:
    whole = await undisturbed()
    async with site(2, mortal, engine="mortal") as place:
        others = [asyncio.ensure_future(hear(place.pool.synthesize(request(LONG)))) for _ in range(5)]
        with pytest.raises(WorkerLost, match="one worker after the other"):
            await collect(place.pool.synthesize(request("毒" + TEXT)))
        assert all(same(each, whole) for each in await asyncio.gather(*others))
        assert place.noted.losses == ["died"] * 4


async def test_an_engine_that_dies_as_it_starts_is_an_error_and_no_loop(mortal: dict[str, str]) -> None:
    with pytest.raises(EngineError, match="ended with status 3 while it started"):
        async with processes(1, {**mortal, "good_starts": "0"}, engine="mortal"):
            pass
    assert starts(mortal) == 1


async def test_an_option_that_cannot_be_told_to_a_worker_is_an_error_at_once() -> None:
    with pytest.raises(ValueError, match="an engine option cannot be given to a worker process"):
        async with asyncio.timeout(5), processes(1, {"script": date(2026, 1, 1)}):
            pass


@pytest.mark.parametrize(
    ("engine", "options", "message"),
    [
        (
            "tone",
            {"foo": 1},
            "^engine option foo is not one of batch_max, .*, script, step_delay_ms$",
        ),
        ("nope", {}, "^engine must be one of .*, not 'nope'$"),
    ],
)
async def test_what_is_wrong_with_an_engine_is_said_in_its_own_words(
    engine: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        async with processes(2, options, engine=engine):
            pass


def variable(pid: int, name: str) -> str:
    """An environment variable of a process."""
    entries = dict(entry.partition("=")[::2] for entry in Path(f"/proc/{pid}/environ").read_text().split("\0"))
    return entries[name]


def folder_of(running: WorkerProcesses) -> Path:
    """Where the sockets are, which only this user may enter."""
    folder = Path(running.paths[0]).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    return folder


async def test_each_worker_gets_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    async with processes(3, devices=["0", "GPU-5"]) as running:
        found = [variable(pid, "CUDA_VISIBLE_DEVICES") for pid in running.pids]
        folder = await asyncio.to_thread(folder_of, running)
        pids = running.pids
    assert found == ["0", "GPU-5", "0"]
    assert not await asyncio.to_thread(folder.exists)
    assert not any(map(alive, pids))


async def test_a_folder_whose_path_is_too_long_for_a_socket_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    async with processes(1) as running:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(running.paths[0])
    assert not list(long.iterdir())
