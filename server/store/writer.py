"""The thread that writes every journal of a store: takes whatever waits, writes each file once, tells the loop."""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from server.store.base import Activity
from server.store.journal_file import Directory, JournalFile

GROUP_BYTES: Final = 4 * 1024 * 1024
"""A group is closed at this size, so that what is written is also told now and then."""


class End(Enum):
    """How a journal is given up."""

    KEEP = "keep"
    DELETE = "delete"


@dataclass(eq=False, slots=True)
class Slot:
    """A journal as the writer sees it. `file` is made with the first line; only the writer touches it from then on."""

    session: str
    path: Path
    file: JournalFile | None = None
    ended: bool = False


@dataclass(eq=False, slots=True)
class Entry:
    """One thing to do for one journal. `written` is the loop's: it is None once it was called."""

    slot: Slot
    lines: Sequence[bytes]
    cost: int
    """Bytes it holds in the queue."""
    end: End | None = None
    written: Callable[[], None] | None = None


@dataclass(slots=True)
class Group:
    """What became of the entries of one group, in their order."""

    entries: list[Entry]
    failures: dict[Slot, str] = field(default_factory=dict)
    activity: Activity = field(default_factory=Activity)


class Writer:
    """The thread and its queue. The queue has no bound of its own: the store counts what it holds.

    `tell` is called on `loop`, once per group.
    """

    def __init__(
        self,
        directory: Directory,
        loop: asyncio.AbstractEventLoop,
        tell: Callable[[Group], None],
        *,
        fsync: bool,
        touch_every_s: float,
    ) -> None:
        self._directory = directory
        self._loop = loop
        self._tell = tell
        self._fsync = fsync
        self._touch_every_s = touch_every_s
        self._queue: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._open: set[Slot] = set()
        self._ended = asyncio.Event()
        threading.Thread(target=self._run, name="journal writer", daemon=True).start()

    def put(self, entry: Entry) -> None:
        """Have it done after everything put before."""
        self._queue.put(entry)

    async def stop(self, timeout: float) -> bool:
        """Do what was put so far, then end. False: it took longer than `timeout` seconds and goes on without us."""
        self._queue.put(None)
        try:
            async with asyncio.timeout(timeout):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    # In the thread

    def _run(self) -> None:
        touch_at = time.monotonic() + self._touch_every_s
        going = True
        while going:
            entries, going = self._take(touch_at - time.monotonic())
            if entries:
                self._call(self._tell, self._write(entries))
            if time.monotonic() >= touch_at:
                if (group := self._touch_all()).failures:
                    self._call(self._tell, group)
                touch_at = time.monotonic() + self._touch_every_s
        self._call(self._ended.set)

    def _take(self, patience: float) -> tuple[list[Entry], bool]:
        """Everything that waits, at most a group; and whether more may come."""
        entries: list[Entry] = []
        size = 0
        try:
            entry = self._queue.get(timeout=max(patience, 0.0))
            while entry is not None:
                entries.append(entry)
                size += entry.cost
                if size >= GROUP_BYTES:
                    return entries, True
                entry = self._queue.get_nowait()
        except queue.Empty:
            return entries, True
        return entries, False

    def _write(self, entries: list[Entry]) -> Group:
        started = time.monotonic()
        group = Group(entries)
        waiting: dict[Slot, list[bytes]] = {}
        for entry in entries:
            if entry.lines and not entry.slot.ended:
                waiting.setdefault(entry.slot, []).extend(entry.lines)
        made, size, count = False, 0, 0
        for slot, lines in waiting.items():
            try:
                if slot.file is None:
                    slot.file = JournalFile.create(slot.path, slot.session)
                    made = True
                size += slot.file.write(lines)
                count += len(lines)
            except OSError as error:
                self._fail(slot, error, group)
        if self._fsync:
            self._sync([slot for slot in waiting if not slot.ended], group, names=made)
        for entry in entries:
            self._finish(entry)
        group.activity = Activity(
            lines=count,
            bytes=size,
            files=len(waiting),
            seconds=time.monotonic() - started,
            failures=tuple(group.failures.values()),
        )
        return group

    def _sync(self, slots: list[Slot], group: Group, *, names: bool) -> None:
        for slot in slots:
            try:
                assert slot.file is not None
                slot.file.sync()
            except OSError as error:
                self._fail(slot, error, group)
        if names:
            try:
                self._directory.sync()
            except OSError as error:
                for slot in slots:
                    if not slot.ended:
                        self._fail(slot, error, group)

    def _fail(self, slot: Slot, error: OSError, group: Group) -> None:
        if isinstance(error, FileExistsError):
            reason = "there is a journal of this session already"
        else:
            reason = f"cannot write to {self._directory.path}: {error.strerror or error}"
        group.failures[slot] = reason
        self._end(slot, End.DELETE)

    def _finish(self, entry: Entry) -> None:
        slot = entry.slot
        if entry.end is not None:
            self._end(slot, entry.end)
        elif slot.file is not None:
            self._open.add(slot)

    def _end(self, slot: Slot, end: End) -> None:
        file, slot.file, slot.ended = slot.file, None, True
        self._open.discard(slot)
        if file is None:
            return
        if end is End.DELETE:
            file.discard()
        else:
            file.close()

    def _touch_all(self) -> Group:
        group = Group([])
        for slot in list(self._open):
            try:
                assert slot.file is not None
                slot.file.touch()
            except OSError as error:
                self._fail(slot, error, group)
        group.activity = Activity(failures=tuple(group.failures.values()))
        return group

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more
