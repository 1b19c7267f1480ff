"""How late the event loop is: what everything that happens on it waits for, besides its own work.

A timer every 100 ms, and how late it comes. That is no polling: nobody waits for its result, it *is* the measurement,
and a loop without timers has no lateness to see. It costs 0.01 % of a core.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final

EVERY_S: Final = 0.1
REMEMBERED: Final = 50  # five seconds
SMOOTHING: Final = 0.1  # weight of the newest: the mean of about a second

_COARSE_S: Final = 0.001  # uvloop's timers go by whole milliseconds


class LoopLag:
    """Measures the running loop from `start` to `stop`; `observe` is told each lateness, in seconds."""

    def __init__(self, observe: Callable[[float], None] | None = None) -> None:
        self._observe = observe
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # not loop.time(): uvloop's stands still while a callback runs
        self._recent: deque[float] = deque(maxlen=REMEMBERED)
        self._mean = 0.0

    def start(self) -> None:
        """Begin, inside the running loop."""
        self._schedule(asyncio.get_running_loop())

    def stop(self) -> None:
        """End; harmless where it did not begin."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def recent_s(self) -> float:
        """The mean of about the last second. Where the timer is late at this moment, that counts at once."""
        return max(self._mean, self._overdue_s())

    def worst_s(self) -> float:
        """The worst of the last five seconds."""
        return max(*self._recent, self._overdue_s(), 0.0)

    def _overdue_s(self) -> float:
        return max(0.0, perf_counter() - self._due - _COARSE_S) if self._timer is not None else 0.0

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = perf_counter() + EVERY_S
        self._timer = loop.call_later(EVERY_S, self._came, loop)

    def _came(self, loop: asyncio.AbstractEventLoop) -> None:
        late = self._overdue_s()
        self._mean += SMOOTHING * (late - self._mean)
        self._recent.append(late)
        if self._observe is not None:
            self._observe(late)
        self._schedule(loop)
