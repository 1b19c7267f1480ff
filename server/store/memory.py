"""The store that keeps nothing: sessions live in this process alone."""

import asyncio
from collections.abc import Callable, Sequence

from server.store.base import Claim


class MemoryJournal:
    """Takes lines and forgets them."""

    failed: str | None = None

    def append(self, lines: Sequence[bytes], written: Callable[[], None] | None = None) -> None:
        """Forget `lines`; `written` is called in the loop's next turn."""
        if written is not None:
            asyncio.get_running_loop().call_soon(written)

    async def close(self, *, delete: bool) -> None:
        """Nothing to give up."""


class MemoryStore:
    """Journals that keep nothing, and so nothing to claim."""

    keeps = False

    def create(self, session: str) -> MemoryJournal:
        """A journal that forgets."""
        return MemoryJournal()

    async def claim(self, session: str) -> Claim | None:
        """There never is one."""
        return None

    async def close(self) -> None:
        """Nothing to write."""
