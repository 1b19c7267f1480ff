"""What engines keep for later blocks: its figures reach the gateway's metrics, from this process and from workers."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from server.cache.counts import CacheSize, CacheUse
from server.cache.keys import BlockKey
from server.cluster import EnginePool, InProcessPool
from server.cluster.workers import WorkerPool
from server.cluster.workers.capabilities import describe
from server.cluster.workers.service import WorkerService
from server.engines import RenderPlan, Segment
from server.engines.base import ContextCache
from server.engines.context_cache import EngineContextCache
from server.engines.tone import ToneEngine, ToneJob
from server.observe.metrics import Metrics
from server.observe.pool import PoolWatch
from tests.support.pools import Noted, collect, in_process, request


class Remembering(ToneEngine):
    """Keeps something of every segment, in 1000 bytes."""

    cache: ContextCache

    def use_context_cache(self, cache: ContextCache) -> None:
        self.cache = cache

    def prepare(self, segment: Segment, plan: RenderPlan, seed: int = 0, start_sample: int = 0) -> ToneJob:
        key = BlockKey(self.capabilities.fingerprint, segment.voice, (), tuple(token.text for token in segment.tokens))
        if self.cache.get(key) is None:
            self.cache.put(key, object(), 1_000)
        return super().prepare(segment, plan, seed, start_sample)


def remembering() -> tuple[Remembering, EngineContextCache]:
    engine, cache = Remembering(), EngineContextCache(blocks=2)
    engine.use_context_cache(cache)
    return engine, cache


@asynccontextmanager
async def here(observer: Any) -> AsyncIterator[EnginePool]:
    """An engine in this process."""
    engine, cache = remembering()
    async with in_process(engine, observer=observer, context_cache=cache) as pool:
        yield pool


@asynccontextmanager
async def worker(observer: Any) -> AsyncIterator[EnginePool]:
    """One behind a socket, as in a worker process."""
    engine, cache = remembering()
    service = WorkerService(describe(engine.capabilities))
    service.pool = InProcessPool(engine, threads=1, observer=service, context_cache=cache)
    with tempfile.TemporaryDirectory(prefix="cosystream-") as folder:
        server = await service.loop.create_unix_server(service.server, f"{folder}/s")
        pool = WorkerPool([f"{folder}/s"], observer=observer)
        try:
            await pool.start()
            yield pool
        finally:
            await pool.close()
            server.close()
            await service.pool.close()


@pytest.mark.parametrize("made", [here, worker])
async def test_its_use_is_told_with_the_steps_and_its_size_with_the_capacity(
    made: Callable[[Any], AbstractAsyncContextManager[EnginePool]],
) -> None:
    noted = Noted()
    async with made(noted) as pool:
        for text in (
            "一，",
            "二，",
            "二，",
            "三，",
            "一，",
        ):  # of the first the third had to make way, then it comes again
            await collect(pool.synthesize(request(text)))
        async with asyncio.timeout(2):
            while pool.capacity().context.entries < 2 or sum(each.context.misses for each in noted.steps) < 4:
                await asyncio.sleep(0.01)
        size = pool.capacity().context
    uses = [report.context for report in noted.steps]
    total = CacheUse(sum(u.hits for u in uses), sum(u.misses for u in uses), sum(u.evictions for u in uses))
    assert total == CacheUse(hits=1, misses=4, evictions=2)
    assert size.entries == 2
    assert 2_000 < size.bytes < 5_000


async def test_both_caches_are_in_the_metrics() -> None:
    metrics = Metrics()
    watch = PoolWatch(metrics, "tone")
    text = metrics.render().decode()
    for name in ("hits_total", "misses_total", "evictions_total", "entries", "bytes"):
        for cache in ("audio", "context"):
            assert f'cosystream_cache_{name}{{cache="{cache}"}} 0.0' in text
    async with here(watch) as pool:
        watch.follow(pool)
        for _ in range(3):
            await collect(pool.synthesize(request("一，")))
        await asyncio.sleep(0.05)
        watch.audio_cache(CacheUse(5, 4, 3), CacheSize(2, 1_000))
        watch.audio_cache(CacheUse(5, 0, 0), CacheSize(1, 900))
        text = metrics.render().decode()
    for series in (
        'hits_total{cache="context"} 2.0',
        'misses_total{cache="context"} 1.0',
        'entries{cache="context"} 1.0',
        'hits_total{cache="audio"} 10.0',
        'misses_total{cache="audio"} 4.0',
        'evictions_total{cache="audio"} 3.0',
        'entries{cache="audio"} 1.0',
        'bytes{cache="audio"} 900.0',
    ):
        assert f"cosystream_cache_{series}" in text
