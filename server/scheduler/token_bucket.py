"""Token buckets: so much at once, so much a second in the long run. Times are seconds of one monotonic clock. Pure."""

from collections import OrderedDict
from typing import Final

MAX_NAMES: Final = 10_000
TIDIED: Final = 2  # full buckets looked for with each new one: faster than new ones come


class TokenBucket:
    """Holds `size` tokens at most and is full at first; `rate` tokens come back each second.

    What is taken may be more than it holds: the debt is paid before anything is there again.
    """

    __slots__ = ("_at", "_level", "_rate", "_size")

    def __init__(self, size: float, rate: float, now: float) -> None:
        self._size = size
        self._rate = rate
        self._level = size
        self._at = now

    def level(self, now: float) -> float:
        """Tokens there; negative while something is owed."""
        if now > self._at:
            self._level = min(self._size, self._level + (now - self._at) * self._rate)
            self._at = now
        return self._level

    def full(self, now: float) -> bool:
        """Whether it is like a new one."""
        return self.level(now) >= self._size

    def take(self, amount: float, now: float) -> None:
        """Take tokens, those that are not there too."""
        self._level = self.level(now) - amount

    def wait_s(self, amount: float, now: float) -> float:
        """Seconds until it holds `amount`, or is full."""
        return max(0.0, min(amount, self._size) - self.level(now)) / self._rate


class TokenBuckets:
    """A bucket for each name, all alike. `size` 0: there is no bound, and nothing is kept.

    A full one is forgotten. Where `most` names have taken something lately, one of them is forgiven.
    """

    def __init__(self, size: float, rate: float, most: int = MAX_NAMES) -> None:
        self._size = size
        self._rate = rate
        self._most = most
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()  # in the order in which they are looked at

    def __len__(self) -> int:
        return len(self._buckets)

    @property
    def bounded(self) -> bool:
        """Whether there is a bound at all."""
        return self._size > 0

    @property
    def size(self) -> float:
        """Tokens of a full one."""
        return self._size

    def level(self, name: str, now: float) -> float:
        """Tokens of one name."""
        bucket = self._buckets.get(name)
        return self._size if bucket is None else bucket.level(now)

    def wait_s(self, name: str, amount: float, now: float) -> float:
        """Seconds until one name has `amount`."""
        bucket = self._buckets.get(name)
        return 0.0 if bucket is None else bucket.wait_s(amount, now)

    def take(self, name: str, amount: float, now: float) -> None:
        """Take tokens of one name; see TokenBucket."""
        if not self.bounded or not amount:
            return
        bucket = self._buckets.get(name)
        if bucket is None:
            self._tidy(now)
            bucket = self._buckets[name] = TokenBucket(self._size, self._rate, now)
        bucket.take(amount, now)

    def _tidy(self, now: float) -> None:
        for _ in range(min(TIDIED, len(self._buckets))):
            name, bucket = next(iter(self._buckets.items()))
            if bucket.full(now):
                del self._buckets[name]
            else:
                self._buckets.move_to_end(name)
        if len(self._buckets) >= self._most:
            self._buckets.popitem(last=False)
