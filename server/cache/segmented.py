"""A cache that what is wanted once cannot empty of what is wanted again: a segmented LRU. Pure."""

from collections import OrderedDict
from typing import Final, Generic, TypeVar

from server.cache.counts import CacheSize, CacheUse
from server.cache.keys import BlockKey
from server.cache.lru import Entry, Lru

V = TypeVar("V")

PROBATION: Final = 4  # one byte of so many is for newcomers
REMEMBERED_PER: Final = 8_192
"""Bytes of the cache for which one bucket that had to go is remembered. It takes about 130 bytes: 1.6 % more."""


class SegmentedLru(Generic[V]):
    """Newcomers are on probation, in a quarter of the bytes. What is asked for there moves to the protected part, which
    newcomers cannot push anything out of. What had to go there for others is on probation again.

    Of those that went, the buckets of the last are remembered: who comes again after all was only slower than the
    crowd, and goes to the protected part at once. Not thread-safe.
    """

    def __init__(self, max_bytes: int) -> None:
        self.use = CacheUse()
        self.largest = max_bytes // PROBATION
        self._probation: Lru[V] = Lru(self.largest)
        self._protected: Lru[V] = Lru(max_bytes - self.largest)
        self._most_remembered = max_bytes // REMEMBERED_PER
        self._remembered: OrderedDict[bytes, None] = OrderedDict()

    @property
    def size(self) -> CacheSize:
        """What is in both parts."""
        parts = self._probation, self._protected
        return CacheSize(sum(len(part) for part in parts), sum(part.bytes for part in parts))

    def find(self, key: BlockKey) -> V | None:
        """What was kept, which is protected from now on; None where nothing is."""
        use = self.use
        entry = self._protected.find(key)
        if entry is None and (entry := self._probation.remove(key)) is not None:
            self._protect(entry)
        if entry is None:
            self.use = CacheUse(use.hits, use.misses + 1, use.evictions)
            return None
        self.use = CacheUse(self.use.hits + 1, use.misses, self.use.evictions)
        return entry.value

    def forget_voice(self, voice: str) -> None:
        """Drop what is kept of a voice."""
        self._probation.forget_voice(voice)
        self._protected.forget_voice(voice)

    def add(self, key: BlockKey, value: V, size: int) -> None:
        """Keep `value`, which takes `size` bytes with its key. More than `largest` are not kept."""
        if size > self.largest or self._protected.find(key) is not None:
            return
        entry = Entry(key, value, size)
        if key.bucket in self._remembered:
            del self._remembered[key.bucket]
            self._probation.remove(key)
            self._protect(entry)
        else:
            self._try_out(entry)

    def _protect(self, entry: Entry[V]) -> None:
        for demoted in self._protected.add(entry):
            self._try_out(demoted)

    def _try_out(self, entry: Entry[V]) -> None:
        gone = self._probation.add(entry)
        for old in gone:
            self._remembered[old.key.bucket] = None
            self._remembered.move_to_end(old.key.bucket)
            if len(self._remembered) > self._most_remembered:
                self._remembered.popitem(last=False)
        use = self.use
        self.use = CacheUse(use.hits, use.misses, use.evictions + len(gone))
