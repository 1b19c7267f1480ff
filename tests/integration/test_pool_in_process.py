"""What the pool of threads asks of its engine, and on which thread. What every pool must do is in test_pool.py."""

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from server.cluster import InProcessPool, PoolUnavailable, Urgency, WorkerLost
from server.cluster.engine_threads import FRUITLESS
from server.cluster.segment import NOTHING
from server.engines import EngineError, Job, RenderPlan, Segment, tone
from server.engines.base import Chunk, SegmentFailed, StepEvent
from server.engines.rendering import RenderedChunk
from server.engines.tone_script import Rule
from server.scheduler import Scheduler
from tests.support.pools import TEXT, Noted, collect, in_process, pcm, request


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


async def test_the_jobs_of_a_crashed_step_are_cancelled_each_once() -> None:
    engine = Recording(script=[Rule("坏", 0, "crash")])
    async with in_process(engine) as pool:
        engine.gate.clear()
        blocker = pool.synthesize(request(id=9))
        reading = [asyncio.ensure_future(anext(blocker))]
        await asyncio.sleep(0.02)
        streams = [pool.synthesize(request("坏" + TEXT, id=1)), pool.synthesize(request(id=2))]
        reading += [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0.02)
        engine.gate.set()
        bad, good = (await asyncio.gather(*reading, return_exceptions=True))[1:]
        assert isinstance(bad, EngineError)
        assert isinstance(good, RenderedChunk)  # it only was in the same step
        for stream in streams:
            stream.cancel()
        await engine.cancelling(4)
        await collect(pool.synthesize(request(id=3)))
    assert sorted(engine.cancelled) == [1, 1, 2, 2]  # both jobs of that step, and those they were rendered with again


async def test_the_engine_is_never_called_on_the_event_loop() -> None:
    engine = Recording()
    async with in_process(engine) as pool:
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

    async with in_process(Failing()) as pool:
        with pytest.raises(EngineError) as caught:
            await collect(pool.synthesize(request()))
    assert caught.value.transient is transient


async def test_an_engine_that_refuses_a_segment_is_an_engine_error() -> None:
    class Refusing(tone.ToneEngine):
        def prepare(self, *_: Any, **__: Any) -> tone.ToneJob:
            raise KeyError("no such voice")

    async with in_process(Refusing()) as pool:
        with pytest.raises(EngineError, match="no such voice"):
            await collect(pool.synthesize(request()))


async def test_the_listener_who_runs_dry_soonest_goes_first() -> None:
    engine = Recording(batch_max=1)
    async with in_process(engine) as pool:
        engine.gate.clear()
        blocker = asyncio.ensure_future(anext(pool.synthesize(request(id=99))))
        await asyncio.sleep(0.02)
        waiting = []
        now = asyncio.get_running_loop().time()
        for number, due_in_s in ((1, 50.0), (2, 10.0), (3, 5.0), (4, 30.0)):
            stream = pool.synthesize(request(id=number))
            stream.urgency = Urgency(now + due_in_s)
            waiting.append(asyncio.ensure_future(anext(stream)))
        await asyncio.sleep(0.02)
        engine.gate.set()
        await asyncio.gather(blocker, *waiting)
    assert engine.served == [99, 3, 2, 4, 1]


async def test_batches_are_as_large_as_the_engine_allows() -> None:
    engine = Recording(batch_max=2)
    noted = Noted()
    async with in_process(engine, observer=noted) as pool:
        engine.gate.clear()
        streams = [asyncio.ensure_future(anext(pool.synthesize(request(id=n)))) for n in range(6)]
        await asyncio.sleep(0.02)
        engine.gate.set()
        await asyncio.gather(*streams)
        await asyncio.sleep(0)
    sizes = [report.jobs for report in noted.steps]
    assert max(sizes) == 2
    assert sum(sizes) == 6


async def test_cancel_in_the_middle_of_a_step_takes_effect_after_it() -> None:
    engine = Recording()
    async with in_process(engine) as pool:
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
    async with in_process(engine) as pool:
        stream = pool.synthesize(request())
        await anext(stream)
        engine.gate.clear()
        reading = asyncio.ensure_future(collect(stream))
        await asyncio.sleep(0.02)
        stream.cancel()
        engine.gate.set()
        await reading
        assert await collect(pool.synthesize(request(id=1)))


async def test_an_engine_that_yields_nothing_in_a_step_is_asked_again() -> None:
    class Slow(tone.ToneEngine):
        calls = 0

        def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
            self.calls += 1
            return super().step(jobs) if self.calls > 3 else ()

    async with in_process(Slow()) as pool:
        assert await collect(pool.synthesize(request()))


@pytest.mark.parametrize("says", [(), None], ids=["nothing", "empty chunks"])
async def test_an_engine_that_makes_nothing_of_a_segment_is_not_asked_for_ever(says: tuple[()] | None) -> None:
    class Fruitless(Recording):
        def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
            if jobs[0].segment.id:
                return super().step(jobs)
            time.sleep(0.005)
            return [Chunk(job, NOTHING) for job in jobs] if says is None else says

    engine = Fruitless(batch_max=1)
    async with in_process(engine, step_timeout_s=0.05) as pool, asyncio.timeout(5):
        with pytest.raises(EngineError, match="makes nothing of it"):
            await collect(pool.synthesize(request(id=0)))
        await collect(pool.synthesize(request(id=1)))
        await engine.cancelling(1)
    assert engine.cancelled == [0]


async def test_an_engine_that_draws_codes_makes_something_of_a_segment() -> None:
    """On a slow machine its first audio is a long time off."""

    class Drawing(tone.ToneEngine):
        drawn = 0

        def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
            if self.drawn == 60:
                return super().step(jobs)
            self.drawn += 1
            time.sleep(0.005)
            return [Chunk(job, NOTHING, codes=(1,)) for job in jobs]

    async with in_process(Drawing(batch_max=1), step_timeout_s=0.05) as pool:
        began = time.monotonic()
        chunks = await collect(pool.synthesize(request()))
    assert time.monotonic() - began > FRUITLESS * 0.05
    assert chunks[0].codes == (1,) * 60


async def test_an_engine_that_only_draws_codes_is_not_asked_for_ever() -> None:
    class OnlyDrawing(tone.ToneEngine):
        def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
            time.sleep(0.001)
            return [Chunk(job, NOTHING, codes=(1,) * 20_000) for job in jobs]

    async with in_process(OnlyDrawing(batch_max=1), step_timeout_s=0.01) as pool, asyncio.timeout(5):
        with pytest.raises(EngineError, match="makes nothing of it"):
            await collect(pool.synthesize(request()))


async def test_who_stands_behind_others_in_the_steps_of_a_continuous_engine_is_not_taken_for_fruitless() -> None:
    """It serves first whom the scheduler names first; with enough of them the last one waits for long."""

    class InTurn(tone.ToneEngine):
        others = 60

        def __init__(self) -> None:
            super().__init__(batch_max=4)
            self.capabilities = replace(self.capabilities, continuous=True, lanes=1)

        def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
            last = [job for job in jobs if job.segment.id == 0 and self.others]
            self.others -= 1 if last else 0
            time.sleep(0.004)
            rest = [job for job in jobs if job not in last]
            return [*(Chunk(job, NOTHING) for job in last), *(super().step(rest) if rest else ())]

    async with in_process(InTurn(), threads=1, step_timeout_s=0.05) as pool:
        busy = [asyncio.create_task(keep_speaking(pool, number)) for number in (1, 2, 3)]
        try:
            assert await collect(pool.synthesize(request(id=0)))
        finally:
            for task in busy:
                task.cancel()
            await asyncio.gather(*busy, return_exceptions=True)


async def keep_speaking(pool: InProcessPool, number: int) -> None:
    while True:
        await collect(pool.synthesize(request(id=number)))


@pytest.mark.parametrize("crashes", [1, 2])
async def test_who_was_in_a_step_that_crashed_is_alone_until_it_sounds_again(crashes: int) -> None:
    """One after the other is slow where steps are short; only where it crashes again they stay apart."""

    class Crashing(tone.ToneEngine):
        left = crashes

        def __init__(self) -> None:
            super().__init__(batch_max=2, step_delay_ms=5)
            self.capabilities = replace(self.capabilities, continuous=True)
            self.sizes: list[int] = []

        def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
            self.sizes.append(len(jobs))
            if self.left and len(jobs) == 2:
                self.left -= 1
                raise RuntimeError("on purpose")
            return super().step(jobs)

    engine = Crashing()
    async with in_process(engine) as pool:
        texts = [text + TEXT for text in "一二"]
        each = await asyncio.gather(*(collect(pool.synthesize(request(text))) for text in texts))
    async with in_process(tone.ToneEngine()) as pool:
        for text, chunks in zip(texts, each, strict=True):
            assert pcm(chunks) == pcm(await collect(pool.synthesize(request(text))))
    assert not engine.left
    together = engine.sizes.count(2)
    assert together > 3 if crashes == 1 else together == crashes


class Hanging(Recording):
    """Its `hanging`-th steps wait for the gate."""

    def __init__(self, *hanging: int, **options: Any) -> None:
        super().__init__(**options)
        self.hanging = hanging
        self.calls = 0
        self.starts: list[int] = []  # of the jobs
        self.gate.clear()
        self.hold = threading.Event()  # for steps that only wait
        self.hold.set()

    def prepare(self, segment: Segment, plan: RenderPlan, seed: int = 0, start_sample: int = 0) -> tone.ToneJob:
        self.starts.append(start_sample)
        return super().prepare(segment, plan, seed, start_sample)

    def step(self, jobs: Sequence[Job]) -> Sequence[StepEvent]:
        self.calls += 1
        self.served += [job.segment.id for job in jobs]
        self.hold.wait(10)
        if self.calls in self.hanging:
            self.gate.wait(20)
        return tone.ToneEngine.step(self, jobs)


async def test_a_step_that_hangs_is_given_up_and_the_segment_goes_on_where_it_was() -> None:
    async with in_process(tone.create({})) as pool:
        undisturbed = await collect(pool.synthesize(request()))
    engine, noted = Hanging(3), Noted()
    async with in_process(engine, observer=noted, step_timeout_s=0.1) as pool:
        chunks = await collect(pool.synthesize(request()))
        assert pcm(chunks) == pcm(undisturbed)
        told = [[word for chunk in each for word in chunk.words] for each in (chunks, undisturbed)]
        assert told[0] == told[1]  # none twice
        assert engine.starts[0] == 0
        assert engine.starts[1] > 5_000  # it does not begin anew
        assert noted.losses == ["hung"]
        engine.gate.set()


async def test_a_segment_that_makes_the_engine_hang_again_and_again_is_lost() -> None:
    engine, noted = Hanging(*range(1, 9)), Noted()
    async with in_process(engine, observer=noted, step_timeout_s=0.1) as pool:
        with pytest.raises(WorkerLost):
            await collect(pool.synthesize(request()))
        engine.gate.set()


async def test_a_thread_that_fails_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an engine raises ends its segment; this is a fault of ours, which must show."""

    def broken(*_: object) -> object:
        raise RuntimeError("a bug")

    async with in_process(Recording()) as pool:
        monkeypatch.setattr(Scheduler, "schedule", broken)
        async with asyncio.timeout(5):
            with pytest.raises(WorkerLost):
                await collect(pool.synthesize(request()))
        assert pool.broken
        assert pool.capacity().workers == 0
        with pytest.raises((WorkerLost, PoolUnavailable)):
            await collect(pool.synthesize(request()))


async def test_close_does_not_wait_for_ever_for_a_hanging_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.cluster.engine_threads.CLOSE_TIMEOUT_S", 0.2)
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
    await asyncio.gather(reading, return_exceptions=True)


async def test_an_engine_that_only_hangs_is_broken_for_everybody_until_it_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("server.cluster.engine_threads.MAX_GIVEN_UP", 0)
    engine = Hanging(1)
    async with in_process(engine, step_timeout_s=0.1) as pool, asyncio.timeout(10):
        reading = [collect(pool.synthesize(request(id=number))) for number in range(3)]
        lost = await asyncio.gather(*reading, return_exceptions=True)
        assert [type(each) for each in lost] == [WorkerLost] * 3  # those that waited, too
        capacity = pool.capacity()
        assert (capacity.workers, capacity.waiting) == (0, 0)
        with pytest.raises(PoolUnavailable):
            await collect(pool.synthesize(request()))
        engine.gate.set()
        while not pool.capacity().workers:
            await asyncio.sleep(0.005)
        assert await collect(pool.synthesize(request()))


async def test_a_step_that_hangs_with_two_segments_is_one_loss() -> None:
    engine, noted = Hanging(2), Noted()
    async with in_process(engine, observer=noted, step_timeout_s=0.2) as pool:
        engine.hold.clear()
        first = asyncio.ensure_future(anext(blocker := pool.synthesize(request(id=1))))
        while not engine.calls:
            await asyncio.sleep(0.002)
        both = [asyncio.ensure_future(collect(pool.synthesize(request(id=number)))) for number in (2, 3)]
        await asyncio.sleep(0.02)  # they wait: the next step serves both
        engine.hold.set()
        await asyncio.gather(first, *both)
        assert engine.served[1:3] == [2, 3]
        assert noted.losses == ["hung"]
        blocker.cancel()
        engine.gate.set()
