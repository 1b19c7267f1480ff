"""What engines computed for a block and may need again, for the block after it or the same one elsewhere. Pure."""

from math import ceil
from typing import Final

from server.cache.counts import CacheSize, CacheUse
from server.cache.keys import BlockKey
from server.cache.lru import Entry, Lru

GIB: Final = 1024**3
SMALL_DEVICE: Final = (8, 20)  # GiB of memory and blocks: up to here, and without an accelerator
LARGE_DEVICE: Final = (24, 50)  # from here on


def default_blocks(device_memory: int) -> int:
    """How many blocks are kept for an engine on a device with so many bytes of memory (0: the CPU). Between a small
    device and a large one their number grows evenly; devices tell a little less than their names say, so it is rounded
    up.
    """
    (small, fewest), (large, most) = SMALL_DEVICE, LARGE_DEVICE
    share = (device_memory / GIB - small) / (large - small)
    return fewest + ceil(min(1.0, max(0.0, share)) * (most - fewest))


class ContextStore:
    """Inner state of engines, by block. Not thread-safe: see `server/engines/context_cache.py`."""

    def __init__(self, max_blocks: int, max_bytes: int) -> None:
        self.use = CacheUse()
        self._kept: Lru[object] = Lru(max_bytes, max_blocks)

    @property
    def size(self) -> CacheSize:
        """What is in it."""
        return CacheSize(len(self._kept), self._kept.bytes)

    def get(self, key: BlockKey) -> object | None:
        """What was kept for the block, None where nothing is."""
        entry = self._kept.find(key)
        use = self.use
        if entry is None:
            self.use = CacheUse(use.hits, use.misses + 1, use.evictions)
            return None
        self.use = CacheUse(use.hits + 1, use.misses, use.evictions)
        return entry.value

    def forget_voice(self, voice: str) -> None:
        """Drop what is kept of a voice."""
        self._kept.forget_voice(voice)

    def put(self, key: BlockKey, value: object, size: int) -> None:
        """Keep `value`, which takes `size` bytes; what was not wanted for longest goes. Nothing that is larger than
        the whole store is kept.
        """
        entry = Entry(key, value, size + key.size)
        if not self._kept.fits(entry.size):
            self._kept.remove(key)
            return
        gone = len(self._kept.add(entry))
        use = self.use
        self.use = CacheUse(use.hits, use.misses, use.evictions + gone)
