"""What the server counts and measures, for Prometheus. docs/operations.md lists every name."""

from dataclasses import dataclass
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

PREFIX: Final = "cosystream"
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

# First audio and engine steps are tens of milliseconds when all is well; seconds show overload.
_FIRST_AUDIO_S: Final = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
_STEP_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_JOBS: Final = (1.0, 2.0, 4.0, 8.0, 12.0, 16.0)
_PADDING: Final = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
_LAG_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """A metric as it appears in the documentation."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


class Metrics:
    """Every metric of one server, in a registry of its own."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series per counter that nobody asked for
        self.registry = CollectorRegistry()
        self.sessions = self._gauge("sessions_open", "sessions open now")
        self.sessions_total = self._counter("sessions", "sessions that ended, by how", "outcome")
        self.detached = self._gauge(
            "sessions_detached", "open sessions without connection, whose clients may come back"
        )
        self.detached_bytes = self._gauge("sessions_detached_bytes", "bytes kept for sessions without connection")
        self.refusals = self._counter("refusals", "sessions and utterances turned away with `busy`, by why", "reason")
        self.resumes = self._counter("resumes", "clients that came back, by how it went", "outcome")
        self.mode_switches = self._counter(
            "mode_switches", "changes of the mode, by the new one and why", "mode", "reason"
        )
        self.resent_bytes = self._counter("resent_bytes", "bytes of audio sent more than once")
        self.journal_bytes = self._counter("journal_bytes", "bytes written to the session store")
        self.journal_failures = self._counter("journal_failures", "sessions that the store could not keep")
        self.first_audio_seconds = self._histogram(
            "first_audio_seconds",
            "from the text that made the first cut certain to its first audio, where somebody waited for it",
            _FIRST_AUDIO_S,
            "engine",
            "mode",
        )
        self.underruns = self._counter("underruns", "times that playing ran dry, as clients tell")
        self.speaking = self._gauge("sessions_speaking", "sessions that speak now, as admission counts them")
        self.capacity_streams = self._gauge(
            "capacity_streams", "sessions that can speak at once, as measured; 0: not known yet"
        )
        self.step_seconds = self._histogram("step_seconds", "one step of the engine", _STEP_S, "engine")
        self.batch_jobs = self._histogram("batch_jobs", "segments that one step of the engine served", _JOBS, "engine")
        self.batch_padding = self._histogram(
            "batch_padding_ratio", "share of a batch that only fills up its shorter segments", _PADDING, "engine"
        )
        self.engine_audio_seconds = self._counter("engine_audio_seconds", "seconds of audio rendered", "engine")
        self.cache_hits = self._counter("cache_hits", "times that a cache had what was asked for, by which", "cache")
        self.cache_misses = self._counter("cache_misses", "times that it had not", "cache")
        self.cache_evictions = self._counter("cache_evictions", "entries that had to go for newer ones", "cache")
        self.cache_entries = self._gauge("cache_entries", "entries that a cache holds now", "cache")
        self.cache_bytes = self._gauge("cache_bytes", "bytes that they take", "cache")
        self.workers = self._gauge("workers", "engines at work")
        self.worker_losses = self._counter("worker_losses", "workers that died or hung, by which", "reason")
        self.dead_letters = self._counter(
            "dead_letters",
            "segments that an engine failed at: `written` down, `dropped` as too many waited, or `failed` to be",
            "result",
        )
        self.failed_segments = self._counter(
            "failed_segments", "segments that the engine failed at, by the first reason", "reason"
        )
        self.degraded_segments = self._counter(
            "degraded_segments", "those of them that were spoken by other means, by which", "outcome"
        )
        self.fallback_loaded = self._gauge("fallback_loaded", "whether the fallback engine is in memory: 1, else 0")
        self.loop_lag_seconds = self._histogram(
            "loop_lag_seconds", "how late the event loop's timers come, looked at ten times a second", _LAG_S
        )
        self.log_lines_left_out = self._counter("log_lines_left_out", "log lines that a flood of clients did not get")
        self.audio_seconds = self._counter("audio_seconds", "seconds of audio sent")
        self.characters = self._counter("characters", "characters of text taken")
        self.errors = self._counter("errors", "errors told to clients, by code", "code")
        self.engine_queue = self._gauge("engine_queue", "segments waiting for the engine")
        self.engine_queue_first = self._gauge("engine_queue_first", "those of them that nothing is heard of yet")
        self.engine_late = self._gauge(
            "engine_late_seconds", "how late the latest chunk of the last seconds came; 0: all in time"
        )
        self.connections = self._gauge("connections", "connections open now, of every kind")
        self.relayed = self._gauge("connections_relayed", "those of them that another gateway serves through this one")
        self.gateways = self._gauge("gateways", "gateways whose figures are here")
        self.gateways.set(1)
        self.tasks = self._gauge("tasks", "asyncio tasks alive now: some for each connection, and no more without any")
        self.http_requests = self._counter("http_requests", "HTTP requests answered", "method", "route", "status")
        ProcessCollector(namespace=PREFIX, registry=self.registry)

    def render(self) -> bytes:
        """Everything, in the text format of Prometheus."""
        return generate_latest(self.registry)

    def describe(self) -> list[MetricInfo]:
        """Our own metrics (not those of the process), sorted by the name they have when scraped."""
        found = []
        for metric in vars(self).values():
            if isinstance(metric, Counter | Gauge | Histogram):
                name = metric._name + ("_total" if isinstance(metric, Counter) else "")
                kind = type(metric).__name__.lower()
                found.append(MetricInfo(name, kind, tuple(metric._labelnames), metric._documentation))
        return sorted(found, key=lambda each: each.name)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", text, labels, buckets=buckets, registry=self.registry)
