"""A pool that tells again what it has told before: whose samples, when an engine is asked, and what is never kept."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from server.cache.audio import AudioCache
from server.cache.counts import CacheSize, CacheUse
from server.cluster import Capacity, EnginePool, PoolUnavailable, Urgency
from server.cluster.cached import CachedPool
from server.cluster.recovering import RecoveringPool
from server.engines import EngineError, RenderPlan, registry
from server.engines.base import Capabilities
from server.engines.rendering import Part, RenderedChunk, SegmentRequest
from tests.support.pools import TEXT, Noted, cached, collect, in_process, pcm, request

SCRIPT = [
    {"match": "坏", "at": 1, "action": "fail"},
    *({"match": "慢", "at": chunk, "action": "delay", "ms": 20} for chunk in range(8)),
]


class Watching(Noted):
    """Keeps what the cache tells, too."""

    def __init__(self) -> None:
        super().__init__()
        self.used = CacheUse()
        self.size = CacheSize()

    def audio_cache(self, use: CacheUse, size: CacheSize) -> None:
        self.used = CacheUse(
            self.used.hits + use.hits, self.used.misses + use.misses, self.used.evictions + use.evictions
        )
        self.size = size


@asynccontextmanager
async def watched(**options: Any) -> AsyncIterator[tuple[EnginePool, Watching]]:
    watching = Watching()
    async with cached(registry.create("tone", {"script": SCRIPT}), watching, **options) as pool:
        yield pool, watching


def at(asked: SegmentRequest, start: int, lead: str = "") -> SegmentRequest:
    """The same text elsewhere, with white space before it."""
    text = lead + asked.cut.text
    return replace(asked, id=9, cut=replace(asked.cut, start=start, end=start + len(text), text=text))


async def test_a_text_that_comes_again_takes_no_step_and_sounds_the_same() -> None:
    async with watched() as (pool, watching):
        first = await collect(pool.synthesize(request(volume=0.7)))
        steps = len(watching.steps)
        again = await collect(pool.synthesize(at(request(volume=0.7), 500, "\n ")))
        await asyncio.sleep(0.05)
        assert len(watching.steps) == steps
    assert [chunk.pcm for chunk in again] == [chunk.pcm for chunk in first]
    words = [word for chunk in first for word in chunk.words]
    assert [word for chunk in again for word in chunk.words] == [
        replace(word, start=word.start + 502, end=word.end + 502) for word in words
    ]
    assert watching.used == CacheUse(hits=1, misses=1)
    assert watching.size.entries == 1


async def test_words_are_where_the_engine_would_say_they_are() -> None:
    """Measured against an engine that renders the other text itself."""
    text = "在 12.5% 的 Hello world，"
    async with watched() as (pool, _), watched() as (reference, _):
        await collect(pool.synthesize(request(text)))
        for start, lead in ((0, ""), (7, ""), (7, "   "), (1_000_000, "\t\n")):
            asked = at(request(text), start, lead)
            assert await collect(pool.synthesize(asked)) == await collect(reference.synthesize(asked))


@pytest.mark.parametrize("start", [1, 2_399, 2_400, 2_401, 20_000, 31_679, 31_680, 99_999])
async def test_told_from_a_sample_on_it_is_the_rest(start: int) -> None:
    async with watched() as (pool, watching):
        whole = pcm(await collect(pool.synthesize(request())))
        steps = len(watching.steps)
        assert pcm(await collect(pool.synthesize(request(), start_sample=start))) == whole[2 * start :]
        assert len(watching.steps) == steps


async def test_what_was_not_told_from_its_beginning_is_not_kept() -> None:
    async with watched() as (pool, watching):
        await collect(pool.synthesize(request(), start_sample=1))
        assert watching.size == CacheSize()
        await collect(pool.synthesize(request()))
        assert watching.size.entries == 1


async def test_an_engine_that_renders_otherwise_in_blocks_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = registry.create("tone", {})
    object.__setattr__(engine.capabilities, "equality", "lsb")
    watching = Watching()
    async with cached(engine, watching) as pool:
        for plan in (RenderPlan(), RenderPlan("block"), RenderPlan(), RenderPlan("block")):
            await collect(pool.synthesize(request(plan=plan)))
    assert watching.used == CacheUse(hits=2, misses=2)


async def test_texts_that_begin_alike_keep_their_own_audio() -> None:
    start = TEXT[:-1] * 8
    async with watched() as (pool, watching):
        texts = [start + "来，", start + "去，"]
        told = [pcm(await collect(pool.synthesize(request(text)))) for text in (*texts, *texts)]
    assert watching.used == CacheUse(hits=2, misses=2)
    assert told[:2] == told[2:]
    assert told[0] != told[1]


async def test_a_failure_is_not_kept() -> None:
    async with watched() as (pool, watching):
        for _ in range(2):
            with pytest.raises(EngineError):
                await collect(pool.synthesize(request("坏" + TEXT)))
    assert watching.used == CacheUse(misses=2)
    assert watching.size == CacheSize()


async def test_what_is_cancelled_is_not_kept() -> None:
    async with watched() as (pool, watching):
        stream = pool.synthesize(request("慢" + TEXT))
        await anext(stream)
        reading = asyncio.ensure_future(collect(stream))
        await asyncio.sleep(0.005)
        stream.cancel()
        assert await reading == []
        assert isinstance(pool, CachedPool)
        assert pool.cache.recording == 0
    assert watching.size == CacheSize()


async def test_what_was_being_told_when_the_pool_closed_is_not_kept() -> None:
    async with watched() as (pool, watching):
        stream = pool.synthesize(request("慢" + TEXT))
        await anext(stream)
        reading = asyncio.ensure_future(collect(stream))
        await asyncio.sleep(0.005)
        await pool.close()
        await reading
    assert watching.size == CacheSize()


async def test_cancel_in_the_middle_of_what_is_known() -> None:
    async with watched() as (pool, _):
        whole = await collect(pool.synthesize(request()))
        stream = pool.synthesize(request())
        assert await anext(stream) == whole[0]
        next_one = asyncio.ensure_future(anext(stream, None))
        await asyncio.sleep(0)
        stream.cancel()
        assert await next_one is None
        assert await collect(stream) == []
        assert await collect(pool.synthesize(request())) == whole


async def test_a_reader_who_is_cancelled_ends_what_is_known() -> None:
    async with watched() as (pool, _):
        whole = await collect(pool.synthesize(request()))
        assert len(whole) > 2
        stream = pool.synthesize(request())
        reading = asyncio.ensure_future(collect(stream))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await collect(stream) == []
        await asyncio.wait_for(pool.drain(), 1)


async def test_drain_waits_for_what_is_told_from_memory_and_lets_no_more_begin() -> None:
    async with watched() as (pool, _):
        whole = await collect(pool.synthesize(request()))
        stream = pool.synthesize(request())
        told = [await anext(stream)]
        draining = asyncio.ensure_future(pool.drain())
        await asyncio.sleep(0.01)
        assert not draining.done()
        with pytest.raises(PoolUnavailable):
            await anext(pool.synthesize(request()))
        assert [*told, *await collect(stream)] == whole
        await asyncio.wait_for(draining, 1)


async def test_close_ends_what_is_told_from_memory() -> None:
    async with watched() as (pool, _):
        await collect(pool.synthesize(request()))
        stream = pool.synthesize(request())
        await anext(stream)
        await pool.close()
        assert await collect(stream) == []
        with pytest.raises(PoolUnavailable):
            await anext(pool.synthesize(request()))


async def test_a_book_from_memory_leaves_the_event_loop_to_others() -> None:
    async with watched() as (pool, _):
        chunks = len(await collect(pool.synthesize(request(TEXT * 10))))
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        waiting = asyncio.create_task(others())
        for _ in range(10):
            await collect(pool.synthesize(request(TEXT * 10)))
        waiting.cancel()
    assert turns >= 10 * (chunks - 1)


async def test_a_long_text_without_repeats_leaves_a_quarter_full() -> None:
    async with watched(max_bytes=400_000) as (pool, watching):
        for number in range(200):
            await collect(pool.synthesize(request(f"第{number}句，")))
            assert watching.size.bytes <= 100_000
        assert watching.size.bytes > 80_000
        assert watching.used.evictions > 150


class Scripted:
    """A pool whose streams yield what they are told to; see EnginePool."""

    def __init__(self, *chunks: RenderedChunk) -> None:
        self.chunks = chunks
        self.asked: list[tuple[SegmentRequest, int, str]] = []
        self.urgencies: list[Urgency] = []

    @property
    def capabilities(self) -> Capabilities:
        return registry.create("tone", {}).capabilities

    def capacity(self) -> Capacity:
        return Capacity(streams=7.0)

    def synthesize(self, request: SegmentRequest, start_sample: int = 0, *, principal: str = "") -> "_Scripted":
        self.asked.append((request, start_sample, principal))
        return _Scripted(self)

    async def make_voice(self, recording: bytes, text: str) -> bytes:
        return b""

    def forget_voice(self, voice: str) -> None: ...

    async def drain(self) -> None: ...

    async def close(self) -> None: ...


class _Scripted:
    def __init__(self, pool: Scripted) -> None:
        self.urgency = Urgency()
        self._pool = pool
        self._chunks: Iterator[RenderedChunk] = iter(pool.chunks)

    def __aiter__(self) -> "_Scripted":
        return self

    async def __anext__(self) -> RenderedChunk:
        self._pool.urgencies.append(self.urgency)
        for chunk in self._chunks:
            return chunk
        raise StopAsyncIteration

    def cancel(self) -> None: ...


async def test_what_was_rendered_anew_after_a_failure_is_told_and_not_kept() -> None:
    part = Part("fallback", 3, 11, 100, "silent")
    behind = Scripted(RenderedChunk(bytes(200)), RenderedChunk(bytes(200), part=part))
    pool = CachedPool(behind, AudioCache(2**20))
    for _ in range(2):
        assert tuple(await collect(pool.synthesize(request()))) == behind.chunks
    assert len(behind.asked) == 2


@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("times", [1, 1_000])
async def test_only_what_the_engine_itself_said_is_kept(chunk: int, times: int) -> None:
    """With the pool that recovers in between, as in a server: a second attempt makes the same, a clip does not."""
    fails = {"match": "坏", "at": chunk, "action": "fail", "transient": True, "times": times}
    cache = AudioCache(2**20)
    async with in_process(registry.create("tone", {"script": [fails]})) as engine:
        pool = CachedPool(RecoveringPool(engine, None, lambda failed: None), cache)
        told = [await collect(pool.synthesize(request("坏" + TEXT))) for _ in range(3)]
    clips = [chunk.part.source for chunks in told for chunk in chunks if chunk.part and chunk.part.source == "clip"]
    assert len(clips) == (0 if times == 1 else 3)
    assert [pcm(chunks) for chunks in told] == [pcm(told[0])] * 3
    assert cache.use == (CacheUse(hits=2, misses=1) if times == 1 else CacheUse(misses=3))


async def test_a_recipe_is_followed_and_not_looked_up() -> None:
    behind = Scripted(RenderedChunk(bytes(200)))
    pool = CachedPool(behind, AudioCache(2**20))
    await collect(pool.synthesize(request()))
    recipe = request(parts=(Part("engine", 0, 11, 50, "time_out"),))
    for _ in range(2):
        await collect(pool.synthesize(recipe, 5, principal="ann"))
    assert behind.asked[1:] == [(recipe, 5, "ann")] * 2
    assert pool.cache.use == CacheUse(misses=1)


async def test_the_pool_behind_hears_who_asks_and_how_urgently() -> None:
    behind = Scripted(RenderedChunk(bytes(200)))
    pool = CachedPool(behind, AudioCache(2**20))
    stream = pool.synthesize(request(), principal="ann")
    stream.urgency = Urgency(5.0, first=True)
    await anext(stream)
    stream.urgency = Urgency(9.0)
    await collect(stream)
    assert behind.urgencies == [Urgency(5.0, first=True), Urgency(9.0)]
    assert behind.asked == [(request(), 0, "ann")]
    assert pool.capacity() == Capacity(streams=7.0)
    await collect(pool.synthesize(request()))
    assert len(behind.asked) == 1
