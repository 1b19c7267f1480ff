"""Block mode over a real server: two segments at once, and not a sample differs for it."""

import asyncio
import time
from typing import Literal

from protocol import client_messages as c
from protocol import server_messages as s
from server.app import Server
from tests.integration.test_sessions import eventually
from tests.support.server import bare_client, running, url_of

TEXT = "今天天气很好。我们去公园散步吧。路上的人很多。孩子们在草地上跑。老人坐在长椅上。天黑了才回家。"
SLOW = {"step_delay_ms": 25, "batch_max": 1}


def jobs_at_once(server: Server) -> int:
    """Streams that wait for a step or are being worked on."""
    pool = server.pool
    assert pool is not None
    return pool.capacity().waiting


async def collected(threads: int, mode: Literal["stream", "block"]) -> tuple[bytes, float]:
    """All audio, and the seconds it took."""
    async with running(engine_options=SLOW, engine_threads=threads, audio_cache_mb=0) as server:
        async with bare_client(url_of(server), open=c.Open(mode=mode, max_lead_ms=None)) as client:
            started = time.perf_counter()
            await client.say(1, TEXT)
            await client.until(s.Done)
            return client.pcm(1), time.perf_counter() - started


async def test_two_segments_are_rendered_at_once_and_sound_the_same() -> None:
    stream, _ = await collected(2, "stream")
    shares: list[float] = []
    while min(shares, default=1.0) >= 0.75 and len(shares) < 4:  # a busy machine may hold up any of them
        one, one_s = await collected(1, "block")
        two, two_s = await collected(2, "block")
        assert one == two == stream
        shares.append(two_s / one_s)
    assert min(shares) < 0.75


async def test_a_cancel_stops_both() -> None:
    async with running(engine_options={"step_delay_ms": 100, "batch_max": 1}, engine_threads=2) as server:
        async with bare_client(url_of(server), open=c.Open(mode="block", max_lead_ms=None)) as client:
            await client.say(1, TEXT)
            await client.until(s.SegmentBegin)
            await client.numbered(c.Cancel)
            await client.until(s.Cancelled)
            await eventually(lambda: jobs_at_once(server) == 0)
            await client.say(2, "好。")
            done = await client.until(s.Done)
            assert done.samples == 24_000 * 360 // 1000
            names = [task.get_name() for task in asyncio.all_tasks()]
            assert "prefetch a segment" not in names


async def test_a_client_that_leaves_stops_both() -> None:
    async with running(
        engine_options={"step_delay_ms": 100, "batch_max": 1}, engine_threads=2, resume_ttl_s=0
    ) as server:
        async with bare_client(url_of(server), open=c.Open(mode="block", max_lead_ms=None)) as client:
            await client.say(1, TEXT)
            await client.until(s.SegmentBegin)
        await eventually(lambda: server.sessions.taken == 0)
        names = [task.get_name() for task in asyncio.all_tasks()]
        assert "prefetch a segment" not in names
