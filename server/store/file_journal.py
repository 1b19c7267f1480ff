"""A journal of a directory's store, on the event loop: what was appended and not yet answered, in order."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from server.store.writer import End, Entry, Slot

if TYPE_CHECKING:
    from server.store.file import FileStore

CLOSED: Final = "closed"
_ENTRY_COST: Final = 256  # bytes; about what an entry takes
_LINE_COST: Final = 64  # and a line besides its content


class FileJournal:
    """A journal of a `FileStore`."""

    def __init__(self, store: "FileStore", slot: Slot, failed: str | None = None) -> None:
        self.failed = failed
        self._store = store
        self._slot = slot
        self._queued: deque[Entry] = deque()
        self._queued_bytes = 0

    def append(self, lines: Sequence[bytes], written: Callable[[], None] | None = None) -> None:
        """See `Journal.append`."""
        cost = _ENTRY_COST
        for line in lines:
            if b"\n" in line:
                raise ValueError("a line of a journal holds no newline")
            cost += len(line) + _LINE_COST
        if self.failed is None and (reason := self._store.no_room(cost, self._queued_bytes + cost)):
            self._store.fail(self, reason)
        if self.failed is None:
            self._put(Entry(self._slot, tuple(lines), cost, written=written))
        elif written is not None:
            asyncio.get_running_loop().call_soon(written)

    async def close(self, *, delete: bool) -> None:
        """See `Journal.close`. Returns when it is done, or when the disk was given up."""
        if self.failed is None:
            done = asyncio.Event()
            self.end(End.DELETE if delete else End.KEEP, done.set)
            await done.wait()

    def end(self, end: End, written: Callable[[], None] | None = None) -> None:
        """Give it up behind everything that was appended."""
        self.failed = CLOSED
        self._put(Entry(self._slot, (), _ENTRY_COST, end, written))

    def _put(self, entry: Entry) -> None:
        self._queued.append(entry)
        self._queued_bytes += entry.cost
        self._store.put(entry)

    # Called by the store

    def give_up(self, reason: str) -> None:
        """It has failed: whoever waits hears it now, and the file goes when the writer gets there."""
        self.failed = reason
        self.answer()
        self._put(Entry(self._slot, (), _ENTRY_COST, End.DELETE))

    @property
    def is_idle(self) -> bool:
        """The writer has nothing of it."""
        return not self._queued

    def answer(self) -> bool:
        """Call whoever waits to hear that something is written, in order. Whether there was anybody."""
        waiting = [entry for entry in self._queued if entry.written is not None]
        for entry in waiting:
            self._call(entry)
        return bool(waiting)

    def took(self) -> None:
        """The writer is done with the oldest entry."""
        entry = self._queued.popleft()
        self._queued_bytes -= entry.cost
        self._call(entry)

    def _call(self, entry: Entry) -> None:
        if entry.written is not None:
            asyncio.get_running_loop().call_soon(entry.written)
            entry.written = None
