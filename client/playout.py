"""A playout buffer: what to play now, how much is left, and how often it ran dry. Pure; one caller at a time.

`push` takes audio as it arrives, `pull` gives exactly as many samples as a sound device asks for. Playing begins when
the pre-roll is there (or the utterance is complete), and again after the buffer ran dry. The pre-roll follows the line:
longer where audio arrives unevenly and after each stall, slowly shorter again. Where the buffer runs dry the last
samples are faded out, and faded in where it goes on, so that a gap is not also a click.
"""

from array import array
from collections import deque
from typing import Final

PREROLL_MS: Final = 120  # covers the jitter of one engine chunk and a LAN
MAX_PREROLL_MS: Final = 6_000
JITTER_QUANTILE: Final = 0.95
JITTER_FACTOR: Final = 2
ARRIVALS: Final = 200  # remembered to know the jitter; 4 s of 20 ms frames
ENOUGH: Final = 20  # of them, before they say anything: the first are the engine's warming up
CALM_S: Final = 10.0  # played without a stall: what stalls added is halved
PATIENCE: Final = 2  # times the pre-roll: what is here by then is played, though it is less ...
STILL_S: Final = 0.5  # ... and so it is when nothing more came for so long: the server may wait for the listener
FADE_MS: Final = 5  # shorter clicks, longer is heard as a hole


class Preroll:
    """How much audio should wait before playing begins, in seconds."""

    def __init__(self, base_s: float, longest_s: float) -> None:
        self._base = base_s
        self._longest = max(base_s, longest_s)
        self._late: deque[float] = deque(maxlen=ARRIVALS)  # by how much each arrival was later than the one before
        self._due: float | None = None  # when the next one is on time
        self._boost = 0.0
        self._calm = 0.0

    @property
    def seconds(self) -> float:
        """The base, twice the jitter, and what stalls added."""
        late = sorted(self._late)
        jitter = late[int(JITTER_QUANTILE * (len(late) - 1))] if len(late) >= ENOUGH else 0.0
        return min(self._longest, self._base + JITTER_FACTOR * jitter + self._boost)

    def arrived(self, seconds: float, now: float) -> None:
        """So much audio came."""
        if self._due is not None:
            self._late.append(max(0.0, now - self._due))
        self._due = now + seconds

    def pause(self) -> None:
        """Nothing is due: the next arrival says nothing about the line."""
        self._due = None

    def stalled(self) -> None:
        """The buffer ran dry. One hole adds little, so that sound is back soon; one after the other add ever more."""
        self._boost = min(max(self._base, 2 * self._boost), self._longest)
        self._calm = 0.0

    def played(self, seconds: float) -> None:
        """So much was played without a stall."""
        self._calm += seconds
        if self._calm >= CALM_S:
            self._calm = 0.0
            self._boost /= 2


class Playout:
    """Buffers s16le mono for a player. `played_samples` counts what was pulled, over all utterances, without gaps.

    `max_preroll_ms`: at most half of the session's `max_lead_ms`, because no more than that lead ever waits here.
    """

    def __init__(self, sample_rate: int, preroll_ms: int = PREROLL_MS, max_preroll_ms: int = MAX_PREROLL_MS) -> None:
        self.sample_rate = sample_rate
        self.stalls = 0
        self.gap_samples = 0
        self.played_samples = 0
        self.pushed_samples = 0
        self._preroll = Preroll(preroll_ms / 1_000, max_preroll_ms / 1_000)
        self._fade = max(1, sample_rate * FADE_MS // 1_000)
        self._chunks: deque[bytes] = deque()
        self._offset = 0  # bytes of the first chunk already pulled
        self._running = False
        self._started = False
        self._complete = False
        self._between = False
        self._waited = 0  # samples of silence since there was something to play ...
        self._still = 0  # ... and since the last of it came
        self._fade_in = 0  # samples of the fade still to come

    @property
    def preroll_ms(self) -> int:
        """How much is waited for before playing begins, now."""
        return round(1_000 * self._preroll.seconds)

    @property
    def buffered_samples(self) -> int:
        """Samples that can be pulled."""
        return self.pushed_samples - self.played_samples

    @property
    def buffered_ms(self) -> int:
        """The same in milliseconds."""
        return self.buffered_samples * 1_000 // self.sample_rate

    @property
    def drained(self) -> bool:
        """Everything was played and nothing more comes."""
        return self._complete and self.buffered_samples == 0

    def push(self, pcm: bytes, now: float | None = None) -> None:
        """Audio that follows what was pushed before; it arrived at `now` (seconds; None: nothing is learnt of that)."""
        if pcm:
            self._chunks.append(pcm)
            self.pushed_samples += len(pcm) // 2
            self._complete = False
            self._still = 0
            if now is not None:
                self._preroll.arrived(len(pcm) / 2 / self.sample_rate, now)

    def between(self, segments: bool) -> None:
        """Whether all that was announced is here, and nothing else was: then silence is the writer's, and no stall."""
        self._between = segments
        self._preroll.pause()

    def complete(self) -> None:
        """Nothing more comes for now: play to the end without waiting, and call silence after it no stall."""
        self._complete = True
        self._preroll.pause()

    def clear(self) -> int:
        """Drops what was not played (barge-in). Returns how many samples that were."""
        dropped = self.buffered_samples
        self._chunks.clear()
        self._offset = 0
        self.pushed_samples = self.played_samples
        self._running = False
        return dropped

    def pull(self, samples: int) -> bytes:
        """Exactly `samples` samples to play now, silence where there is no audio."""
        if not self._running:
            if not self._may_start():
                if self.buffered_samples:
                    self._waited += samples
                    self._still += samples
                self.gap_samples += samples if self._started and not (self._complete or self._between) else 0
                return bytes(2 * samples)
            self._running = True
            self._waited = self._still = 0
            self._fade_in = self._fade if self._started else 0
            self._started = True
        count = min(samples, self.buffered_samples)
        out = self._take(2 * count)
        self.played_samples += count
        if self._fade_in:
            out = self._faded_in(out)
        if count == samples:
            self._preroll.played(samples / self.sample_rate)
            return out
        self._running = False
        if not (self._complete or self._between):
            self.stalls += 1
            self.gap_samples += samples - count
            self._preroll.stalled()
        if not self._complete:
            out = self._faded_out(out)
        return out + bytes(2 * (samples - count))

    def _may_start(self) -> bool:
        buffered = self.buffered_samples
        if self._complete:
            return buffered > 0
        wanted = int(self.sample_rate * self._preroll.seconds)
        waited = self._waited >= PATIENCE * wanted or self._still >= STILL_S * self.sample_rate
        return buffered >= wanted or (buffered > 0 and waited)

    def _take(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            chunk = self._chunks[0]
            part = chunk[self._offset : self._offset + size]
            parts.append(part)
            size -= len(part)
            self._offset += len(part)
            if self._offset >= len(chunk):
                self._chunks.popleft()
                self._offset = 0
        return b"".join(parts)

    def _faded_in(self, pcm: bytes) -> bytes:
        samples = array("h", pcm)
        count = min(self._fade_in, len(samples))
        done = self._fade - self._fade_in
        for i in range(count):
            samples[i] = samples[i] * (done + i) // self._fade
        self._fade_in -= count
        return samples.tobytes()

    def _faded_out(self, pcm: bytes) -> bytes:
        samples = array("h", pcm)
        count = min(self._fade, len(samples))
        base = len(samples) - count
        for i in range(count):
            samples[base + i] = samples[base + i] * (count - 1 - i) // count
        return samples.tobytes()
