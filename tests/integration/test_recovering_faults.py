"""Recovery when something else goes wrong, too: it is cancelled, a rule or a recipe fails, the one behind hangs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Self

import pytest
import structlog.testing

from server.cache.audio import AudioCache
from server.cluster import EnginePool, PoolUnavailable, Urgency, WorkerLost, fallback
from server.cluster import segment as cluster_segment
from server.cluster.cached import CachedPool
from server.cluster.failures import FailedSegment
from server.cluster.fallback import FallbackEngine
from server.cluster.recovering import RecoveringPool
from server.engines import EngineError, registry
from server.engines.rendering import Part, RenderedChunk, SegmentRequest
from server.scheduler import recovery
from server.scheduler.recovery import MAX_FAILURES, SKIP_AFTER, Recovery
from server.text import pieces
from server.text.normaliser import normalise
from tests.support.pools import collect, in_process, pcm, recovering, request

BAD = "坏"
TEXT = "一二三四五六七八"
WORD = 2_880  # samples of a word with the engine `tone`
FAILS = {"action": "fail", "match": BAD}


class NeverLoaded:
    """A fallback engine that takes for ever to load."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def pool(self) -> EnginePool | None:
        self.asked.set()
        await asyncio.Event().wait()
        return None

    async def close(self) -> None:
        pass


class Losing:
    """A pool of the engine `tone` that loses every segment."""

    capabilities = registry.create("tone", {}).capabilities
    urgency = Urgency()

    def synthesize(self, *_: Any, **__: Any) -> Self:
        return self

    async def __anext__(self) -> RenderedChunk:
        raise WorkerLost("gone")

    def cancel(self) -> None:
        pass

    async def drain(self) -> None:
        pass

    async def close(self) -> None:
        pass


def scripted(*rules: dict[str, Any]) -> Any:
    return in_process(registry.create("tone", {"script": list(rules)}))


@asynccontextmanager
async def behind(pool: Any, fallback: Any, told: list[FailedSegment]) -> AsyncIterator[RecoveringPool]:
    made = RecoveringPool(pool, fallback, told.append)
    try:
        yield made
    finally:
        await made.close()


def parts(chunks: list[RenderedChunk]) -> tuple[Part, ...]:
    return tuple(chunk.part for chunk in chunks if chunk.part is not None)


def said(chunks: list[RenderedChunk], start: int = 0) -> str:
    """What is heard from a sample on: of words that are told anew, what was told first does not hold."""
    words: list[tuple[int, str]] = []
    for chunk in chunks:
        if chunk.part is not None:
            words = [word for word in words if word[0] <= chunk.part.first_sample]
        words += [(word.end_sample, word.text) for word in chunk.words if word.end_sample > start]
    return "".join(text for _, text in words)


# ---- cancelled ----


@pytest.mark.parametrize("both", [False, True])
async def test_cancelled_while_the_fallback_engine_loads(both: bool) -> None:
    """It ends there, and a task that is cancelled in the same moment is cancelled."""
    told: list[FailedSegment] = []
    slow = NeverLoaded()
    async with scripted(FAILS) as pool, behind(pool, slow, told) as made:
        stream = made.synthesize(request(BAD))
        reading = asyncio.ensure_future(collect(stream))
        await slow.asked.wait()
        await asyncio.sleep(0)
        stream.cancel()
        if both:
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        else:
            assert await reading == []
        await asyncio.wait_for(made.drain(), 1)
    assert [failed.outcome for failed in told] == ["abandoned"]


@pytest.mark.parametrize("recorded", [False, True], ids=["engine skipped", "recipe"])
async def test_cancelled_while_it_waits_before_anything_failed(recorded: bool) -> None:
    told: list[FailedSegment] = []
    slow = NeverLoaded()
    known = (Part("fallback", 0, 8, 0, "exception"),) if recorded else ()
    async with behind(Losing(), slow, told) as made:
        for _ in range(SKIP_AFTER):
            made.breaker.lost("worker_lost", asyncio.get_running_loop().time())
        stream = made.synthesize(request(TEXT, parts=known, reported=True))
        reading = asyncio.ensure_future(collect(stream))
        await slow.asked.wait()
        stream.cancel()
        assert await reading == []
        await asyncio.wait_for(made.drain(), 1)
    assert not told


async def test_a_fallback_engine_that_is_there_in_the_moment_of_cancelling() -> None:
    stream: Any = None

    class AtOnce(NeverLoaded):
        async def pool(self) -> EnginePool | None:
            stream.cancel()
            found: EnginePool = other
            return found

    told: list[FailedSegment] = []
    async with scripted() as other:
        for known in ((), (Part("fallback", 0, 8, 0, "exception"),)):
            async with behind(Losing(), AtOnce(), told) as made:
                for _ in range(SKIP_AFTER):
                    made.breaker.lost("worker_lost", asyncio.get_running_loop().time())
                stream = made.synthesize(request(TEXT, parts=known, reported=True))
                assert await collect(stream) == []
                await asyncio.wait_for(made.drain(), 1)
    assert not told


# ---- a busy server ----


async def test_the_fallback_engine_speaks_however_long_the_engine_was_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "MAX_LOST_S", 0.0)
    async with scripted(FAILS) as pool, recovering(pool, {}) as made:
        chunks = await collect(made.synthesize(request(BAD + TEXT)))
    assert [part.source for part in parts(chunks)] == ["fallback"]


async def test_of_many_pieces_only_what_failed_is_remembered() -> None:
    told: list[FailedSegment] = []
    text = "你，好，天，" * 40
    async with scripted({"action": "fail", "match": "你,好"}) as pool, recovering(pool, told=told) as made:
        chunks = await collect(made.synthesize(request(text)))
    assert len(parts(chunks)) > MAX_FAILURES
    (failed,) = told
    assert [attempt.kind for attempt in failed.attempts] == ["exception", None]
    assert failed.attempts[-1].end == len(text)


# ---- faults of our own ----


async def test_a_text_rule_that_raises_costs_its_piece_and_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def bad(cut: Any, **options: Any) -> Any:
        if BAD in cut.text:
            raise LookupError("a text rule")
        return normalise(cut, **options)

    for module in (pieces, cluster_segment):
        monkeypatch.setattr(module, "normalise", bad)
    told: list[FailedSegment] = []
    async with scripted() as pool, recovering(pool, told=told) as inner:
        made = CachedPool(inner, AudioCache(2**20))
        chunks = await collect(made.synthesize(request("你好世界，坏<i>的</i>天气，我们，")))
        await asyncio.wait_for(made.drain(), 1)
    assert [part.source for part in parts(chunks)] == ["engine", "clip", "engine"]
    assert said(chunks) == "你好世界我们"
    assert 1.0 < len(pcm(chunks)) / 48_000 < 10.0
    assert [failed.outcome for failed in told] == ["clip"]


async def test_whatever_else_fails_leaves_nothing_to_be_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(_: Recovery) -> None:
        raise LookupError("a fault of ours")

    monkeypatch.setattr(Recovery, "next", fault)
    told: list[FailedSegment] = []
    async with scripted(FAILS) as pool, recovering(pool, told=told) as inner:
        made = CachedPool(inner, AudioCache(2**20))
        with pytest.raises(LookupError, match="of ours"):
            await collect(made.synthesize(request(BAD)))
        await asyncio.wait_for(made.drain(), 1)
    assert [failed.outcome for failed in told] == ["abandoned"]


async def test_a_cache_lets_go_of_what_fails_behind_it() -> None:
    class Faulty(Losing):
        cancelled = 0

        async def __anext__(self) -> RenderedChunk:
            raise LookupError("a fault of ours")

        def cancel(self) -> None:
            self.cancelled += 1

    faulty: Any = Faulty()
    stream = CachedPool(faulty, AudioCache(2**20)).synthesize(request())
    with pytest.raises(LookupError):
        await anext(stream)
    stream.cancel()
    assert faulty.cancelled == 1


async def test_a_fallback_engine_that_cannot_count_is_asked() -> None:
    def fault(_: str) -> int:
        raise LookupError("no such token")

    engine = registry.create("tone", {})
    engine.capabilities = replace(engine.capabilities, count_tokens=fault)  # type: ignore[misc]
    async with scripted(FAILS) as pool:
        async with behind(pool, FallbackEngine("tone", lambda: engine), []) as made:
            chunks = await collect(made.synthesize(request(BAD)))
    assert [part.source for part in parts(chunks)] == ["fallback"]


async def test_words_that_only_the_lexicon_knows_are_said() -> None:
    asked = request("你好坏，#，世界，", lexicon={"#": "井"})
    async with scripted(FAILS) as pool, recovering(pool) as made:
        chunks = await collect(made.synthesize(asked))
    assert [(part.source, part.start, part.end) for part in parts(chunks)] == [
        ("clip", 0, 4),
        ("engine", 4, 6),
        ("engine", 6, 9),
    ]
    assert said(chunks) == "井世界"


# ---- at the very end ----


async def test_a_failure_when_all_words_are_said() -> None:
    class EndFails:
        def __init__(self, stream: Any) -> None:
            self.urgency, self.cancel, self._stream = Urgency(), stream.cancel, stream

        async def __anext__(self) -> RenderedChunk:
            try:
                chunk: RenderedChunk = await anext(self._stream)
            except StopAsyncIteration:
                raise EngineError("at the end") from None
            return chunk

    told: list[FailedSegment] = []
    async with scripted() as pool:
        synthesize = pool.synthesize
        pool.synthesize = lambda *args, **options: EndFails(synthesize(*args, **options))
        async with recovering(pool, {}, told=told) as made:
            chunks = await collect(made.synthesize(request(TEXT)))
    samples = len(pcm(chunks)) // 2
    assert parts(chunks) == (Part("clip", 8, 8, samples, "exception"),)
    assert [failed.outcome for failed in told] == ["cut_short"]


# ---- a recipe that does not hold ----


KNOWN = Part("fallback", 5, 8, 5 * WORD, "exception")


class FailsOnce:
    """A pool whose first stream fails after so many chunks."""

    def __init__(self, pool: Any, chunks: int, *, transient: bool = False) -> None:
        self.capabilities, self.drain, self.close = pool.capabilities, pool.drain, pool.close
        self._pool, self._left = pool, chunks
        self._error: EngineError | None = EngineError("once", transient=transient)

    def synthesize(self, *args: Any, **options: Any) -> Any:
        self.urgency, self._stream = Urgency(), self._pool.synthesize(*args, **options)
        return self if self._error is not None else self._stream

    async def __anext__(self) -> RenderedChunk:
        if self._left == 0 and self._error is not None:
            error, self._error = self._error, None
            raise error
        self._left -= 1
        chunk: RenderedChunk = await anext(self._stream)
        return chunk

    def cancel(self) -> None:
        self._stream.cancel()


@pytest.mark.parametrize(
    ("start", "said_by_then"), [(0, 0), (700, 0), (WORD + 100, 0), (4 * WORD, 3), (5 * WORD + 10, 3)]
)
async def test_a_step_that_fails_before_the_next_one_was_to_begin(start: int, said_by_then: int) -> None:
    """The new part begins where the listener is, and so before the one that was recorded. (How far the text was said is
    an estimate: the voices speak more slowly than this engine, so a word may be said twice, and none is lost.)
    """
    asked = request(TEXT, parts=(KNOWN,))
    async with scripted() as pool, recovering(FailsOnce(pool, 0), {}) as made:  # type: ignore[arg-type]
        chunks = await collect(made.synthesize(asked, start))
    (new,) = parts(chunks)
    assert new == Part("fallback", new.start, 8, start, "exception")
    assert new.start in (said_by_then, said_by_then - 1)
    assert chunks[0].part == new
    assert said(chunks, start) == TEXT[new.start :]
    assert len(pcm(chunks)) // 2 == (8 - new.start + 1) * WORD


@pytest.mark.parametrize(("start", "chunks_before"), [(0, 1), (0, 2), (WORD + 100, 1)])
async def test_a_step_that_fails_in_the_middle(start: int, chunks_before: int) -> None:
    asked = request(TEXT, parts=(KNOWN,))
    async with scripted() as pool, recovering(FailsOnce(pool, chunks_before), {}) as made:  # type: ignore[arg-type]
        chunks = await collect(made.synthesize(asked, start))
    (new,) = parts(chunks)
    assert start < new.first_sample < KNOWN.first_sample
    assert new.first_sample == start + sum(chunk.samples for chunk in chunks[: [c.part for c in chunks].index(new)])
    assert said(chunks, start) == TEXT[start // WORD :]


async def test_a_step_that_succeeds_when_it_is_tried_again() -> None:
    """The recipe holds, to its end."""
    asked = request(TEXT, parts=(KNOWN, Part("engine", 7, 8, 7 * WORD, "silent")), reported=True)
    async with scripted() as pool, recovering(pool, {}) as made:
        whole = pcm(await collect(made.synthesize(asked)))
    told: list[FailedSegment] = []
    async with scripted() as pool:
        once: Any = FailsOnce(pool, 1, transient=True)
        async with recovering(once, {}, told=told) as made:
            chunks = await collect(made.synthesize(asked))
    assert pcm(chunks) == whole
    assert parts(chunks) == asked.parts
    assert [[attempt.kind for attempt in failed.attempts] for failed in told] == [["exception", None]]


async def test_steps_that_always_need_a_second_try_have_an_end() -> None:
    steps = tuple(Part("engine", at, at + 1, at * WORD, "exception") for at in range(8))
    always = {"action": "fail", "transient": True}
    async with scripted(always) as pool, recovering(pool) as made:
        chunks = await asyncio.wait_for(collect(made.synthesize(request(TEXT, parts=steps))), 10)
    assert {part.source for part in parts(chunks)} == {"clip"}


@pytest.mark.parametrize("start", [5 * WORD, 7 * WORD + 100])
async def test_a_step_that_nobody_can_do_any_more(start: int) -> None:
    """Its text is said by others from where the listener is: not from its beginning."""
    asked = request(TEXT, parts=(KNOWN,))
    async with scripted() as pool, recovering(pool) as made:
        chunks = await collect(made.synthesize(asked, start))
    (new,) = parts(chunks)
    assert (new.source, new.first_sample) == ("engine", start)
    assert new.start == (5 if start == 5 * WORD else 6)  # of usual speed that is the second word
    assert said(chunks, start) == TEXT[new.start :]


async def test_a_step_that_is_over_before_the_next_one_was_to_begin() -> None:
    first = Part("fallback", 0, 4, 0, "exception")
    asked = request(TEXT, parts=(first, Part("fallback", 4, 8, 50 * WORD, "exception")))
    async with scripted() as pool, recovering(pool, {}) as made:
        chunks = await collect(made.synthesize(asked))
    old, new = parts(chunks)
    assert old == first
    assert (new.source, new.start, new.first_sample) == ("engine", 4, 4 * WORD)
    assert said(chunks) == TEXT


async def test_parts_of_no_length_belong_to_a_recipe() -> None:
    told = [
        Part("engine", 0, 4, 0, "exception"),
        Part("clip", 4, 4, 2 * WORD, "exception"),
        Part("engine", 4, 8, 2 * WORD, "exception"),
    ]
    asked: SegmentRequest = request(TEXT, parts=tuple(told))
    async with scripted() as pool, recovering(pool, {}) as made:
        chunks = await collect(made.synthesize(asked))
    assert parts(chunks) == asked.parts
    assert len(pcm(chunks)) // 2 == (2 + 5) * WORD


# ---- a fallback engine that breaks ----


async def test_a_fallback_engine_that_hangs_for_good_is_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallback, "RETRY_S", (0.05, 0.05))
    loads: list[bool] = []
    engine = FallbackEngine("tone", lambda: registry.create("tone", {}), on_loaded=loads.append)
    async with scripted(FAILS) as pool, behind(pool, engine, []) as made:
        with structlog.testing.capture_logs() as logs:
            for times in range(fallback.MAX_RELOADS + 3):
                chunks = await collect(made.synthesize(request(BAD)))
                useless = times > fallback.MAX_RELOADS
                assert [part.source for part in parts(chunks)] == ["clip" if useless else "fallback"]
                if (old := engine._pool) is not None:
                    old._threads._failed = True
                    assert await engine.pool() is None
                    await asyncio.sleep(0.1)
                    with pytest.raises(PoolUnavailable):
                        await anext(old.synthesize(request()))
    assert loads == [True, False] * (fallback.MAX_RELOADS + 1)
    errors = [line["event"] for line in logs if line["log_level"] == "error"]
    assert errors == [
        "the fallback engine hangs",
        "the fallback engine hangs again and again: it is not loaded any more",
    ]
