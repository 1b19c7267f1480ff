"""What the acks say about the listener's playout buffer: its level, how fast it falls, and stalls."""

from collections import deque
from typing import Final

PREROLL_MS: Final = 120  # a client starts to play with this much; what the level is measured against
LOW_MS: Final = PREROLL_MS // 2
FALL_S: Final = 0.3  # how long a fall must last to count
FALL_MS_PER_S: Final = 100.0  # how fast it must be to count
GRACE_S: Final = 2.0  # of the first audio: TCP begins with ten packets, so one short stall says nothing about the link
SPACING_S: Final = 0.03  # levels closer together than this count as one: this bounds the memory


class ListenerBuffer:
    """The buffer as reported since audio last began to flow."""

    def __init__(self) -> None:
        self.level_ms: int | None = None  # as of the last report
        self.filled = False  # it has held the pre-roll since audio began to flow: only then a low level means anything
        self.stalled = False  # the last report told of a stall that no report before it told of
        self._stalls = 0
        self._began_at: float | None = None
        self._settled = False  # the grace is over, or used up
        self._levels: deque[tuple[float, int]] = deque()  # (time, level); the first is the youngest older than FALL_S

    def reported(self, now: float, level_ms: int, stalls: int) -> None:
        """An ack told the level. The stall counter belongs to an utterance: where it falls a new one began."""
        self.level_ms = level_ms
        self.filled = self.filled or level_ms >= PREROLL_MS or stalls > 0  # who ran dry had begun to play
        if self._began_at is None:
            self._began_at = now
        in_grace = not self._settled and now < self._began_at + GRACE_S
        self.stalled = stalls > max(self._stalls, 1 if in_grace else 0)
        self._settled = not in_grace or stalls > max(1, self._stalls)
        self._stalls = stalls
        if not self._levels or now - self._levels[-1][0] >= SPACING_S:
            self._levels.append((now, level_ms))
        while len(self._levels) > 1 and self._levels[1][0] <= now - FALL_S:
            self._levels.popleft()

    def forget(self) -> None:
        """No audio flows any more: what the level does from here on is not the link's doing."""
        self.level_ms = None
        self.filled = self.stalled = self._settled = False
        self._began_at = None
        self._levels.clear()

    @property
    def slope(self) -> float:
        """Milliseconds per second over the last `FALL_S` at least; 0 where less is known."""
        if not self._levels or self.level_ms is None:
            return 0.0
        elapsed = self._levels[-1][0] - self._levels[0][0]
        return (self._levels[-1][1] - self._levels[0][1]) / elapsed if elapsed >= FALL_S else 0.0

    @property
    def falling(self) -> bool:
        """It falls fast, and has for a while."""
        return self.slope < -FALL_MS_PER_S

    @property
    def low(self) -> bool:
        """It was full once and is nearly empty."""
        return self.filled and self._settled and self.level_ms is not None and self.level_ms < LOW_MS
