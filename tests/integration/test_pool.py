"""The contract of an engine pool: the same tests for every kind of pool."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

import pytest

from server.cluster import EnginePool, PoolUnavailable, Urgency
from server.cluster.recovering import RecoveringPool
from server.engines import EngineError, RenderPlan, registry
from tests.support.pools import (
    TEXT,
    Noted,
    cached,
    collect,
    connected,
    in_process,
    pcm,
    recovering,
    request,
    shared_processes,
)

# What the pools' engine does on demand: 坏 fails at its second chunk, 崩 breaks the whole step, 慢 takes its time.
SCRIPT = [
    {"match": "坏", "at": 1, "action": "fail"},
    {"match": "崩", "at": 0, "action": "crash"},
    *({"match": "慢", "at": chunk, "action": "delay", "ms": 30} for chunk in range(8)),
]
OPTIONS = {"script": SCRIPT, "batch_max": 2}

MakePool = Callable[..., AbstractAsyncContextManager[EnginePool]]


@pytest.fixture(scope="module")
def workers() -> Iterator[tuple[str, ...]]:
    """Two worker processes for the whole module."""
    with shared_processes(2, OPTIONS) as paths:
        yield paths


@pytest.fixture(params=["in process", "one worker", "two workers", "cached", "recovering", "recovering workers"])
def make_pool(request: pytest.FixtureRequest) -> MakePool:
    """How to make the pool under test."""
    if request.param == "in process":
        return lambda **options: in_process(registry.create("tone", OPTIONS), **options)
    if request.param == "cached":
        return lambda **options: cached(registry.create("tone", OPTIONS), **options)
    if request.param == "recovering":
        return lambda **options: behind(in_process(registry.create("tone", OPTIONS), **options))
    paths = request.getfixturevalue("workers")
    if request.param == "recovering workers":
        return lambda **options: behind(connected(paths, **options))
    return lambda **options: connected(paths[: 1 if request.param == "one worker" else 2], **options)


@asynccontextmanager
async def behind(inner: AbstractAsyncContextManager[EnginePool]) -> AsyncIterator[EnginePool]:
    """That pool, with nothing but clips for what it fails at."""
    async with inner as pool, recovering(pool) as made:
        yield made


@pytest.fixture
async def pool(make_pool: MakePool) -> AsyncIterator[EnginePool]:
    """The pool under test."""
    async with make_pool() as made:
        yield made


@asynccontextmanager
async def observed(make_pool: MakePool) -> AsyncIterator[tuple[EnginePool, Noted]]:
    noted = Noted()
    async with make_pool(observer=noted) as pool:
        yield pool, noted


async def quiet(noted: Noted) -> int:
    """How many steps there were, once there are no more."""
    before = -1
    while before != len(noted.steps):
        before = len(noted.steps)
        await asyncio.sleep(0.15)
    return before


async def test_chunks_come_in_order_and_make_the_whole(pool: EnginePool) -> None:
    chunks = await collect(pool.synthesize(request()))
    assert len(chunks) > 2
    assert sum(chunk.samples for chunk in chunks) == 10 * 2_880 + 2_880
    assert [word.text for word in chunks[0].words] == list("你好世界今天天气很好")


async def test_capabilities_are_the_engines(pool: EnginePool) -> None:
    assert pool.capabilities == registry.create("tone", OPTIONS).capabilities
    assert pool.capabilities.count_tokens("你好 world") == 3


@pytest.mark.parametrize("rate", [8_000, 16_000, 22_050, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("plan", [RenderPlan(), RenderPlan("block")])
async def test_start_sample_gives_exactly_the_rest(pool: EnginePool, rate: int, plan: RenderPlan) -> None:
    asked = request(sample_rate=rate, volume=1.7, speed=1.1, plan=plan)
    chunks = await collect(pool.synthesize(asked))
    whole, words = pcm(chunks), [word for chunk in chunks for word in chunk.words]
    total = len(whole) // 2
    assert len(words) == 10
    for start in (0, 1, rate // 10, rate // 3 + 1, total - 1, total, total + 5 * rate):
        chunks = await collect(pool.synthesize(asked, start_sample=start))
        assert pcm(chunks) == whole[2 * start :]
        given = [word for chunk in chunks for word in chunk.words]
        assert given == words[len(words) - len(given) :]  # the same times
        assert [word for word in given if word.end_sample > start] == [w for w in words if w.end_sample > start]
        assert all(word.end_sample > start - rate / 100 for word in given)  # a filter's length before, at most


async def test_a_late_start_costs_only_the_rest(make_pool: MakePool) -> None:
    async with observed(make_pool) as (pool, noted):
        whole = pcm(await collect(pool.synthesize(request(TEXT * 8, sample_rate=16_000))))
        steps = await quiet(noted)
        start = len(whole) // 2 - 2_000
        assert pcm(await collect(pool.synthesize(request(TEXT * 8, sample_rate=16_000), start_sample=start)))
        assert await quiet(noted) - steps <= 1  # none, where it comes from memory
        assert steps > 20
        assert sum(report.audio_s for report in noted.steps[steps:]) < 0.2


@pytest.mark.parametrize(
    "asked",
    [
        request(voice="tone-high", speed=1.37, pitch=0.83, volume=0.501),
        request("Hello world, 12.5%", sample_rate=48_000, seed=2**32 - 1),
        request("SQL 你好，", sample_rate=8_000, lexicon={"SQL": "sequel", "你": "ni"}, instruct="whisper"),
        request(TEXT * 20, plan=RenderPlan("block")),
        request(plan=RenderPlan("stream", (40, 120, 60))),
        request("", id=7),
    ],
)
async def test_every_field_of_a_request_counts(pool: EnginePool, asked: Any) -> None:
    async with in_process(registry.create("tone", {})) as reference:
        wanted = await collect(reference.synthesize(asked))
    assert await collect(pool.synthesize(asked)) == wanted


async def test_streams_at_once_are_the_same_as_alone(pool: EnginePool) -> None:
    texts = [TEXT[n:] for n in range(8)]
    alone = [pcm(await collect(pool.synthesize(request(text)))) for text in texts]
    together = await asyncio.gather(*(collect(pool.synthesize(request(text))) for text in texts))
    assert [pcm(chunks) for chunks in together] == alone


async def test_one_failure_leaves_the_others(pool: EnginePool) -> None:
    good, bad = await asyncio.gather(
        collect(pool.synthesize(request("慢" + TEXT))),
        collect(pool.synthesize(request("慢坏" + TEXT))),
        return_exceptions=True,
    )
    if isinstance(pool, RecoveringPool):
        assert isinstance(bad, list)
        assert [chunk.part.reason for chunk in bad if chunk.part] == ["exception"]
    else:
        assert isinstance(bad, EngineError)
        assert "scripted failure at chunk 1" in str(bad)
        assert not bad.transient
    assert isinstance(good, list)
    assert not [chunk.part for chunk in good if chunk.part]


async def test_a_stream_that_failed_is_over(pool: EnginePool) -> None:
    stream = pool.synthesize(request("坏" + TEXT))
    with nullcontext() if isinstance(pool, RecoveringPool) else pytest.raises(EngineError):
        await collect(stream)
    assert await collect(stream) == []
    stream.cancel()


async def test_a_crashing_step_is_an_engine_error_and_the_pool_goes_on(pool: EnginePool) -> None:
    with nullcontext() if isinstance(pool, RecoveringPool) else pytest.raises(EngineError, match="scripted crash"):
        await collect(pool.synthesize(request("崩" + TEXT)))
    assert await collect(pool.synthesize(request()))


async def test_a_stream_that_is_not_read_costs_nothing(make_pool: MakePool) -> None:
    async with observed(make_pool) as (pool, noted):
        unread = pool.synthesize(request())
        stream = pool.synthesize(request())
        await anext(stream)
        assert await quiet(noted) == 1
        stream.cancel()
        unread.cancel()


async def test_every_step_is_told_once(make_pool: MakePool) -> None:
    async with observed(make_pool) as (pool, noted):
        chunks = await collect(pool.synthesize(request()))
        assert await quiet(noted) >= len(chunks) - 1  # the last one may yield two
    assert sum(report.audio_s for report in noted.steps) == pytest.approx(11 * 0.12)
    assert all(report.jobs == 1 and 0 < report.seconds < 1 for report in noted.steps)
    assert [report.first for report in noted.steps] == [True] + [False] * (len(noted.steps) - 1)


async def test_cancel_ends_a_stream_at_once_and_its_work_at_the_next_step(make_pool: MakePool) -> None:
    async with observed(make_pool) as (pool, noted):
        stream = pool.synthesize(request("慢" + TEXT * 10))
        await anext(stream)
        reading = asyncio.ensure_future(collect(stream))
        await asyncio.sleep(0.01)
        stream.cancel()
        assert await reading == []
        assert await quiet(noted) <= 2
        stream.cancel()


async def test_a_reader_who_is_cancelled_cancels_the_stream(make_pool: MakePool) -> None:
    async with observed(make_pool) as (pool, noted):
        stream = pool.synthesize(request("慢" + TEXT * 10))
        reading = asyncio.ensure_future(collect(stream))
        await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await quiet(noted) <= 1
        assert await collect(stream) == []


async def test_who_has_to_be_heard_first_is_served_before_read_ahead(make_pool: MakePool) -> None:
    """Six streams a worker that nobody waits for, and one that somebody does."""
    async with make_pool() as pool:
        loop = asyncio.get_running_loop()
        order: list[str] = []

        async def first_chunk(name: str, urgency: Urgency) -> None:
            stream = pool.synthesize(request("慢" + TEXT))
            stream.urgency = urgency
            await anext(stream)
            order.append(name)
            stream.cancel()

        count = 6 * pool.capacity().workers
        waiting = [asyncio.ensure_future(first_chunk("ahead", Urgency(math.inf))) for _ in range(count)]
        await asyncio.sleep(0.02)
        await first_chunk("heard", Urgency(loop.time(), first=True))
        await asyncio.gather(*waiting)
    assert order.index("heard") <= count // 2


async def test_capacity_says_what_was_measured_and_who_waits(make_pool: MakePool) -> None:
    async with make_pool() as pool:
        await collect(pool.synthesize(request(TEXT * 10)))
        assert pool.capacity().workers >= 1
        streams = [pool.synthesize(request("慢" + TEXT)) for _ in range(12)]
        for stream in streams:
            stream.urgency = Urgency(asyncio.get_running_loop().time() + 5, first=True)
        reading = asyncio.gather(*(anext(stream) for stream in streams))
        seen = []
        while not reading.done():  # a busy machine may look only when some of them are served
            await asyncio.sleep(0)
            seen.append(pool.capacity())
            await asyncio.sleep(0.002)
        await reading
        for stream in streams:
            stream.cancel()
        assert 8 <= max(now.waiting for now in seen) <= 12
        assert 8 <= max(now.waiting_first for now in seen) <= 12
        async with asyncio.timeout(5):
            while pool.capacity().waiting:
                await asyncio.sleep(0.01)


async def test_drain_lets_those_at_work_finish_and_takes_no_other(make_pool: MakePool) -> None:
    async with make_pool() as pool:
        stream = pool.synthesize(request("慢" + TEXT))
        first = await anext(stream)
        draining = asyncio.ensure_future(pool.drain())
        await asyncio.sleep(0.01)
        with pytest.raises(PoolUnavailable):
            await anext(pool.synthesize(request()))
        assert not draining.done()
        rest = await collect(stream)
        await asyncio.wait_for(draining, 1)
    assert first.samples + sum(chunk.samples for chunk in rest) == 12 * 2_880


async def test_close_ends_everything(make_pool: MakePool) -> None:
    async with make_pool() as pool:
        stream = pool.synthesize(request("慢" + TEXT * 10))
        await anext(stream)
        await pool.close()
        with pytest.raises((PoolUnavailable, EngineError), match="stopping"):
            await collect(pool.synthesize(request()))
