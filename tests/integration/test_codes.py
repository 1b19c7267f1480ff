"""Speech codes: whatever happens to who renders a segment, its samples are those of the codes that were told."""

import asyncio
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from protocol import server_messages as s
from server.cluster.segment import NOTHING
from server.engines import EngineError, Job, RenderPlan, Segment, registry, tone
from server.engines.base import Chunk, SegmentEnd, SegmentFailed, StepEvent
from server.engines.rendering import RenderedChunk, SegmentRequest
from server.engines.tone_script import Rule
from tests.support.pools import Noted, cached, collect, connected, in_process, pcm, processes, recovering, request
from tests.support.returning import Returning, cut_all
from tests.support.server import running, url_of

TEXT = "坏的天气，你好世界今天天气很好，"
CODES: dict[str, Any] = {"codes": True}


@pytest.fixture(autouse=True)
async def no_connection_left() -> AsyncIterator[None]:
    yield
    await cut_all()


def told(chunks: Sequence[RenderedChunk]) -> tuple[int, ...]:
    return tuple([code for chunk in chunks for code in chunk.codes])


async def of_codes(asked: SegmentRequest, codes: tuple[int, ...]) -> bytes:
    """What an undisturbed engine makes of these."""
    async with in_process(registry.create("tone", CODES)) as pool:
        chunks = await collect(pool.synthesize(replace(asked, codes=codes, parts=())))
    assert told(chunks) == ()
    return pcm(chunks)


async def check(asked: SegmentRequest, chunks: list[RenderedChunk]) -> None:
    """Each was told once, and the samples are theirs."""
    codes = (*asked.codes, *told(chunks))
    assert len(codes) > 3
    assert pcm(chunks) == await of_codes(asked, codes)


async def test_they_are_told_with_the_audio_and_never_two_segments_have_the_same() -> None:
    async with in_process(registry.create("tone", CODES)) as pool:
        both = [await collect(pool.synthesize(request(TEXT))) for _ in range(2)]
    for chunks in both:
        await check(request(TEXT), chunks)
    assert pcm(both[0]) != pcm(both[1])


@pytest.mark.parametrize("known", [1, 3, 100])
async def test_those_that_are_known_are_not_drawn_again(known: int) -> None:
    async with in_process(registry.create("tone", CODES)) as pool:
        asked = request(TEXT, codes=tuple(range(0, 500 * known, 500)))
        await check(request(TEXT, codes=asked.codes[:100]), await collect(pool.synthesize(asked)))
        late = await collect(pool.synthesize(asked, 20_000))
    assert len(told(late)) == max(0, len(tone.CHUNK_MS) + 4 - known)
    assert pcm(late) == (await of_codes(asked, (*asked.codes, *told(late))))[40_000:]


class OneByOne(tone.ToneEngine):
    """Draws in steps of their own, before there is any audio of them, and fails once in the middle of that."""

    def __init__(self, failing_at: int = -1) -> None:
        super().__init__(codes=True, batch_max=1)
        self.failing_at = failing_at

    def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
        (job,) = jobs
        assert isinstance(job, tone.ToneJob)
        assert job.codes is not None
        if len(job.codes) == self.failing_at:
            self.failing_at = -1
            time.sleep(0.4)
        if len(job.codes) < 5:
            job.codes.append(secrets.randbelow(1_000))
            job.told += 1
            return [Chunk(job, NOTHING, codes=(job.codes[-1],))]
        return super().step(jobs)


@pytest.mark.parametrize("failing_at", [-1, 3])
async def test_codes_that_come_without_audio_wait_for_it(failing_at: int) -> None:
    """Each alone would take a message to the client's session and a line on the disk. Where a step with some hangs
    meanwhile, they are neither drawn again nor left out.
    """
    async with in_process(OneByOne(failing_at), step_timeout_s=0.1) as pool:
        chunks = await collect(pool.synthesize(request(TEXT)))
    await check(request(TEXT), chunks)
    assert len(chunks[0].codes) == 5
    assert all(code < 1_000 for code in chunks[0].codes)
    assert all(chunk.pcm for chunk in chunks)


@pytest.mark.parametrize(("text", "alone"), [(TEXT, False), ("，", True)])
async def test_codes_that_come_at_the_very_end_are_told(text: str, alone: bool) -> None:
    class Late(tone.ToneEngine):
        def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
            made = list(super().step(jobs))
            if isinstance(made[-1], SegmentEnd):
                made.insert(-1, Chunk(jobs[0], NOTHING, codes=(9,)))
            return made

    async with in_process(Late()) as pool:
        chunks = await collect(pool.synthesize(request(text)))
    assert chunks[-1].codes == (9,)
    assert (chunks[-1].pcm == b"") is alone


@pytest.mark.parametrize("codes", [(-1,), (65_536,), ("x",)])
async def test_what_is_no_code_fails_its_segment_alone(codes: Any) -> None:
    class Wrong(tone.ToneEngine):
        def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
            return [Chunk(job, NOTHING, codes=codes) for job in jobs]

    async with in_process(Wrong()) as pool:
        with pytest.raises(Exception, match="a speech code must be a whole number from 0 to 65535"):
            await collect(pool.synthesize(request(TEXT)))


async def test_a_step_with_others_that_crashes_costs_no_code() -> None:
    """All jobs of it are rendered again, each alone."""

    class Crashing(tone.ToneEngine):
        crashed = False

        def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
            if not self.crashed and len(jobs) == 2 and all(isinstance(job, tone.ToneJob) and job.codes for job in jobs):
                self.crashed = True
                raise RuntimeError("on purpose")
            return super().step(jobs)

    engine = Crashing(codes=True, step_delay_ms=5)
    async with in_process(engine) as pool:
        asked = [request(text + TEXT) for text in "一二三"]
        each = await asyncio.gather(*(collect(pool.synthesize(one)) for one in asked))
    assert engine.crashed
    for one, chunks in zip(asked, each, strict=True):
        await check(one, chunks)


async def test_a_step_that_hangs_costs_no_code() -> None:
    engine = tone.ToneEngine(codes=True, script=[Rule("坏", 2, "stall", ms=600, times=1)])
    noted = Noted()
    async with in_process(engine, observer=noted, step_timeout_s=0.2) as pool:
        chunks = await collect(pool.synthesize(request(TEXT)))
    assert noted.losses == ["hung"]
    await check(request(TEXT), chunks)


@pytest.mark.parametrize("at", [1, 2])
async def test_a_second_try_takes_the_codes_of_the_first(at: int) -> None:
    engine = tone.ToneEngine(codes=True, script=[Rule("坏", at, "fail", transient=True, times=1)])
    async with in_process(engine) as pool, recovering(pool) as made:
        chunks = await collect(made.synthesize(request(TEXT)))
    await check(request(TEXT), chunks)


@pytest.mark.parametrize(("sounding", "known"), [(True, ()), (False, ()), (False, (1,))])
async def test_codes_that_led_to_a_failure_are_not_given_again(sounding: bool, known: tuple[int, ...]) -> None:
    """With them it would end in the same way; where none was told, a second try goes its own way."""
    given: list[tuple[int, ...]] = []

    class Failing(tone.ToneEngine):
        failed = False

        def prepare(self, segment: Segment, plan: RenderPlan, seed: int = 0, start_sample: int = 0) -> tone.ToneJob:
            given.append(segment.codes)
            return super().prepare(segment, plan, seed, start_sample)

        def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
            (job,) = jobs
            assert isinstance(job, tone.ToneJob)
            if not self.failed and (job.codes or not sounding):
                self.failed = True
                return [SegmentFailed(job, EngineError("no number", kind="not_finite", transient=True), transient=True)]
            return super().step(jobs)

    engine = Failing(codes=True, batch_max=1)
    asked = request(TEXT, codes=known)
    async with in_process(engine) as pool, recovering(pool) as made:
        chunks = await collect(made.synthesize(asked))
    assert engine.failed
    parts = [chunk.part for chunk in chunks if chunk.part is not None]
    assert given[0] == known
    assert set(given[1:]) == {()}
    if not sounding and not known:
        assert not parts
        assert len(given) == 2
        await check(asked, chunks)
    else:
        assert parts
        assert {part.reason for part in parts} == {"not_finite"}
        assert parts[0].first_sample == sum(chunk.samples for chunk in chunks if chunk.codes)


async def test_whoever_takes_over_gets_no_codes_and_tells_none() -> None:
    """They are of another text, or of another engine."""
    engine = tone.ToneEngine(codes=True, script=[Rule("坏", 1, "fail")])
    async with in_process(engine) as pool, recovering(pool, CODES) as made:
        asked = request(TEXT, codes=(1,))
        chunks = await collect(made.synthesize(asked))
        assert [chunk.part.source for chunk in chunks if chunk.part is not None] == ["fallback"]
        before = [chunk for chunk in chunks if chunk.part is None][:1]
        assert told(chunks) == told(before) != ()
        parts = tuple([chunk.part for chunk in chunks if chunk.part is not None])
        again = await collect(made.synthesize(replace(asked, codes=(1, *told(chunks)), parts=parts)))
    first = parts[0].first_sample
    assert pcm(again)[: 2 * first] == pcm(chunks)[: 2 * first]
    assert told(again) == ()


async def test_a_lost_worker_costs_no_code() -> None:
    async with processes(2, {**CODES, "step_delay_ms": 30}) as workers, connected(workers.paths) as pool:
        stream = pool.synthesize(request(TEXT))
        chunks = [await anext(stream), await anext(stream)]
        assert stream._connection is not None
        os.kill(stream._connection.pid, signal.SIGKILL)
        chunks += await collect(stream)
        assert stream._moved
    await check(request(TEXT), chunks)


async def test_what_is_known_from_memory_is_not_told_of_other_codes() -> None:
    async with cached(registry.create("tone", CODES)) as pool:
        first = await collect(pool.synthesize(request(TEXT)))
        again = await collect(pool.synthesize(request(TEXT)))
        assert (pcm(again), told(again)) == (pcm(first), told(first))
        asked = request(TEXT, codes=tuple(range(20)))
        assert pcm(await collect(pool.synthesize(asked))) == await of_codes(asked, asked.codes)


@pytest.mark.parametrize("samples", [9_000, 25_000])
async def test_another_process_goes_on_with_the_codes_of_the_journal(tmp_path: Path, samples: int) -> None:
    settings: dict[str, Any] = {"store": f"file:{tmp_path / 'sessions'}", "engine_options": CODES}
    text = TEXT + "我们去公园散步。再见。"
    async with running(**settings) as server:
        client = Returning(url_of(server))
        await client.open(max_lead_ms=None)
        await client.say(1, text)
        await client.samples(samples)
        await client.ack()
        client.vanish()
    async with running(**settings) as server:
        client.url = url_of(server)
        assert isinstance(await client.resume(), s.Resumed)
        done = await client.until(s.Done)
    assert len(client.pcm[1]) == 2 * done.samples
    ends = {m.segment: m for m in client.messages if isinstance(m, s.SegmentEnd)}
    begins = {m.segment: m for m in client.messages if isinstance(m, s.SegmentBegin)}
    assert len(ends) == len(begins) >= 3
    for number, end in ends.items():
        first = begins[number].first_sample
        heard = bytes(client.pcm[1][2 * first : 2 * (first + end.samples)])
        assert sha256(heard).hexdigest() == end.digest


class Counting(tone.ToneEngine):
    """Notes how many steps run at once."""

    def __init__(self, lanes: int) -> None:
        super().__init__(lanes=lanes, batch_max=1, step_delay_ms=5)
        self.at_once: list[int] = []
        self._running = 0

    def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
        self._running += 1
        self.at_once.append(self._running)
        try:
            return super().step(jobs)
        finally:
            self._running -= 1


@pytest.mark.parametrize(("lanes", "most"), [(0, 3), (1, 1), (2, 2), (9, 3)])
async def test_no_more_steps_run_at_once_than_the_engine_can(lanes: int, most: int) -> None:
    engine = Counting(lanes)
    async with in_process(engine, threads=3) as pool:
        await asyncio.gather(*(collect(pool.synthesize(request(TEXT, id=number))) for number in range(6)))
    assert max(engine.at_once) == most
