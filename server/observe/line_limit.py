"""How many log lines of a kind clients may cause. Pure: times are seconds on any clock that only moves forward."""

from typing import Final

from server.scheduler.token_bucket import TokenBucket

BURST: Final = 20  # lines of a kind at once
PER_S: Final = 1.0  # and so many a second from then on
MOST_KINDS: Final = 64  # kinds are codes of ours; were one made from what a client sends, the rest would share a bucket
OTHER: Final = "other"


class LineLimiter:
    """A token bucket for each kind of line, and how many were left out since somebody asked."""

    def __init__(self, burst: float = BURST, per_s: float = PER_S) -> None:
        self._burst = burst
        self._per_s = per_s
        self._buckets: dict[str, TokenBucket] = {}
        self._left_out: dict[str, int] = {}

    def admit(self, kind: str, now: float) -> bool:
        """Whether a line of this kind may be written now; else it is counted."""
        if kind not in self._buckets and len(self._buckets) >= MOST_KINDS:
            kind = OTHER
        bucket = self._buckets.setdefault(kind, TokenBucket(self._burst, self._per_s, now))
        if bucket.level(now) < 1:
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return False
        bucket.take(1, now)
        return True

    def take_left_out(self) -> dict[str, int]:
        """How many lines were left out since the last call, by kind; kinds of which none was are missing."""
        found, self._left_out = self._left_out, {}
        return found
