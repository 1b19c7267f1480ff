"""How many log lines of a kind clients may cause. Pure: times are seconds on any clock that only moves forward."""

from dataclasses import dataclass
from typing import Final

BURST: Final = 20  # lines of a kind at once
PER_S: Final = 1.0  # and so many a second from then on
MOST_KINDS: Final = 64  # kinds are codes of ours; were one made from what a client sends, the rest would share a bucket
OTHER: Final = "other"


@dataclass(slots=True)
class _Bucket:
    lines: float
    at: float
    left_out: int = 0


class LineLimiter:
    """A token bucket for each kind of line, and how many were left out since somebody asked."""

    def __init__(self, burst: float = BURST, per_s: float = PER_S) -> None:
        self._burst = burst
        self._per_s = per_s
        self._buckets: dict[str, _Bucket] = {}

    def admit(self, kind: str, now: float) -> bool:
        """Whether a line of this kind may be written now; else it is counted."""
        if kind not in self._buckets and len(self._buckets) >= MOST_KINDS:
            kind = OTHER
        bucket = self._buckets.setdefault(kind, _Bucket(self._burst, now))
        bucket.lines = min(self._burst, bucket.lines + (now - bucket.at) * self._per_s)
        bucket.at = now
        if bucket.lines < 1:
            bucket.left_out += 1
            return False
        bucket.lines -= 1
        return True

    def take_left_out(self) -> dict[str, int]:
        """How many lines were left out since the last call, by kind; kinds of which none was are missing."""
        found = {}
        for kind, bucket in self._buckets.items():
            if bucket.left_out:
                found[kind], bucket.left_out = bucket.left_out, 0
        return found
