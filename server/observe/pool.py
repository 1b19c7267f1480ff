"""What an engine pool and its caches do, as metrics and for the status page."""

from typing import Final

from server.cache.counts import CacheSize, CacheUse
from server.cluster.base import EnginePool, StepReport
from server.cluster.failures import FailedSegment
from server.observe.failures import FailureWatch
from server.observe.metrics import Metrics

_SMOOTHING: Final = 0.05  # weight of the newest step: the mean of about twenty


class PoolWatch:
    """A `PoolObserver`. Its mean values are for people; `0.0` before the first step."""

    def __init__(self, metrics: Metrics, engine: str) -> None:
        self.step_s = 0.0
        self.jobs = 0.0
        self._known = False
        self._metrics = metrics
        self._failures = FailureWatch(metrics)
        self._seconds = metrics.step_seconds.labels(engine)
        self._jobs = metrics.batch_jobs.labels(engine)
        self._padding = metrics.batch_padding.labels(engine)
        self._audio = metrics.engine_audio_seconds.labels(engine)
        self._context_cache = _CacheMetrics(metrics, "context")
        self._audio_cache = _CacheMetrics(metrics, "audio")

    def stepped(self, report: StepReport) -> None:
        """See PoolObserver."""
        self._seconds.observe(report.seconds)
        self._jobs.observe(report.jobs)
        if report.jobs > 1:  # one job has nobody to be as long as
            self._padding.observe(report.padding)
        self._audio.inc(report.audio_s)
        self._context_cache.used(report.context)
        weight = _SMOOTHING if self._known else 1.0
        self._known = True
        self.step_s += weight * (report.seconds - self.step_s)
        self.jobs += weight * (report.jobs - self.jobs)

    def worker_lost(self, reason: str) -> None:
        """See PoolObserver."""
        self._metrics.worker_losses.labels(reason).inc()

    def audio_cache(self, use: CacheUse, size: CacheSize) -> None:
        """See CacheObserver."""
        self._audio_cache.used(use)
        self._audio_cache.entries.set(size.entries)
        self._audio_cache.bytes.set(size.bytes)

    def segment_failed(self, failed: FailedSegment) -> None:
        """See RecoveryObserver. Its text is not logged; the dead-letter queue has it."""
        self._failures.told(failed)

    def fallback_loaded(self, loaded: bool) -> None:
        """See RecoveryObserver."""
        self._metrics.fallback_loaded.set(loaded)

    def follow(self, pool: EnginePool) -> None:
        """From here on a scrape shows what this pool can do."""
        metrics = self._metrics
        metrics.engine_queue.set_function(lambda: pool.capacity().waiting)
        metrics.engine_queue_first.set_function(lambda: pool.capacity().waiting_first)
        metrics.engine_late.set_function(lambda: pool.capacity().late_s)
        metrics.capacity_streams.set_function(lambda: pool.capacity().streams)
        metrics.workers.set_function(lambda: pool.capacity().workers)
        self._context_cache.entries.set_function(lambda: pool.capacity().context.entries)
        self._context_cache.bytes.set_function(lambda: pool.capacity().context.bytes)


class _CacheMetrics:
    """The figures of one cache."""

    def __init__(self, metrics: Metrics, cache: str) -> None:
        self.entries = metrics.cache_entries.labels(cache)
        self.bytes = metrics.cache_bytes.labels(cache)
        self._hits = metrics.cache_hits.labels(cache)
        self._misses = metrics.cache_misses.labels(cache)
        self._evictions = metrics.cache_evictions.labels(cache)

    def used(self, use: CacheUse) -> None:
        """It was asked for something."""
        self._hits.inc(use.hits)
        self._misses.inc(use.misses)
        self._evictions.inc(use.evictions)
