"""Which sessions are logged in full detail: those that went badly, and a share of all. Pure."""

from bisect import bisect_left, insort
from collections import deque
from hashlib import blake2b
from typing import Final, Literal

WINDOW: Final = 500  # sessions that the 95th percentile is taken over
LEAST: Final = 40  # with fewer than this it says nothing: two of them would lie above it

Why = Literal["failed", "degraded", "slow", "sample"]


class RunningQuantile:
    """A quantile of the last `window` values. Adding one costs two searches and two shifts in a sorted list."""

    def __init__(self, quantile: float, window: int = WINDOW, least: int = LEAST) -> None:
        self._quantile = quantile
        self._least = least
        self._window = window
        self._values: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, value: float) -> None:
        """One more value; the oldest goes where the window is full."""
        if len(self._values) == self._window:
            del self._sorted[bisect_left(self._sorted, self._values.popleft())]
        self._values.append(value)
        insort(self._sorted, value)

    @property
    def value(self) -> float | None:
        """None while fewer than `least` values are known."""
        if len(self._sorted) < max(1, self._least):
            return None
        return self._sorted[min(len(self._sorted) - 1, int(self._quantile * len(self._sorted)))]


class DetailChoice:
    """Decides at each session's end. `percent` of the ordinary ones are taken as a sample."""

    def __init__(self, percent: float) -> None:
        self._percent = percent
        self._p95 = RunningQuantile(0.95)

    def why(self, session: str, *, failed: bool, degraded: bool, first_audio_s: float | None) -> Why | None:
        """Why the session is logged in full; None: it is not. `first_audio_s`: its slowest, if it had any.

        The percentile is over the sessions' slowest first audio, not over all utterances: of a session with many, one
        would nearly always lie above.
        """
        usual = self._p95.value
        if first_audio_s is not None:
            self._p95.add(first_audio_s)
        if failed:
            return "failed"
        if degraded:
            return "degraded"
        if usual is not None and first_audio_s is not None and first_audio_s > usual:
            return "slow"
        return "sample" if is_sampled(session, self._percent) else None


def is_sampled(session: str, percent: float) -> bool:
    """Whether a session is in the sample. Every process of a server says the same of the same session."""
    digest = blake2b(session.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") * 100 < percent * 2**64
