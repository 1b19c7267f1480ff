"""Entries in the order they were last wanted, never more of them or of their bytes than allowed. Pure."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

from server.cache.keys import BlockKey

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Entry(Generic[V]):
    """What is kept for a key. `size`: bytes, those of the key included."""

    key: BlockKey
    value: V
    size: int


class Lru(Generic[V]):
    """A map by whole keys: their buckets are the hash, and everything is compared. Not thread-safe."""

    def __init__(self, max_bytes: int, max_entries: int | None = None) -> None:
        """`max_entries` None: as many as their bytes allow."""
        self.bytes = 0
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: OrderedDict[BlockKey, Entry[V]] = OrderedDict()  # the one wanted longest ago is first

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, key: BlockKey) -> Entry[V] | None:
        """The entry, which counts as wanted now."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def remove(self, key: BlockKey) -> Entry[V] | None:
        """The entry, which is not here any more."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.bytes -= entry.size
        return entry

    def forget_voice(self, voice: str) -> None:
        """Drop the entries of a voice."""
        for key in [key for key in self._entries if key.voice == voice]:
            self.remove(key)

    def fits(self, size: int) -> bool:
        """Whether an entry of so many bytes can be kept at all."""
        return size <= self._max_bytes and self._max_entries != 0

    def add(self, entry: Entry[V]) -> list[Entry[V]]:
        """Keep it as the newest, in place of what there was for its key. Returns those that had to go for it, the one
        wanted longest ago first; the entry itself where it does not fit.
        """
        self.remove(entry.key)
        if not self.fits(entry.size):
            return [entry]
        self._entries[entry.key] = entry
        self.bytes += entry.size
        gone = []
        while self.bytes > self._max_bytes or (self._max_entries is not None and len(self) > self._max_entries):
            _, oldest = self._entries.popitem(last=False)
            self.bytes -= oldest.size
            gone.append(oldest)
        return gone
