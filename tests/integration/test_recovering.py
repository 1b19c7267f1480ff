"""A pool whose segments do not fail: whatever its engine does, and wherever, the stream goes on."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog.testing

from protocol import client_messages as c
from protocol import server_messages as s
from server.cluster import EnginePool, PoolUnavailable, Urgency, WorkerLost
from server.cluster.failures import FailedSegment
from server.cluster.fallback import FallbackEngine
from server.cluster.recovering import RecoveringPool
from server.engines import EngineError, registry, tone
from server.engines.rendering import Part, RenderedChunk, SegmentRequest
from server.scheduler.recovery import SKIP_AFTER
from server.text.segmenter import Segmenter
from tests.support.pools import (
    collect,
    connected,
    in_process,
    pcm,
    processes,
    recovering,
    request,
    shared_processes,
)
from tests.support.server import bare_client, running, url_of

BAD = "坏"
TEXT = "你好世界，坏的天气，我们去公园，"  # cut at its commas where even the fallback engine fails
WORD = 2_880  # samples of a word with the engine `tone`
NOTHING_FAILS: dict[str, Any] = {}
ALL_FAILS = {"script": [{"action": "fail", "match": BAD}]}


def tone_pool(*rules: dict[str, Any], **options: Any) -> Any:
    """A pool of threads around the engine `tone` with this script."""
    return in_process(registry.create("tone", {"script": list(rules)}), **options)


@asynccontextmanager
async def scripted(
    *rules: dict[str, Any], fallback: Any = None, told: list[FailedSegment] | None = None
) -> AsyncIterator[RecoveringPool]:
    async with tone_pool(*rules) as pool, recovering(pool, fallback, told=told) as made:
        yield made


async def undisturbed(asked: SegmentRequest) -> bytes:
    async with tone_pool() as pool:
        return pcm(await collect(pool.synthesize(replace(asked, parts=()))))


def parts(chunks: list[RenderedChunk]) -> tuple[Part, ...]:
    return tuple(chunk.part for chunk in chunks if chunk.part is not None)


def check(asked: SegmentRequest, chunks: list[RenderedChunk]) -> None:
    """Parts begin where the chunk does that tells of them, and tile the rest of the text; times go forward."""
    at, text = 0, None
    for chunk in chunks:
        if chunk.part is not None:
            assert chunk.part.first_sample == at
            assert text is None or chunk.part.start <= text
            text = chunk.part.end
            assert asked.cut.start <= chunk.part.start <= chunk.part.end <= asked.cut.end
        at += chunk.samples
        for word in chunk.words:
            assert asked.cut.start <= word.start < word.end <= asked.cut.end
            assert 0 <= word.first_sample < word.end_sample
    assert text in (None, asked.cut.end)


def loudness(samples: bytes) -> int:
    return int(np.abs(np.frombuffer(samples, "<i2").astype(int)).max(initial=0))


# ---- nothing fails ----


async def test_what_does_not_fail_is_passed_on_as_it_is() -> None:
    async with tone_pool() as pool:
        wanted = await collect(pool.synthesize(request(TEXT)))
    told: list[FailedSegment] = []
    async with scripted(fallback=NOTHING_FAILS, told=told) as made:
        assert await collect(made.synthesize(request(TEXT))) == wanted
    assert not told


async def test_the_urgency_reaches_whoever_speaks() -> None:
    seen: list[Urgency] = []
    async with scripted({"action": "fail", "at": 1}, fallback=NOTHING_FAILS) as made:
        assert made.fallback is not None
        behind = await made.fallback.pool()
        assert behind is not None
        stream = made.synthesize(request(TEXT))
        number = 0
        async for _ in stream:
            seen.append(stream._doing.stream.urgency)  # type: ignore[union-attr]
            number += 1
            stream.urgency = Urgency(float(number), first=True)
    assert [each.due for each in seen[1:4]] == [1.0, 2.0, 3.0]


# ---- each kind of failure, at the beginning, in the middle, at the end ----

KINDS = [
    ("fail", "exception"),
    ("crash", "exception"),
    ("oom", "out_of_memory"),
    ("nan", "not_finite"),
    ("repeat", "repeated"),
]


@pytest.mark.parametrize("at", [0, 2, 5])
@pytest.mark.parametrize(("action", "kind"), KINDS)
@pytest.mark.parametrize("fallback", [None, NOTHING_FAILS, ALL_FAILS], ids=["alone", "fallback", "bad fallback"])
async def test_a_failure_anywhere(action: str, kind: str, at: int, fallback: Any) -> None:
    asked, told = request(TEXT, origin="someone/1"), list[FailedSegment]()
    whole = await undisturbed(asked)
    async with scripted({"action": action, "match": BAD, "at": at}, fallback=fallback, told=told) as made:
        chunks = await collect(made.synthesize(asked, principal="me"))
        check(asked, chunks)
        samples, found = pcm(chunks), parts(chunks)
        assert found
        assert found[0].reason == kind
        same = 2 * (2_400 if action == "repeat" else found[0].first_sample)
        assert samples[:same] == whole[:same]
        (failed,) = told
        assert (failed.request, failed.principal, failed.engine) == (asked, "me", "tone")
        assert failed.attempts[0].kind == kind
        assert failed.attempts[-1].kind is None
        if fallback == NOTHING_FAILS:
            assert failed.outcome == ("fallback" if found[0].start < found[0].end else "cut_short")
            assert len(found) == 1
            words = len(TEXT[found[0].start : found[0].end].replace("，", ""))
            assert len(samples) // 2 == found[0].first_sample + (words + bool(words)) * WORD
        elif found[0].start <= TEXT.index(BAD):
            assert failed.outcome in ("clip", "pieces")
            if action == "repeat" and fallback is None:
                assert {part.source for part in found} == {"clip"}  # it is not asked again
            else:
                assert samples[-2 * 5 * WORD :] == whole[-2 * 5 * WORD :]  # the last piece is as it should be
        # again, as it was: from anywhere, and telling nobody
        recipe = replace(asked, parts=found, reported=True)
        total = len(samples) // 2
        n = found[0].first_sample
        for start in (0, 1, n - 1, n, n + 1, n + 47, n + 48, found[-1].first_sample + 1_000, total - 1, total):
            if start < 0:
                continue
            again = await collect(made.synthesize(recipe, start_sample=start))
            assert pcm(again) == samples[2 * start :], start
            assert parts(again) == tuple(part for part in found if part.first_sample >= start)
        assert len(told) == 1


IN_WORKERS = {"坏": "fail", "满": "oom", "虚": "nan", "静": "silent", "复": "repeat", "崩": "crash"}


@pytest.fixture(scope="module")
def workers() -> Iterator[tuple[str, ...]]:
    """Worker processes whose engine does all that, each with a text of its own."""
    script = [
        {"action": action, "match": match, "at": 0 if action == "silent" else 2} for match, action in IN_WORKERS.items()
    ]
    with shared_processes(1, {"script": script}) as paths:
        yield paths


@pytest.mark.parametrize(("action", "kind"), [*KINDS, ("silent", "silent")])
async def test_what_an_engine_in_a_worker_does_wrong_is_known_here(
    workers: tuple[str, ...], action: str, kind: str
) -> None:
    bad = next(match for match, each in IN_WORKERS.items() if each == action)
    asked, told = request(TEXT.replace(BAD, bad)), list[FailedSegment]()
    async with connected(workers) as pool, recovering(pool, NOTHING_FAILS, told=told) as made:
        chunks, beside = await asyncio.gather(collect(made.synthesize(asked)), collect(made.synthesize(request())))
        check(asked, chunks)
        samples, found = pcm(chunks), parts(chunks)
        assert [(part.source, part.reason) for part in found] == [("fallback", kind)]
        assert pcm(beside) == await undisturbed(request())
        assert pcm(await collect(made.synthesize(replace(asked, parts=found, reported=True)))) == samples
    (failed,) = told
    assert failed.attempts[0].kind == kind
    assert "Error" in failed.attempts[0].trace


async def test_silence_in_place_of_words_is_followed_by_the_words() -> None:
    asked, told = request(TEXT), list[FailedSegment]()
    whole = await undisturbed(asked)
    async with scripted({"action": "silent"}, fallback=NOTHING_FAILS, told=told) as made:
        samples = pcm(await collect(made.synthesize(asked)))
    assert loudness(samples[: len(whole)]) == 0
    assert samples[len(whole) :] == whole
    assert [attempt.kind for attempt in told[0].attempts] == ["silent", None]


async def test_a_pause_in_a_segment_and_a_volume_of_nearly_nothing_are_no_failure() -> None:
    told: list[FailedSegment] = []
    async with scripted({"action": "silent", "at": 1}, told=told) as made:
        await collect(made.synthesize(request(TEXT)))
        await collect(made.synthesize(request(TEXT, volume=0.1)))
        await collect(made.synthesize(request("……")))
        whole = pcm(await collect(made.synthesize(request(TEXT))))
        assert pcm(await collect(made.synthesize(request(TEXT), start_sample=9_000))) == whole[18_000:]
    assert not told


@pytest.mark.parametrize("kind", ["fail", "oom"])
async def test_what_passes_is_tried_again_and_nothing_is_heard_of_it(kind: str) -> None:
    asked, told = request(TEXT), list[FailedSegment]()
    rule = {"action": kind, "at": 1, "times": 1, "transient": True}
    async with scripted(rule, fallback=ALL_FAILS, told=told) as made:
        chunks = await collect(made.synthesize(asked))
    assert pcm(chunks) == await undisturbed(asked)
    assert not parts(chunks)
    assert len([word for chunk in chunks for word in chunk.words]) == 13  # none of them twice
    (failed,) = told
    assert failed.outcome == "recovered"
    assert [attempt.kind is None for attempt in failed.attempts] == [False, True]
    assert failed.attempts[1].first_sample > 0


async def test_a_text_without_punctuation_becomes_a_clip_as_long_as_itself() -> None:
    asked = request("没有标点的坏话")
    async with scripted({"action": "fail", "match": BAD}, fallback=ALL_FAILS) as made:
        chunks = await collect(made.synthesize(asked))
    samples = pcm(chunks)
    assert [part.source for part in parts(chunks)] == ["clip"]
    assert 1.0 < len(samples) / 48_000 < 2.5
    assert 500 < loudness(samples) < 1_500
    assert loudness(samples[24_000:]) == 0


@pytest.mark.parametrize("rate", [8_000, 24_000, 48_000])
@pytest.mark.parametrize("behind", [None, NOTHING_FAILS], ids=["clip", "fallback"])
async def test_where_another_one_takes_over_nothing_clicks(rate: int, behind: Any) -> None:
    asked = request("没有标点的坏话坏", sample_rate=rate)
    async with tone_pool() as pool:
        usual = np.frombuffer(pcm(await collect(pool.synthesize(asked))), "<i2").astype(int)
    async with scripted({"action": "fail", "match": BAD, "at": 2}, fallback=behind) as made:
        chunks = await collect(made.synthesize(asked))
    first = parts(chunks)[0].first_sample
    samples = np.frombuffer(pcm(chunks), "<i2").astype(int)
    assert abs(samples[first - 1]) > 100  # in the middle of a sound
    near = samples[first - 10 : first + rate // 200]
    assert abs(np.diff(near)).max() < 2 * abs(np.diff(usual)).max() + abs(samples[first - 1]) / (rate / 1_000)


async def test_text_that_says_nothing_needs_no_clip() -> None:
    class Refusing(tone.ToneEngine):
        def prepare(self, *_: Any, **__: Any) -> tone.ToneJob:
            raise ValueError("not today")

    told: list[FailedSegment] = []
    async with in_process(Refusing()) as pool, recovering(pool, told=told) as made:
        chunks = await collect(made.synthesize(request("……")))
    assert chunks == []
    assert [failed.outcome for failed in told] == ["no_words"]


# ---- hanging, dying, stopping ----


async def test_an_engine_that_hangs() -> None:
    asked, told = request(TEXT), list[FailedSegment]()
    rule = {"action": "stall", "match": BAD, "at": 1, "ms": 1_500}
    async with tone_pool(rule, threads=2, step_timeout_s=0.2) as pool:
        async with recovering(pool, NOTHING_FAILS, told=told) as made:
            chunks = await collect(made.synthesize(asked))
            check(asked, chunks)
    assert [(part.source, part.reason) for part in parts(chunks)] == [("fallback", "time_out")]
    assert told[0].attempts[0].seconds >= 0.4  # twice, as the pool tries


async def test_an_engine_that_is_gone_altogether() -> None:
    """With nothing behind it the stream waits a while for it, and goes on."""

    class Gone:
        capabilities = registry.create("tone", {}).capabilities

        def __init__(self, pool: EnginePool) -> None:
            self.pool, self.asked = pool, 0

        def synthesize(self, request: SegmentRequest, start_sample: int = 0, *, principal: str = "") -> Any:
            self.asked += 1
            return self

        async def __anext__(self) -> RenderedChunk:
            raise PoolUnavailable("the engine hangs", retry_after_s=0.05)

        def cancel(self) -> None:
            pass

        async def drain(self) -> None:
            pass

        async def close(self) -> None:
            pass

    async with tone_pool() as pool:
        for fallback, asked, source in ((None, 3, "clip"), (NOTHING_FAILS, 1, "fallback")):
            gone: Any = Gone(pool)
            async with recovering(gone, fallback) as made:
                chunks = await collect(made.synthesize(request("没有标点的话")))
            assert [part.source for part in parts(chunks)] == [source]
            assert gone.asked <= asked


@pytest.mark.parametrize("behind", [None, NOTHING_FAILS], ids=["alone", "fallback"])
async def test_a_worker_that_dies_of_a_segment(behind: Any) -> None:
    """The one that kills it becomes a clip or is spoken by the fallback engine; the one beside it notices nothing."""
    asked, told = request(TEXT), list[FailedSegment]()
    rules = [{"action": "delay", "match": BAD, "at": 1, "ms": 300}]
    async with processes(1, {"script": rules}) as running, connected(running.paths) as pool:
        async with recovering(pool, behind, told=told) as made:
            reading = asyncio.ensure_future(collect(made.synthesize(asked)))
            for _ in range(8):
                if not reading.done():
                    if running.pids and pool.capacity().workers:
                        await asyncio.sleep(0.15)
                        os.kill(running.pids[0], signal.SIGKILL)
                    await asyncio.sleep(0.1)
            chunks = await asyncio.wait_for(reading, 30)
    check(asked, chunks)
    assert len(told) <= 1
    if told:
        assert told[0].attempts[0].kind == "worker_lost"


async def test_after_one_loss_after_the_other_the_engine_is_left_alone() -> None:
    class Lost:
        capabilities = registry.create("tone", {}).capabilities
        asked = 0

        def synthesize(self, *_: Any, **__: Any) -> Any:
            self.asked += 1
            return self

        async def __anext__(self) -> RenderedChunk:
            raise WorkerLost("gone")

        def cancel(self) -> None:
            pass

        async def close(self) -> None:
            pass

    lost: Any = Lost()
    told: list[FailedSegment] = []
    async with recovering(lost, NOTHING_FAILS, told=told) as made:
        for _ in range(SKIP_AFTER + 5):
            chunks = await collect(made.synthesize(request()))
            assert [part.source for part in parts(chunks)] == ["fallback"]
    assert lost.asked == SKIP_AFTER
    assert len(told) == SKIP_AFTER + 5


async def test_a_server_that_stops_is_no_failure() -> None:
    told: list[FailedSegment] = []
    async with scripted(fallback=NOTHING_FAILS, told=told) as made:
        stream = made.synthesize(request(TEXT * 5))
        await anext(stream)
        await made.close()
        with pytest.raises((PoolUnavailable, EngineError), match="stopping"):
            await collect(made.synthesize(request()))
    assert not told


async def test_draining_waits_for_those_that_recover() -> None:
    async with scripted({"action": "fail", "at": 1}, fallback={"step_delay_ms": 20}) as made:
        stream = made.synthesize(request(TEXT))
        while (await anext(stream)).part is None:
            pass
        draining = asyncio.ensure_future(made.drain())
        await asyncio.sleep(0.05)
        assert not draining.done()
        with pytest.raises(PoolUnavailable):
            await anext(made.synthesize(request()))
        await collect(stream)
        await asyncio.wait_for(draining, 1)


async def test_who_is_cancelled_is_told_as_abandoned() -> None:
    told: list[FailedSegment] = []
    async with scripted({"action": "fail", "at": 1}, fallback={"step_delay_ms": 20}, told=told) as made:
        stream = made.synthesize(request(TEXT))
        while (await anext(stream)).part is None:
            pass
        assert not told
        stream.cancel()
        stream.cancel()
        assert await collect(stream) == []
        untouched = made.synthesize(request(TEXT))
        await anext(untouched)
        untouched.cancel()
        reading = asyncio.ensure_future(collect(made.synthesize(request(TEXT))))
        await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert [failed.outcome for failed in told] == ["abandoned", "abandoned"]


# ---- a recipe that cannot be followed to its end ----


async def test_a_recipe_that_ends_before_its_text_and_one_that_fails() -> None:
    told: list[FailedSegment] = []
    known = Part("fallback", 0, 5, 1_000, "exception")
    asked = request(TEXT, parts=(known,))
    async with scripted(fallback=NOTHING_FAILS, told=told) as made:
        chunks = await collect(made.synthesize(asked))
        check(asked, chunks)
        assert parts(chunks)[0] == known
        assert [part.start for part in parts(chunks)] == [0, 5]
    told.clear()
    async with scripted(told=told) as made:  # the fallback engine is not there any more
        chunks = await collect(made.synthesize(asked))
        check(asked, chunks)
        assert {part.source for part in parts(chunks)} == {"engine"}


# ---- the fallback engine ----


async def test_the_fallback_engine_is_loaded_once_when_it_is_needed() -> None:
    loads: list[bool] = []
    made = 0

    def start() -> Any:
        nonlocal made
        made += 1
        return registry.create("tone", {})

    async with tone_pool({"action": "fail"}) as pool:
        behind = FallbackEngine("tone", start, on_loaded=loads.append)
        recovering_pool = RecoveringPool(pool, behind, lambda _: None)
        assert made == 0
        await asyncio.gather(*(collect(recovering_pool.synthesize(request())) for _ in range(4)))
        assert made == 1
        await recovering_pool.close()
    assert loads == [True, False]


async def test_a_fallback_engine_that_cannot_be_loaded_is_tried_again_after_a_while() -> None:
    tries = 0

    def start() -> Any:
        nonlocal tries
        tries += 1
        raise EngineError("no such voice")

    async with tone_pool({"action": "fail", "match": BAD}) as pool:
        made = RecoveringPool(pool, FallbackEngine("tone", start), lambda _: None)
        for _ in range(3):
            chunks = await collect(made.synthesize(request(TEXT)))
            assert "clip" in {part.source for part in parts(chunks)}
            assert "fallback" not in {part.source for part in parts(chunks)}
        assert tries == 1
        await made.close()


async def test_a_fallback_engine_that_takes_less_at_once_gets_pieces() -> None:
    text = "你好世界今天天气很好" * 3
    asked = request(text)
    async with scripted({"action": "fail"}, fallback={"max_tokens": 16}) as made:
        chunks = await collect(made.synthesize(asked))
    check(asked, chunks)
    assert [(part.source, part.end - part.start) for part in parts(chunks)] == [("fallback", 16), ("fallback", 14)]
    assert [word.text for chunk in chunks for word in chunk.words] == list(text)


async def test_words_keep_their_places_and_get_their_times() -> None:
    asked = request("一二三四五六七八", sample_rate=16_000)
    async with scripted({"action": "fail", "at": 2}, fallback=NOTHING_FAILS) as made:
        chunks = await collect(made.synthesize(asked))
    (part,) = parts(chunks)
    words = [word for chunk in chunks[[c.part for c in chunks].index(part) :] for word in chunk.words]
    assert "".join(word.text for word in words) == "一二三四五六七八"[part.start :]
    assert [(word.start, word.end) for word in words] == [(at, at + 1) for at in range(part.start, 8)]
    assert words[0].first_sample == part.first_sample
    assert all(word.end_sample - word.first_sample == 1_920 for word in words)


# ---- a long text ----


@pytest.mark.parametrize("fallback", [None, NOTHING_FAILS], ids=["alone", "fallback"])
async def test_five_percent_of_a_long_text_fail(fallback: Any) -> None:
    segmenter = Segmenter()
    hanzi = [chr(0x4E00 + n) for n in range(1_500)]
    segmenter.feed(
        "".join(char + ("，" if n % 7 == 6 else "。" if n % 31 == 30 else "") for n, char in enumerate(hanzi))
    )
    segmenter.end()
    cuts = []
    while (cut := segmenter.next()) is not None:
        cuts.append(cut)
    assert len(cuts) > 80
    asked = [SegmentRequest(number, cut, "tone-low", 24_000) for number, cut in enumerate(cuts)]
    async with tone_pool() as pool:
        good = [pcm(await collect(pool.synthesize(each))) for each in asked]
    told: list[FailedSegment] = []
    async with scripted({"action": "fail", "rate": 0.05, "at": 1}, fallback=fallback, told=told) as made:
        streams = [collect(made.synthesize(each)) for each in asked]
        found = [chunks for at in range(0, len(streams), 2) for chunks in await asyncio.gather(*streams[at : at + 2])]
    failed = [each.request.id for each in told]
    assert 1 <= len(failed) < len(cuts) / 8
    assert len(set(failed)) == len(failed)
    for each, chunks, wanted in zip(asked, found, good, strict=True):
        check(each, chunks)
        assert bool(parts(chunks)) == (each.id in failed)
        if each.id not in failed:
            assert pcm(chunks) == wanted


async def test_the_embedded_voices_behind_another_engine(voices: Path) -> None:
    """The default: what the engine fails at is spoken by them, and the log says on what terms they may be used."""
    script = [{"action": "fail", "match": BAD}]
    with structlog.testing.capture_logs() as logs:
        async with running(engine_options={"script": script}, fallback_engine="embedded") as server:
            async with bare_client(url_of(server), open=c.Open()) as client:
                for utterance, text in ((1, "你好，世界。坏的天气很好。Thank you.再见。"), (2, "It is 坏 today.")):
                    await client.say(utterance, text)
                    await client.until(s.Done, timeout=40)
            metrics = server.metrics.render().decode()
    degraded = [m for m in client.messages if isinstance(m, s.SegmentEnd) and m.degraded]
    assert degraded
    assert all(end.reason.startswith("exception: ") for end in degraded)
    assert all(0.5 < end.samples / 24_000 < 6 for end in degraded)
    assert "cosystream_fallback_loaded 1.0" in metrics
    assert 'cosystream_degraded_segments_total{outcome="fallback"}' in metrics
    (loaded,) = [line for line in logs if line["event"] == "the fallback engine is loaded"]
    assert any("Non-commercial use only" in line for line in loaded["licenses"])
    (ended,) = [line for line in logs if line["event"] == "session ended"]
    assert ended["degraded"] == len(degraded)
    assert [line["why"] for line in logs if line["event"] == "session detail"] == ["degraded"]
    assert len([line for line in logs if line["event"] == "a segment failed"]) == len(degraded)


async def test_a_fallback_engine_that_nobody_installed_is_a_word_at_the_start() -> None:
    with pytest.raises(LookupError, match=r"fallback_engine must be one of none, .*embedded.*, not 'nobody'"):
        async with running(fallback_engine="nobody"):
            pass


@pytest.mark.parametrize("name", ["none", "tone"])
async def test_no_engine_stands_behind_itself(name: str) -> None:
    script = [{"action": "fail", "match": BAD}]
    async with running(engine_options={"script": script}, fallback_engine=name) as server:
        async with bare_client(url_of(server), open=c.Open()) as client:
            await client.say(1, "坏的天气。")
            await client.until(s.Done)
        assert 'degraded_segments_total{outcome="clip"} 1.0' in server.metrics.render().decode()
