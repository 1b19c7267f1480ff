"""How late the event loop is, what a pool does, and what a process takes."""

import asyncio
import time

from prometheus_client.parser import text_string_to_metric_families

from server.cluster.base import Capacity, StepReport
from server.observe.loop_lag import EVERY_S, LoopLag
from server.observe.metrics import Metrics
from server.observe.pool import PoolWatch
from server.observe.process import ProcessFigures


async def test_a_loop_that_was_blocked_is_late() -> None:
    told: list[float] = []
    lag = LoopLag(told.append)
    lag.start()
    await asyncio.sleep(2.5 * EVERY_S)
    assert len(told) >= 1
    before = lag.recent_s()
    time.sleep(4 * EVERY_S)  # noqa: ASYNC251  # that is what is measured
    assert lag.recent_s() > 2 * EVERY_S, "told at once, before the timer came"
    await asyncio.sleep(0.5 * EVERY_S)
    assert max(told) > 2 * EVERY_S
    assert lag.worst_s() > 2 * EVERY_S
    assert before < lag.recent_s() < EVERY_S, "a mean of what came before, too"
    lag.stop()
    count = len(told)
    await asyncio.sleep(2 * EVERY_S)
    assert len(told) == count
    lag.stop()


async def test_what_was_long_ago_is_forgotten() -> None:
    lag = LoopLag()
    lag.start()
    lag._recent.extend([0.5] * 50)
    lag._mean = 0.5
    for _ in range(50):
        lag._due = time.perf_counter()
        assert lag._timer is not None
        lag._timer.cancel()
        lag._came(asyncio.get_running_loop())
    assert lag.recent_s() < 0.02
    assert lag.worst_s() < 0.05
    lag.stop()


class Pool:
    """Only what is asked here."""

    def capacity(self) -> Capacity:
        return Capacity(streams=12.5, waiting=3, waiting_first=1, late_s=0.25, workers=2)


def samples(metrics: Metrics) -> dict[str, float]:
    text = metrics.render().decode()
    return {
        sample.name + "".join(f"[{value}]" for name, value in sample.labels.items() if name != "engine"): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_a_pool_does_is_measured() -> None:
    metrics = Metrics()
    watch = PoolWatch(metrics, "tone")
    assert (watch.step_s, watch.jobs) == (0.0, 0.0)
    watch.follow(Pool())  # type: ignore[arg-type]  # its capacity is all that is asked
    watch.stepped(StepReport(0.02, 1, 0.5, first=True))
    assert (watch.step_s, watch.jobs) == (0.02, 1.0)
    watch.stepped(StepReport(0.03, 4, 1.5, padding=0.12))
    assert 0.02 < watch.step_s < 0.03
    watch.worker_lost("hung")
    found = samples(metrics)
    assert found["cosystream_step_seconds_count"] == 2
    assert found["cosystream_batch_jobs_sum"] == 5
    assert found["cosystream_batch_padding_ratio_count"] == 1, "one alone has no padding"
    assert found["cosystream_batch_padding_ratio_bucket[0.15]"] == 1
    assert found["cosystream_engine_audio_seconds_total"] == 2.0
    assert found["cosystream_worker_losses_total[hung]"] == 1
    assert found["cosystream_capacity_streams"] == 12.5
    assert (found["cosystream_engine_queue"], found["cosystream_engine_queue_first"]) == (3, 1)
    assert (found["cosystream_engine_late_seconds"], found["cosystream_workers"]) == (0.25, 2)


def test_what_a_process_takes() -> None:
    figures = ProcessFigures()
    assert 10 < figures.memory_mb() < 100_000
    assert figures.cpu_percent() == 0.0
    figures._asked = (figures._asked[0] - 2.0, figures._asked[1] - 1.0)
    percent = figures.cpu_percent()
    assert 45 < percent < 100
    assert figures.cpu_percent() == percent, "asked again at once, there is nothing new to say"
    assert figures.uptime_s >= 0
