"""What an engine pool does, as metrics and for the status page."""

from typing import Final

from server.cluster.base import EnginePool, StepReport
from server.observe.metrics import Metrics

_SMOOTHING: Final = 0.05  # weight of the newest step: the mean of about twenty


class PoolWatch:
    """A `PoolObserver`. Its mean values are for people; `0.0` before the first step."""

    def __init__(self, metrics: Metrics, engine: str) -> None:
        self.step_s = 0.0
        self.jobs = 0.0
        self._known = False
        self._metrics = metrics
        self._seconds = metrics.step_seconds.labels(engine)
        self._jobs = metrics.batch_jobs.labels(engine)
        self._padding = metrics.batch_padding.labels(engine)
        self._audio = metrics.engine_audio_seconds.labels(engine)

    def stepped(self, report: StepReport) -> None:
        """See PoolObserver."""
        self._seconds.observe(report.seconds)
        self._jobs.observe(report.jobs)
        if report.jobs > 1:  # one job has nobody to be as long as
            self._padding.observe(report.padding)
        self._audio.inc(report.audio_s)
        weight = _SMOOTHING if self._known else 1.0
        self._known = True
        self.step_s += weight * (report.seconds - self.step_s)
        self.jobs += weight * (report.jobs - self.jobs)

    def worker_lost(self, reason: str) -> None:
        """See PoolObserver."""
        self._metrics.worker_losses.labels(reason).inc()

    def follow(self, pool: EnginePool) -> None:
        """From here on a scrape shows what this pool can do."""
        metrics = self._metrics
        metrics.engine_queue.set_function(lambda: pool.capacity().waiting)
        metrics.engine_queue_first.set_function(lambda: pool.capacity().waiting_first)
        metrics.engine_late.set_function(lambda: pool.capacity().late_s)
        metrics.capacity_streams.set_function(lambda: pool.capacity().streams)
        metrics.workers.set_function(lambda: pool.capacity().workers)
