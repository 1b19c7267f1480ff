"""The gateway's side against workers that are played by the test: what real ones hardly ever do."""

import asyncio
import contextlib
import dataclasses
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from server.cluster import PoolUnavailable, Urgency
from server.cluster.workers import WorkerPool
from server.cluster.workers import messages as m
from server.cluster.workers.capabilities import describe
from server.cluster.workers.wire import FrameReader, encode
from server.engines import EngineError, WordTiming, registry
from server.engines.rendering import RenderedChunk
from tests.support.pools import Noted, collect, request

CAPABILITIES = registry.create("tone", {}).capabilities
NOBODY = 2**22 + 1  # no process has a number as high
HELLO = m.Hello(NOBODY, describe(CAPABILITIES))
WORDS = (WordTiming("a", 0, 1, 0, 2), WordTiming("b", 1, 2, 2, 2), WordTiming("c", 2, 3, 2, 4))


class Played:
    """A worker: every connection gets `hello`; `say` and `heard` are about the newest."""

    def __init__(self, path: str, hello: m.Hello | None) -> None:
        self.path = path
        self.hello = hello
        self.heard: asyncio.Queue[m.Message] = asyncio.Queue()
        self.connections = 0
        self.pong: m.Pong | None = m.Pong(0)
        self._writer: asyncio.StreamWriter | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.connections += 1
        self._writer = writer
        if self.hello is not None:
            self.say(self.hello)
        frames = FrameReader()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                for message in frames.feed(data):
                    if isinstance(message, m.Ping):
                        if self.pong is not None:
                            self.say(self.pong)
                    else:
                        self.heard.put_nowait(message)
        writer.close()

    def say(self, *messages: m.FromWorker) -> None:
        """To the gateway."""
        assert self._writer is not None
        self._writer.write(b"".join(part for message in messages for part in encode(message)))

    def hang_up(self) -> None:
        """As a worker that dies."""
        assert self._writer is not None
        self._writer.transport.abort()

    async def asked(self) -> tuple[m.Synthesize, m.Next]:
        """The next stream that is begun here, and its first chunk wanted."""
        async with asyncio.timeout(5):
            begun, wanted = await self.heard.get(), await self.heard.get()
        assert isinstance(begun, m.Synthesize)
        assert isinstance(wanted, m.Next)
        return begun, wanted


@pytest.fixture
def folder() -> Iterator[str]:
    """A short path."""
    with tempfile.TemporaryDirectory(prefix="cosystream-") as made:
        yield made


@asynccontextmanager
async def played(folder: str, *hellos: m.Hello | None) -> AsyncIterator[list[Played]]:
    workers = [Played(f"{folder}/{number}", hello) for number, hello in enumerate(hellos)]
    servers = [await asyncio.start_unix_server(worker.serve, worker.path) for worker in workers]
    try:
        yield workers
    finally:
        for server in servers:
            server.close()
        await asyncio.sleep(0.01)  # the connections' tasks end


@asynccontextmanager
async def pool_of(workers: list[Played], **options: object) -> AsyncIterator[tuple[WorkerPool, Noted]]:
    noted = Noted()
    pool = WorkerPool([worker.path for worker in workers], observer=noted, **options)  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(5):
            await pool.start()
        yield pool, noted
    finally:
        await pool.close()


def audio(stream: int, *samples: int, words: tuple[WordTiming, ...] = ()) -> m.Audio:
    return m.Audio(stream, RenderedChunk(b"".join(n.to_bytes(2, "little") for n in samples), words))


async def test_a_stream_goes_on_at_the_next_sample_and_no_word_comes_twice(folder: str) -> None:
    async with played(folder, HELLO, HELLO) as workers, pool_of(workers) as (pool, noted):
        async with asyncio.timeout(5):
            while pool.capacity().workers < 2:
                await asyncio.sleep(0.005)
        stream = pool.synthesize(request(), start_sample=100, principal="ann")
        stream.urgency = Urgency(asyncio.get_running_loop().time() + 3.0, first=True)
        reading = asyncio.ensure_future(collect(stream))
        async with asyncio.timeout(5):
            while all(worker.heard.empty() for worker in workers):
                await asyncio.sleep(0.005)
        first, second = sorted(workers, key=lambda worker: worker.heard.empty())
        begun, wanted = await first.asked()
        assert (begun.start_sample, begun.principal, begun.request) == (100, "ann", request())
        assert wanted.first
        assert 2.5 < wanted.slack_s <= 3.0
        first.say(audio(begun.stream, 1, 2, words=WORDS[:2]))
        await first.heard.get()
        first.hang_up()
        begun, _ = await second.asked()
        assert begun.start_sample == 102
        second.say(m.Audio(begun.stream, RenderedChunk(b"", WORDS[:2])))  # known already: nothing to hand on
        await second.heard.get()
        second.say(audio(begun.stream, 3, words=WORDS))
        await second.heard.get()
        second.say(m.End(begun.stream))
        chunks = await reading
        assert b"".join(chunk.pcm for chunk in chunks) == bytes([1, 0, 2, 0, 3, 0])
        assert [word for chunk in chunks for word in chunk.words] == list(WORDS)
        assert noted.losses == ["died"]


UNFIT = {
    "another version": dataclasses.replace(HELLO, version=HELLO.version + 1, pid=NOBODY + 1),
    "other samples": dataclasses.replace(
        HELLO, capabilities={**HELLO.capabilities, "fingerprint": "tone-2"}, pid=NOBODY + 2
    ),
    "nothing to count with": dataclasses.replace(
        HELLO, capabilities={**HELLO.capabilities, "count_tokens": "nowhere:at_all"}, pid=NOBODY + 3
    ),
    "our process group": dataclasses.replace(HELLO, pid=0),
    "init": dataclasses.replace(HELLO, pid=1),
}


async def test_a_worker_that_does_not_fit_is_not_used_and_not_asked_all_the_time(folder: str) -> None:
    async def one(number: int, name: str) -> None:
        path = Path(folder) / str(number)
        await asyncio.to_thread(path.mkdir)
        try:
            await does_not_fit(str(path), UNFIT[name], NOBODY + 10 + number, lines)
        except AssertionError as error:
            raise AssertionError(name) from error

    with capture_logs() as lines:
        await asyncio.gather(*(one(number, name) for number, name in enumerate(UNFIT)))


async def does_not_fit(folder: str, hello: m.Hello, next_pid: int, lines: Sequence[Mapping[str, object]]) -> None:
    """It is told of in one line, and so is the process after it."""
    pids = (hello.pid, next_pid)
    async with played(folder, HELLO, None) as workers, pool_of(workers) as (pool, noted):
        fits, other = workers
        other.hello = hello
        other.say(hello)
        await asyncio.sleep(0.5)
        assert pool.capacity().workers == 1
        assert 2 <= other.connections <= 5
        told = [(line["event"], line["pid"]) for line in lines if line["pid"] in pids]
        assert told == [("a worker cannot be used", hello.pid)]
        other.hello = dataclasses.replace(hello, version=99, pid=next_pid)  # another process, told once again
        await asyncio.sleep(2.2)
        assert [line["pid"] for line in lines if line["pid"] in pids] == [hello.pid, next_pid]
        stream = pool.synthesize(request())
        reading = asyncio.ensure_future(collect(stream))
        begun, _ = await fits.asked()
        fits.say(m.End(begun.stream))
        assert await reading == []
        assert noted.losses == []


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process that may be killed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait(5)
    assert process.stdin is not None
    process.stdin.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than two seconds for a worker that does nothing, as for one that says nothing."""
    monkeypatch.setattr("server.cluster.workers.connection.STEP_GRACE_S", 0.4)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("pong", [None, m.Pong(7)], ids=["frozen", "alive and idle"])
async def test_a_worker_that_is_silent_or_does_nothing_is_killed(
    folder: str, victim: subprocess.Popen[bytes], pong: m.Pong | None
) -> None:
    hello = dataclasses.replace(HELLO, pid=victim.pid)
    async with played(folder, hello) as workers, pool_of(workers, step_timeout_s=0.5, patience_s=0.1) as (pool, noted):
        workers[0].pong = pong
        began = time.monotonic()
        stream = pool.synthesize(request())
        reading = asyncio.ensure_future(collect(stream))
        await workers[0].asked()
        while not noted.losses:
            await asyncio.sleep(0.01)
        assert 1.4 < time.monotonic() - began < 3.5
        assert noted.losses == ["hung"]
        assert await asyncio.to_thread(victim.wait, 5) == -signal.SIGKILL
        stream.cancel()
        assert await reading == []


@pytest.mark.usefixtures("impatient")
async def test_a_worker_at_work_for_others_is_not_taken_for_one_that_hangs(
    folder: str, victim: subprocess.Popen[bytes]
) -> None:
    hello = dataclasses.replace(HELLO, pid=victim.pid)
    async with played(folder, hello) as workers, pool_of(workers, step_timeout_s=0.1) as (pool, noted):
        stream = pool.synthesize(request())
        reading = asyncio.ensure_future(collect(stream))
        await workers[0].asked()
        for steps in range(25):
            workers[0].pong = m.Pong(steps)
            await asyncio.sleep(0.1)
        assert noted.losses == []
        stream.cancel()
        assert await reading == []


async def test_what_fails_at_a_worker_fails_alike_here(folder: str) -> None:
    async with played(folder, HELLO) as workers, pool_of(workers) as (pool, _):
        reading = asyncio.ensure_future(collect(pool.synthesize(request())))
        begun, _ = await workers[0].asked()
        workers[0].say(m.Failed(begun.stream, "unavailable", "not now", retry_after_s=2.5))
        with pytest.raises(PoolUnavailable, match="not now") as raised:
            await reading
        assert raised.value.retry_after_s == 2.5


async def test_what_is_too_long_for_a_worker_is_an_error_of_that_segment_alone(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.cluster.workers.wire.MAX_BODY", 1_000)
    async with played(folder, HELLO) as workers, pool_of(workers) as (pool, _), asyncio.timeout(5):
        with pytest.raises(EngineError, match="longer than 1000"):
            await collect(pool.synthesize(request("long " * 250)))
        reading = asyncio.ensure_future(collect(pool.synthesize(request())))
        begun, _ = await workers[0].asked()
        workers[0].say(m.End(begun.stream))
        assert await reading == []
        await pool.drain()


async def test_no_worker_is_waited_for_in_vain(folder: str) -> None:
    async with played(folder, HELLO) as workers, pool_of(workers, patience_s=0.2) as (pool, _):
        workers[0].hello = None
        workers[0].hang_up()
        await asyncio.sleep(0.05)
        with pytest.raises(PoolUnavailable, match="no worker process is ready"):
            await collect(pool.synthesize(request()))
        gone = pool.synthesize(request())
        waiting = asyncio.ensure_future(collect(gone))
        await asyncio.sleep(0.02)
        gone.cancel()
        assert await asyncio.wait_for(waiting, 0.1) == []
        assert pool.capacity().workers == 0
        assert pool.capacity().streams == 0


async def test_streams_go_where_the_fewest_are(folder: str) -> None:
    async with played(folder, HELLO, HELLO) as workers, pool_of(workers) as (pool, _):
        async with asyncio.timeout(5):
            while pool.capacity().workers < 2:
                await asyncio.sleep(0.005)
        workers[0].say(m.Load(dataclasses.replace(pool.capacity(), streams=8.0, waiting=2, workers=1), 3))
        await asyncio.sleep(0.02)
        assert pool.capacity().streams == 16.0  # the other one was not measured yet
        streams = [pool.synthesize(request()) for _ in range(5)]
        reading = [asyncio.ensure_future(collect(stream)) for stream in streams]
        await asyncio.sleep(0.05)
        counts = [worker.heard.qsize() // 2 for worker in workers]
        assert counts == [1, 4]
        assert pool.capacity().waiting == 7
        for stream in streams:
            stream.cancel()
        assert await asyncio.gather(*reading) == [[]] * 5
        assert pool.capacity().waiting == 2
