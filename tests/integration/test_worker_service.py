"""The worker's side, with gateways that do not read."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

from structlog.testing import capture_logs

from server.cluster import Capacity, StepReport
from server.cluster.workers import messages as m
from server.cluster.workers.service import MAX_UNREAD, WorkerService
from server.cluster.workers.wire import FrameReader, encode
from server.engines.rendering import RenderedChunk

REPORT = StepReport(0.01, 1, 0.1, first=False, padding=0.0)


class Pool:
    """An engine pool that is never asked for a segment."""

    def capacity(self) -> Capacity:
        return Capacity(streams=8.0)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[WorkerService, str, list[Any]]]:
    """A worker's service, where it listens, and its connections."""
    service = WorkerService({})
    service.pool = cast(Any, Pool())
    peers: list[Any] = []

    def accept() -> asyncio.Protocol:
        peers.append(service.server())
        return cast(asyncio.Protocol, peers[-1])

    with tempfile.TemporaryDirectory(prefix="cosystream-") as folder:
        server = await asyncio.get_running_loop().create_unix_server(accept, f"{folder}/s")
        try:
            yield service, f"{folder}/s", peers
        finally:
            server.close()
            for peer in peers:
                peer.break_off()
            await asyncio.sleep(0.05)  # connections end


async def frozen(path: str, peers: list[Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A gateway that has been written more to than it takes."""
    reader, writer = await asyncio.open_unix_connection(path)
    await reader.readexactly(1)
    peers[-1].answer(m.Audio(1, RenderedChunk(bytes(2 * MAX_UNREAD))))
    assert not peers[-1].reads
    return reader, writer


async def test_a_gateway_that_does_not_read_is_broken_off() -> None:
    async with serving() as (_, path, peers):
        _, writer = await frozen(path, peers)
        report = len(b"".join(encode(m.Stepped(REPORT))))
        with capture_logs() as lines:
            while not lines:
                for _ in range(1_000):
                    peers[0].send(m.Stepped(REPORT))
                    peers[0].send(m.Audio(1, RenderedChunk(bytes(100))))  # asked for: as much as it likes
                assert peers[0]._unread <= MAX_UNREAD + 1_000 * report
                await asyncio.sleep(0)
        assert [line["event"] for line in lines] == ["a gateway that does not read is broken off"]
        async with asyncio.timeout(5):
            while not peers[0].closed:
                await asyncio.sleep(0.005)
        writer.transport.abort()


async def test_a_slow_reader_of_a_long_chunk_is_not() -> None:
    async with serving() as (_, path, peers):
        reader, writer = await frozen(path, peers)
        for _ in range(20):
            peers[0].tell_load()
        async with asyncio.timeout(5):
            while not peers[0].reads:
                assert await reader.read(65_536)
        assert not peers[0].closed
        writer.transport.abort()


async def test_steps_are_told_to_a_gateway_that_reads() -> None:
    async with serving() as (service, path, peers):
        held = [(await frozen(path, peers))[1] for _ in range(5)]
        reader, writer = await asyncio.open_unix_connection(path)
        service.stepped(REPORT)
        frames = FrameReader()
        heard: list[m.Message] = []
        async with asyncio.timeout(2):
            while m.Stepped(REPORT) not in heard:
                heard += frames.feed(await reader.read(65_536))
        for each in (writer, *held):
            each.transport.abort()
