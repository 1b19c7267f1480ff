"""Measurements of one utterance, taken as it arrives. Pure."""

from collections import deque
from typing import Any, Final

from protocol.server_messages import Done, Event, SegmentBegin

MAX_WRITES: Final = 4_096  # remembered until the first audio, to know when the first clause was complete


class ArrivalClock:
    """Counts stalls of an imaginary player that starts with the first sample to arrive and waits when one is late."""

    def __init__(self, sample_rate: int, tolerance_s: float = 0.0) -> None:
        self.stalls = 0
        self.stall_s = 0.0
        self._rate = sample_rate
        self._tolerance = tolerance_s
        self._start: float | None = None

    def arrived(self, first_sample: int, now: float) -> None:
        """Audio from `first_sample` on is here."""
        if self._start is None:
            self._start = now - first_sample / self._rate
            return
        late = now - (self._start + self.stall_s + first_sample / self._rate)
        if late > self._tolerance:
            self.stalls += 1
            self.stall_s += late


class UtteranceStatistics:
    """Times are seconds of the session's monotonic clock.

    `stalls`: how often audio would have run dry had playing begun with the first sample; a real player reports its own.
    `restarts`: how often the rest was spoken by a new session. `digest` and `server` then cover the last part.
    """

    def __init__(self, sample_rate: int, now: float) -> None:
        self.started = now
        self.characters = 0
        self.first_text: float | None = None
        self.first_audio: float | None = None
        self.finished: float | None = None
        self.samples = 0
        self.bytes = 0
        self.frames = 0
        self.segments = 0
        self.restarts = 0
        self.digest: str | None = None
        self.server: dict[str, Any] = {}
        self._rate = sample_rate
        self._clock = ArrivalClock(sample_rate)
        self._writes: deque[tuple[int, float]] = deque(maxlen=MAX_WRITES)
        self._first_clause_end: int | None = None

    def wrote(self, characters: int, now: float) -> None:
        """Text was sent."""
        self.characters += characters
        if self.first_text is None:
            self.first_text = now
        if self.first_audio is None:
            self._writes.append((self.characters, now))

    def segment_begin(self, event: SegmentBegin) -> None:
        """A segment was announced."""
        self.segments += 1
        if self._first_clause_end is None and event.kind == "speech":
            self._first_clause_end = event.end

    def audio(self, payload: int, received: int, first_sample: int, now: float) -> None:
        """A frame with that many bytes arrived: audio from `first_sample` on, and now all up to `received` is here."""
        if self.first_audio is None:
            self.first_audio = now
        self.frames += 1
        self.bytes += payload
        self.samples = max(self.samples, received)
        self._clock.arrived(max(0, first_sample), now)

    def finish(self, event: Event, samples: int, now: float) -> None:
        """The utterance is over."""
        self.finished = now
        self.samples = samples
        if isinstance(event, Done):
            self.digest = event.digest
            self.server = dict(event.statistics)

    @property
    def stalls(self) -> int:
        """How often the audio would have run dry."""
        return self._clock.stalls

    @property
    def stall_s(self) -> float:
        """For how long in all."""
        return self._clock.stall_s

    @property
    def ttfa_s(self) -> float | None:
        """From the first text to the first audio."""
        if self.first_audio is None or self.first_text is None:
            return None
        return self.first_audio - self.first_text

    @property
    def ttfa_clause_s(self) -> float | None:
        """From the text that completed the first clause to the first audio: what counts with a slow writer."""
        if self.first_audio is None or self._first_clause_end is None:
            return None
        for characters, when in self._writes:
            if characters >= self._first_clause_end:
                return self.first_audio - when
        return self.ttfa_s
