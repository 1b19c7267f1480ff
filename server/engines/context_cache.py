"""The context cache of one engine: `server/cache/context.py` behind a lock, as several engine threads share it."""

import threading
from typing import Final

from server.cache.context import ContextStore, default_blocks
from server.cache.counts import CacheSize, CacheUse
from server.cache.forgotten import Forgotten
from server.cache.keys import BlockKey

MIB: Final = 1024 * 1024


class EngineContextCache:
    """A `ContextCache`; `start_engine` gives it to an engine that can use one."""

    def __init__(self, blocks: int = 0, megabytes: int = 64) -> None:
        """At most so many blocks (0: by the memory of the engine's device) and so many MiB (0: nothing is kept)."""
        self._blocks = blocks
        self._max_bytes = megabytes * MIB
        self._lock = threading.Lock()
        self._told = CacheUse()
        self._forgotten = Forgotten()
        self._store = ContextStore(blocks or default_blocks(0), self._max_bytes)

    @property
    def keeps(self) -> bool:
        """Whether it may keep anything."""
        return self._max_bytes > 0

    def fit(self, device_memory: int) -> None:
        """Choose the number of blocks where none was set, for a device with so many bytes of memory. What was kept is
        forgotten.
        """
        with self._lock:
            self._store = ContextStore(self._blocks or default_blocks(device_memory), self._max_bytes)
            self._told = CacheUse()

    def get(self, key: BlockKey) -> object | None:
        """See ContextCache."""
        with self._lock:
            return self._store.get(key)

    def put(self, key: BlockKey, value: object, size: int) -> None:
        """See ContextCache."""
        with self._lock:
            if key.voice not in self._forgotten:
                self._store.put(key, value, size)

    def forget_voice(self, voice: str) -> None:
        """A voice was deleted: nothing is kept of it, from now on."""
        with self._lock:
            self._forgotten.add(voice)
            self._store.forget_voice(voice)

    def size(self) -> CacheSize:
        """What is in it now."""
        with self._lock:
            return self._store.size

    def take_use(self) -> CacheUse:
        """What has happened since it was asked last."""
        with self._lock:
            use, self._told = self._store.use - self._told, self._store.use
            return use
