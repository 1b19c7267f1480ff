"""The contract of an engine pool, on the pool with engine threads. Other pools will pass the same suite."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from protocol import client_messages as c
from server.cluster import InProcessPool
from server.engines import Chunk, EngineError, Job, SegmentEnd, tone
from server.engines.base import SegmentFailed, StepEvent
from server.engines.rendering import RenderedChunk, SegmentRequest
from server.gateway.rendering import FIRST_CHUNK_BONUS_S, Renderer
from server.session import Policy, Session
from server.text.tokens import Boundary, Cut, CutCause

TEXT = "你好世界今天天气很好，"


def request(text: str = TEXT, **fields: Any) -> SegmentRequest:
    cut = Cut(0, len(text), text, Boundary.CLAUSE, CutCause.PUNCTUATION, "zh")
    return SegmentRequest(**{"id": 0, "cut": cut, "voice": "tone-low", "sample_rate": 24_000, **fields})


@asynccontextmanager
async def pool_of(engine: tone.ToneEngine, threads: int = 1) -> AsyncIterator[InProcessPool]:
    pool = InProcessPool(engine, threads=threads)
    try:
        yield pool
    finally:
        await pool.close()


async def collect(stream: Any) -> list[RenderedChunk]:
    return [chunk async for chunk in stream]


def pcm(chunks: list[RenderedChunk]) -> bytes:
    return b"".join(chunk.pcm for chunk in chunks)


async def test_chunks_come_in_order_and_make_the_whole() -> None:
    async with pool_of(tone.create({})) as pool:
        chunks = await collect(pool.synthesize(request()))
    assert len(chunks) > 2
    assert sum(chunk.samples for chunk in chunks) == 10 * 2_880 + 2_880
    assert [word.text for word in chunks[0].words] == list("你好世界今天天气很好")


async def test_start_sample_gives_exactly_the_rest() -> None:
    async with pool_of(tone.create({})) as pool:
        whole = pcm(await collect(pool.synthesize(request())))
        for start in (0, 1, 2_400, 10_001, len(whole) // 2 - 1, len(whole) // 2):
            assert pcm(await collect(pool.synthesize(request(), start_sample=start))) == whole[2 * start :]


async def test_streams_at_once_are_the_same_as_alone() -> None:
    async with pool_of(tone.create({"batch_max": 2}), threads=2) as pool:
        texts = [TEXT[n:] for n in range(8)]
        alone = [pcm(await collect(pool.synthesize(request(text)))) for text in texts]
        together = await asyncio.gather(*(collect(pool.synthesize(request(text))) for text in texts))
    assert [pcm(chunks) for chunks in together] == alone


async def test_one_failure_in_a_batch_leaves_the_others() -> None:
    script = [{"match": "坏", "at": 1, "action": "fail"}]
    async with pool_of(tone.create({"script": script, "step_delay_ms": 5})) as pool:
        good, bad = await asyncio.gather(
            collect(pool.synthesize(request())), collect(pool.synthesize(request("坏" + TEXT))), return_exceptions=True
        )
    assert isinstance(bad, EngineError)
    assert isinstance(good, list)


async def test_a_crashing_step_is_an_engine_error_and_the_pool_goes_on() -> None:
    script = [{"match": "坏", "at": 0, "action": "crash"}]
    async with pool_of(tone.create({"script": script})) as pool:
        with pytest.raises(EngineError, match="scripted crash"):
            await collect(pool.synthesize(request("坏" + TEXT)))
        assert await collect(pool.synthesize(request()))


async def test_the_jobs_of_a_crashed_step_are_cancelled_each_once() -> None:
    engine = Recording(script=[tone.Rule("坏", 0, "crash", 0)])
    async with pool_of(engine) as pool:
        engine.gate.clear()
        blocker = pool.synthesize(request(id=9))
        reading = [asyncio.ensure_future(anext(blocker))]
        await asyncio.sleep(0.02)
        streams = [pool.synthesize(request("坏" + TEXT, id=1)), pool.synthesize(request(id=2))]
        reading += [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0.02)
        engine.gate.set()
        assert [type(result) for result in (await asyncio.gather(*reading, return_exceptions=True))[1:]] == [
            EngineError,
            EngineError,
        ]
        for stream in streams:
            stream.cancel()
        await engine.cancelling(2)
        await collect(pool.synthesize(request(id=3)))
    assert sorted(engine.cancelled) == [1, 2]


async def test_the_engine_is_never_called_on_the_event_loop() -> None:
    engine = Recording()
    async with pool_of(engine) as pool:
        stream = pool.synthesize(request())
        await anext(stream)
        stream.cancel()
        await engine.cancelling(1)
    assert threading.current_thread() not in engine.cancelled_on


@pytest.mark.parametrize(
    ("error", "said_by_event", "transient"),
    [
        (EngineError("x"), False, False),
        (EngineError("x"), True, True),
        (EngineError("x", transient=True), False, True),
        (OSError("x"), True, True),
        (OSError("x"), False, False),
    ],
)
async def test_whether_trying_again_helps_is_passed_on(error: Exception, said_by_event: bool, transient: bool) -> None:
    class Failing(tone.ToneEngine):
        def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
            return [SegmentFailed(job, error, said_by_event) for job in jobs]

    async with pool_of(Failing()) as pool:
        with pytest.raises(EngineError) as caught:
            await collect(pool.synthesize(request()))
    assert caught.value.transient is transient


async def test_an_engine_that_refuses_a_segment_is_an_engine_error() -> None:
    class Refusing(tone.ToneEngine):
        def prepare(self, *_: Any, **__: Any) -> tone.ToneJob:
            raise KeyError("no such voice")

    async with pool_of(Refusing()) as pool:
        with pytest.raises(EngineError, match="no such voice"):
            await collect(pool.synthesize(request()))


class Recording(tone.ToneEngine):
    """Notes who was served in which order, and who was cancelled."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.served: list[int] = []
        self.cancelled: list[int] = []
        self.cancelled_on: list[threading.Thread] = []
        self.gate = threading.Event()
        self.gate.set()

    def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
        self.gate.wait(10)
        self.served += [job.segment.id for job in jobs]
        return super().step(jobs)

    def cancel(self, job: Job) -> None:
        self.cancelled.append(job.segment.id)
        self.cancelled_on.append(threading.current_thread())

    async def cancelling(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.cancelled) < count:
                await asyncio.sleep(0.005)


async def test_the_listener_who_runs_dry_soonest_goes_first() -> None:
    engine = Recording(batch_max=1)
    async with pool_of(engine) as pool:
        engine.gate.clear()
        blocker = asyncio.ensure_future(anext(pool.synthesize(request(id=99))))
        await asyncio.sleep(0.02)
        waiting = []
        for number, deadline in ((1, 50.0), (2, 10.0), (3, 0.0), (4, 30.0)):
            stream = pool.synthesize(request(id=number))
            stream.deadline = deadline
            waiting.append(asyncio.ensure_future(anext(stream)))
        await asyncio.sleep(0.02)
        engine.gate.set()
        await asyncio.gather(blocker, *waiting)
    assert engine.served == [99, 3, 2, 4, 1]


def session(now: float) -> Session:
    """A session with something to say."""
    made = Session(Policy("tone-low"), tone.create({}).capabilities, session_id="s", token="t", now=now)
    for message in (c.Open(), c.Start(1, 1), c.Text(2, TEXT + "好。"), c.End(3)):
        made.receive(message, now)
    return made


async def test_a_first_chunk_is_urgent_and_cannot_starve_a_listener_who_is_dry() -> None:
    """New sessions go before who ran dry just now, and behind who ran dry a while ago."""
    engine = Recording(batch_max=1)
    async with pool_of(engine) as pool:
        engine.gate.clear()
        tasks: list[asyncio.Future[Any]] = [asyncio.ensure_future(anext(pool.synthesize(request(id=99))))]
        await asyncio.sleep(0.02)
        loop = asyncio.get_running_loop()
        for number, dry_for_s in ((50, FIRST_CHUNK_BONUS_S + 0.1), (51, 0.0)):
            stream = pool.synthesize(request(id=number))
            stream.deadline = loop.time() - dry_for_s
            tasks.append(asyncio.ensure_future(anext(stream)))
        new = asyncio.ensure_future(Renderer(session(loop.time()), pool, lambda: None).run())
        await asyncio.sleep(0.02)
        engine.gate.set()
        await asyncio.gather(*tasks)
        new.cancel()
        await asyncio.gather(new, return_exceptions=True)
    first = engine.served.index(0)
    assert engine.served.index(50) < first < engine.served.index(51)


async def test_batches_are_as_large_as_the_engine_allows() -> None:
    engine = Recording(batch_max=2)
    sizes: list[int] = []
    pool = InProcessPool(engine, threads=1, on_step=lambda _, jobs: sizes.append(jobs))
    engine.gate.clear()
    streams = [asyncio.ensure_future(anext(pool.synthesize(request(id=n)))) for n in range(6)]
    await asyncio.sleep(0.02)
    engine.gate.set()
    await asyncio.gather(*streams)
    await pool.close()
    assert max(sizes) == 2
    assert sum(sizes) == 6


async def test_a_stream_that_is_not_read_costs_nothing() -> None:
    engine = Recording()
    async with pool_of(engine) as pool:
        stream = pool.synthesize(request())
        await anext(stream)
        await asyncio.sleep(0.05)
        assert engine.served == [0]
        stream.cancel()
        await engine.cancelling(1)
        assert engine.cancelled == [0]


async def test_cancel_in_the_middle_of_a_step_takes_effect_after_it() -> None:
    engine = Recording()
    async with pool_of(engine) as pool:
        stream = pool.synthesize(request())
        await anext(stream)
        engine.gate.clear()
        reading = asyncio.ensure_future(collect(stream))
        await asyncio.sleep(0.02)
        stream.cancel()
        assert await reading == []
        engine.gate.set()
        await collect(pool.synthesize(request(id=1)))
        await engine.cancelling(1)
        assert engine.cancelled == [0]


async def test_an_engine_that_cannot_even_cancel_does_not_end_its_thread() -> None:
    class Stubborn(Recording):
        def cancel(self, job: Job) -> None:
            raise RuntimeError("no")

    engine = Stubborn()
    async with pool_of(engine) as pool:
        stream = pool.synthesize(request())
        await anext(stream)
        engine.gate.clear()
        reading = asyncio.ensure_future(collect(stream))
        await asyncio.sleep(0.02)
        stream.cancel()
        engine.gate.set()
        await reading
        assert await collect(pool.synthesize(request(id=1)))


async def test_a_reader_who_is_cancelled_cancels_the_stream() -> None:
    engine = Recording()
    async with pool_of(engine) as pool:
        engine.gate.clear()
        reading = asyncio.ensure_future(collect(pool.synthesize(request())))
        await asyncio.sleep(0.02)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        engine.gate.set()
        await collect(pool.synthesize(request(id=1)))
        assert engine.cancelled == [0]
        assert engine.served.count(0) == 1


async def test_an_engine_that_yields_nothing_in_a_step_is_asked_again() -> None:
    class Slow(tone.ToneEngine):
        calls = 0

        def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
            self.calls += 1
            return super().step(jobs) if self.calls > 3 else ()

    async with pool_of(Slow()) as pool:
        assert await collect(pool.synthesize(request()))


async def test_close_does_not_wait_for_ever_for_a_hanging_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.cluster.in_process.CLOSE_TIMEOUT_S", 0.2)
    engine = Recording()
    pool = InProcessPool(engine, threads=1)
    engine.gate.clear()
    reading = asyncio.ensure_future(collect(pool.synthesize(request())))
    await asyncio.sleep(0.02)
    started = time.monotonic()
    await pool.close()
    assert time.monotonic() - started < 1
    engine.gate.set()
    reading.cancel()


async def test_nothing_is_taken_after_close() -> None:
    pool = InProcessPool(tone.create({}), threads=1)
    await pool.close()
    with pytest.raises(EngineError, match="stopping"):
        await collect(pool.synthesize(request()))


def test_tone_is_deterministic_and_words_lie_where_they_sound() -> None:
    engine = tone.create({"batch_max": 2})
    from server.engines import RenderPlan, Segment
    from server.text.tokens import Token

    tokens = tuple(Token(ch, i, i + 1, "zh") for i, ch in enumerate("你好"))
    segment = Segment(0, tokens, Boundary.SENTENCE, "tone-low")
    jobs = [engine.prepare(segment, RenderPlan()), engine.prepare(segment, RenderPlan(chunk_ms=(10,)))]
    audio: list[list[Any]] = [[], []]
    ended: set[int] = set()
    while len(ended) < 2:
        for event in engine.step([job for n, job in enumerate(jobs) if n not in ended]):
            number = jobs.index(event.job)  # type: ignore[arg-type]  # jobs of this engine
            if isinstance(event, Chunk):
                audio[number].extend(event.samples.tolist())
            elif isinstance(event, SegmentEnd):
                ended.add(number)
    assert audio[0] == audio[1]
    assert len(audio[0]) == 2 * 2_880 + 5_760


@pytest.mark.parametrize("options", [{"speed": 1}, {"script": [{"action": "explode"}]}])
def test_tone_refuses_options_it_does_not_have(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="engine option"):
        tone.create(options)
