"""What is told of segments that an engine failed at: once, true, and at no session's expense."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from protocol import client_messages as c
from protocol import server_messages as s
from server.cache.audio import AudioCache
from server.cluster.cached import CachedPool
from server.cluster.failures import Attempt, FailedSegment, Outcome
from server.cluster.fallback import FallbackEngine
from server.cluster.recovering import RecoveringPool
from server.engines import registry
from server.engines.base import FailureKind
from server.engines.rendering import Part
from server.scheduler.recovery import SKIP_AFTER
from tests.integration.test_dead_letters import letters
from tests.integration.test_recovering import parts, scripted, tone_pool, undisturbed
from tests.support.pools import collect, pcm, recovering, request
from tests.support.processes import server_process
from tests.support.returning import Returning, cut_all
from tests.support.server import bare_client, running, url_of

BAD = "坏"
TEXT = "你好世界，坏的天气，我们去公园，"
FAILS = {"action": "fail", "match": BAD, "at": 2}
EXCEPTION: FailureKind = "exception"


@pytest.fixture(autouse=True)
async def no_connection_left() -> AsyncIterator[None]:
    yield
    await cut_all()


# ---- observers ----


async def test_an_observer_that_raises_ends_no_segment() -> None:
    def tell(_: FailedSegment) -> None:
        raise StopIteration

    asked, told = request(TEXT), list[FailedSegment]()
    async with scripted(FAILS, told=told) as made:
        expected = await collect(made.synthesize(asked))
    async with tone_pool(FAILS) as pool:
        made = RecoveringPool(pool, None, tell)
        with structlog.testing.capture_logs() as logs:
            assert await collect(made.synthesize(asked)) == expected
        await asyncio.wait_for(made.drain(), 1)
        await made.close()
    assert [line["event"] for line in logs] == ["a segment failed, and that could not be told"]


async def test_the_dead_letters_do_not_depend_on_another_observer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise LookupError

    monkeypatch.setattr("server.observe.failures.FailureWatch.told", fail)
    options: dict[str, Any] = {"engine_options": {"script": [FAILS]}, "dead_letters": str(tmp_path)}
    async with running(**options) as server, bare_client(url_of(server), open=c.Open()) as client:
        await client.say(1, TEXT)
        await client.until(s.Done)
    assert len(letters(tmp_path)) == 1


async def test_the_fallback_engine_speaks_though_nobody_could_be_told_of_it() -> None:
    def tell(_: bool) -> None:
        raise LookupError

    fallback = FallbackEngine("tone", lambda: registry.create("tone", {}), on_loaded=tell)
    async with tone_pool(FAILS) as pool:
        made = RecoveringPool(pool, fallback, lambda _: None)
        chunks = await collect(made.synthesize(request(TEXT)))
        await made.close()
    assert [part.source for part in parts(chunks)] == ["fallback"]


# ---- what another process did not live to tell ----

RECIPES: list[tuple[tuple[Part, ...], Outcome]] = [
    ((Part("fallback", 5, 16, 14_400, EXCEPTION),), "fallback"),
    ((Part("engine", 5, 10, 14_400, EXCEPTION), Part("engine", 10, 16, 30_000, EXCEPTION)), "pieces"),
    ((Part("clip", 5, 10, 14_400, EXCEPTION), Part("engine", 10, 16, 40_000, EXCEPTION)), "clip"),
    ((Part("clip", 16, 16, 40_000, EXCEPTION),), "cut_short"),
]


@pytest.mark.parametrize(("recipe", "outcome"), RECIPES)
async def test_a_failure_that_another_process_saw_is_told_by_the_one_that_ends_the_segment(
    recipe: tuple[Part, ...], outcome: Outcome
) -> None:
    asked, told = request(TEXT, parts=recipe), list[FailedSegment]()
    async with scripted(fallback={}, told=told) as made:
        samples = pcm(await collect(made.synthesize(asked)))
        (failed,) = told
        again = await collect(made.synthesize(replace(asked, reported=True)))
    assert pcm(again) == samples
    assert len(told) == 1
    assert failed.outcome == outcome
    assert failed.request.parts == recipe
    first, last = failed.attempts
    assert first == Attempt("tone", 0, 16, 0, 0.0, EXCEPTION, "before a restart")
    assert (last.kind, last.end) == (None, 16)


async def test_what_fails_anew_is_told_though_another_process_told_of_the_first_failure() -> None:
    recipe = (Part("engine", 5, 16, 14_400, EXCEPTION),)
    told: list[FailedSegment] = []
    async with scripted({**FAILS, "at": 0}, told=told) as made:
        await collect(made.synthesize(request(TEXT, parts=recipe, reported=True)))
    (failed,) = told
    assert "before a restart" not in [attempt.error for attempt in failed.attempts]


async def test_each_step_of_a_recipe_may_need_a_second_try() -> None:
    """What fails by chance does so at other steps than the first time; a client has the samples of the recipe."""
    recipe = (Part("engine", 5, 10, 14_400, EXCEPTION), Part("engine", 10, 16, 28_800, EXCEPTION))
    asked = request(TEXT, parts=recipe)
    async with scripted() as made:
        whole = pcm(await collect(made.synthesize(asked)))
    async with scripted({"action": "fail", "transient": True, "times": 1}) as made:
        chunks = await collect(made.synthesize(asked))
    assert parts(chunks) == recipe
    assert pcm(chunks) == whole


@pytest.mark.parametrize("stopping", [False, True])
async def test_an_abandoned_recipe_is_told_by_the_last_process(stopping: bool) -> None:
    told: list[FailedSegment] = []
    async with scripted(told=told) as made:
        stream = made.synthesize(request(TEXT, parts=(Part("engine", 5, 16, 14_400, EXCEPTION),)))
        await anext(stream)
        draining = asyncio.ensure_future(made.drain()) if stopping else None
        await asyncio.sleep(0)
        stream.cancel()
        await asyncio.wait_for(draining or made.drain(), 1)
    assert [failed.outcome for failed in told] == ([] if stopping else ["abandoned"])


@pytest.mark.parametrize("over", [False, True], ids=["killed in the middle", "killed after the segment"])
async def test_one_letter_for_a_segment_of_a_killed_server(tmp_path: Path, over: bool) -> None:
    place = tmp_path / "letters"
    script = (
        f'[engine_options]\nstep_delay_ms = {20 if over else 60}\nscript = [{{action = "fail", match = "{BAD}"}}]\n'
    )
    (tmp_path / "server.toml").write_text(script, encoding="utf-8")
    args = ("--engine", "tone", "--fallback-engine", "none", "--store", f"file:{tmp_path / 'sessions'}",
            "--dead-letters", str(place), "--config", str(tmp_path / "server.toml"))  # fmt: skip
    text = f"你好，{BAD}的天气，我们去公园散步，山高水远，天蓝云白。再见，" + "明天再说，" * 6
    with contextlib.ExitStack() as servers:
        first = await asyncio.to_thread(servers.enter_context, server_process(tmp_path / "1.log", *args))
        client = Returning(first.url)
        await client.open(max_lead_ms=None)
        await client.say(1, text)
        await client.samples(12_000)
        if over:
            await client.until(s.SegmentEnd)
            await asyncio.sleep(0.3)  # the letter is written behind
        first.process.kill()
        await asyncio.to_thread(first.process.wait, 5)
        assert len(letters(place)) == over
        second = await asyncio.to_thread(servers.enter_context, server_process(tmp_path / "2.log", *args))
        client.url = second.url
        assert isinstance(await client.resume(), s.Resumed)
        done = await client.until(s.Done)
        await asyncio.sleep(0.5)
    assert len(client.pcm[1]) == 2 * done.samples
    (letter,) = letters(place)
    assert BAD in letter.failed.request.cut.text
    assert letter.failed.outcome == "clip"
    assert letter.failed.attempts[0].error == ("scripted failure at chunk 0" if over else "before a restart")


# ---- without words ----


@pytest.mark.parametrize("text", [" ", "...", "……", "\n", "😀"])
async def test_nothing_is_missing_where_there_is_no_word(text: str) -> None:
    told: list[FailedSegment] = []
    async with scripted({"action": "fail"}, fallback={}, told=told) as inner:
        made = CachedPool(inner, AudioCache(2**20))
        assert parts(await collect(made.synthesize(request(text)))) == ()
        assert made.cache.size.entries == 0  # it may be spoken to its end the next time
    assert [failed.outcome for failed in told] == ["no_words"]


async def test_wire_letters_and_metrics_agree_that_nothing_is_missing(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "engine_options": {"script": [{"action": "fail"}]},
        "dead_letters": str(tmp_path),
    }
    async with running(**options) as server, bare_client(url_of(server), open=c.Open()) as client:
        await client.say(1, "……")
        done = await client.until(s.Done)
        ends = [message for message in client.messages if isinstance(message, s.SegmentEnd)]
        metrics = server.metrics.render().decode()
    assert [(end.degraded, end.reason) for end in ends] == [(False, "")]
    assert done.statistics["degraded"] == 0
    assert [letter.failed.outcome for letter in letters(tmp_path)] == ["no_words"]
    assert 'failed_segments_total{reason="exception"} 1.0' in metrics
    assert "degraded_segments_total{" not in metrics


# ---- the same over and over ----


async def test_an_engine_that_babbles_is_asked_once() -> None:
    told: list[FailedSegment] = []
    asked = request(TEXT.replace(BAD, "好"))
    async with scripted({"action": "repeat", "at": 1}, told=told) as made:
        chunks = await collect(made.synthesize(asked))
    (failed,) = told
    assert [attempt.engine for attempt in failed.attempts] == ["tone", "clip"]
    clips = parts(chunks)
    assert [(part.source, part.reason) for part in clips] == [("clip", "repeated")] * 3
    babble = clips[0].first_sample
    assert len(pcm(chunks)) // 2 < 1.25 * babble  # and not as much again for each piece


async def test_an_engine_that_babbled_in_another_process_is_not_asked_for_the_rest() -> None:
    recipe = (Part("fallback", 0, 16, 100_000, "repeated"),)
    bad = {"script": [{"action": "fail", "match": BAD}]}
    async with scripted({"action": "repeat", "at": 30}, fallback=bad) as made:
        chunks = await collect(made.synthesize(request(TEXT, parts=recipe)))
    assert "engine" not in {part.source for part in parts(chunks)}


async def test_an_engine_that_babbles_all_the_time_is_left_alone() -> None:
    told: list[FailedSegment] = []
    async with tone_pool({"action": "repeat"}) as pool, recovering(pool, {}, told=told) as made:
        for _ in range(SKIP_AFTER):
            await collect(made.synthesize(request(TEXT)))
        chunks = await collect(made.synthesize(request(TEXT)))
    assert told[-1].attempts[0].error.startswith("not asked")
    assert pcm(chunks) == await undisturbed(request(TEXT))
