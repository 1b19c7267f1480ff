"""A playout buffer: what to play now, how much is left, and how often it ran dry. Pure; one caller at a time.

`push` takes audio as it arrives, `pull` gives exactly as many samples as a sound device asks for. Playing begins when
`preroll_ms` of audio is there (or the utterance is complete), and again after the buffer ran dry. Where it runs dry the
last samples are faded out, and faded in where it goes on, so that a gap is not also a click.
"""

from array import array
from collections import deque
from typing import Final

PREROLL_MS: Final = 120  # covers the jitter of one engine chunk and a LAN; more on a bad link
FADE_MS: Final = 5  # shorter clicks, longer is heard as a hole


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


class Playout:
    """Buffers s16le mono for a player. `played_samples` counts what was pulled, over all utterances, without gaps."""

    def __init__(self, sample_rate: int, preroll_ms: int = PREROLL_MS) -> None:
        self.sample_rate = sample_rate
        self.stalls = 0
        self.gap_samples = 0
        self.played_samples = 0
        self.pushed_samples = 0
        self._preroll = sample_rate * preroll_ms // 1_000
        self._fade = max(1, sample_rate * FADE_MS // 1_000)
        self._chunks: deque[bytes] = deque()
        self._offset = 0  # bytes of the first chunk already pulled
        self._running = False
        self._started = False
        self._complete = False
        self._fade_in = 0  # samples of the fade still to come

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

    def push(self, pcm: bytes) -> None:
        """Audio that follows what was pushed before."""
        if pcm:
            self._chunks.append(pcm)
            self.pushed_samples += len(pcm) // 2
            self._complete = False

    def complete(self) -> None:
        """Nothing more comes for now: play to the end without waiting, and call silence after it no stall."""
        self._complete = True

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
            enough = self.buffered_samples >= self._preroll or (self._complete and self.buffered_samples > 0)
            if not enough:
                self.gap_samples += samples if self._started and not self._complete else 0
                return bytes(2 * samples)
            self._running = True
            self._fade_in = self._fade if self._started else 0
            self._started = True
        count = min(samples, self.buffered_samples)
        out = self._take(2 * count)
        self.played_samples += count
        if self._fade_in:
            out = self._faded_in(out)
        if count == samples:
            return out
        self._running = False
        if not self._complete:
            self.stalls += 1
            self.gap_samples += samples - count
            out = self._faded_out(out)
        return out + bytes(2 * (samples - count))

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
