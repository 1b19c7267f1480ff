"""Statistics over the recent past, in bounded memory and amortised constant time."""

from bisect import bisect_left, insort
from collections import deque
from math import ceil
from typing import Final

SPACING_S: Final = 0.1  # values closer together than acks usually are count as one: this bounds the memory


class WindowedMax:
    """The largest value of the last `window_s` seconds."""

    def __init__(self, window_s: float) -> None:
        self._window = window_s
        self._peaks: deque[tuple[float, float]] = deque()  # (time, value), values falling

    def add(self, now: float, value: float) -> None:
        """One more value."""
        while self._peaks and self._peaks[-1][1] <= value:
            self._peaks.pop()
        if not self._peaks or now - self._peaks[-1][0] >= SPACING_S:
            self._peaks.append((now, value))
        self.forget_before(now - self._window)

    def forget_before(self, time: float) -> None:
        """Drop what is older."""
        while self._peaks and self._peaks[0][0] < time:
            self._peaks.popleft()

    @property
    def value(self) -> float:
        """The maximum as of the last `add`; 0 where nothing is known."""
        return self._peaks[0][1] if self._peaks else 0.0

    def __len__(self) -> int:
        return len(self._peaks)


class RecentQuantile:
    """A quantile of the last `window_s` seconds. Of values less than `SPACING_S` apart the largest counts."""

    def __init__(self, window_s: float, quantile: float) -> None:
        self._window = window_s
        self._quantile = quantile
        self._values: deque[list[float]] = deque()  # [time, value]
        self._sorted: list[float] = []

    def add(self, now: float, value: float) -> None:
        """One more value."""
        self._expire(now)
        last = self._values[-1] if self._values else None
        if last is not None and now - last[0] < SPACING_S:
            if value > last[1]:
                self._remove(last[1])
                last[1] = value
                insort(self._sorted, value)
            return
        self._values.append([now, value])
        insort(self._sorted, value)

    def value(self, now: float) -> float:
        """The quantile (nearest rank); 0 where nothing is known."""
        self._expire(now)
        return self._sorted[ceil(self._quantile * len(self._sorted)) - 1] if self._sorted else 0.0

    def __len__(self) -> int:
        return len(self._sorted)

    def _expire(self, now: float) -> None:
        while self._values and self._values[0][0] < now - self._window:
            self._remove(self._values.popleft()[1])

    def _remove(self, value: float) -> None:
        del self._sorted[bisect_left(self._sorted, value)]
