"""What a cache tells of itself. Pure values."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How often something was found, was not, and had to go for something newer."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0

    def __sub__(self, earlier: "CacheUse") -> "CacheUse":
        """What has happened since."""
        return CacheUse(self.hits - earlier.hits, self.misses - earlier.misses, self.evictions - earlier.evictions)


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What is in it: entries, and the bytes they take with their keys."""

    entries: int = 0
    bytes: int = 0


UNUSED: Final = CacheUse()
EMPTY: Final = CacheSize()
