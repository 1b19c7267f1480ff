"""The store in a directory, seen from the event loop. Nothing here blocks it but the constructor.

Bounds: what waits for the disk (64 MiB, 8 MiB of one session), how long the disk may take (5 s), and how many journals
are owned (each holds a descriptor: half of what the process may open, so that as many sockets fit). Where a bound is
reached, journals fail and say why; the sessions go on without protection against a restart.

Without `fsync` lines survive the death of the process, however it dies, but not a loss of power.
"""

import asyncio
import resource
import threading
import time
from typing import Final

import structlog

from server.background import in_daemon_thread
from server.store.base import Activity, Claim, Observer
from server.store.file_journal import CLOSED, FileJournal
from server.store.journal_file import Directory, JournalFile, OwnedError, remove_old
from server.store.journal_format import Contents, OtherVersionError, UnreadableError
from server.store.writer import End, Entry, Group, Slot, Writer

log = structlog.get_logger(__name__)

MAX_WAITING_BYTES: Final = 64 * 1024 * 1024
MAX_WAITING_BYTES_OF_ONE: Final = 8 * 1024 * 1024
STALL_S: Final = 5.0
"""A disk that answers nothing for this long is given up until it answers again."""
CLAIM_TIMEOUT_S: Final = 5.0
RELEASE_S: Final = 0.2
"""The sockets of a process that is killed are gone some moments before its locks: a client may be here that soon."""
_CLAIMS_AT_ONCE: Final = 2  # each may hold a file of the greatest size in memory
CLOSE_TIMEOUT_S: Final = 2.0
_WARN_EVERY_S: Final = 60.0
_LOOKS_PER_TTL: Final = 4
FAILING: Final = "sessions are not kept any more and would not survive a restart"


class FileStore:
    """One append-only file per session in a directory that several processes may share.

    Raises:
        StoreError: the directory cannot be used.
    """

    keeps = True

    def __init__(self, place: str, *, ttl_s: float, fsync: bool = False, observer: Observer | None = None) -> None:
        self._directory = Directory(place)
        self._ttl_s = ttl_s
        self._fsync = fsync
        self._observer = observer
        self._writer: Writer | None = None
        self._journals: dict[Slot, FileJournal] = {}
        self._claims = asyncio.Semaphore(_CLAIMS_AT_ONCE)
        self._queued = self._queued_bytes = 0
        self._stall: asyncio.TimerHandle | None = None
        self._late = self._stalled = False
        self._warned: dict[str, float] = {}
        self._closing = threading.Event()
        threading.Thread(target=self._sweep, name="journal sweeper", daemon=True).start()

    def create(self, session: str) -> FileJournal:
        """See `SessionStore.create`."""
        return self._add(Slot(session, self._directory.path_of(session)), self._no_more())

    async def claim(self, session: str) -> Claim | None:
        """See `SessionStore.claim`. Takes twice `2 * CLAIM_TIMEOUT_S` at most, then it is None."""
        try:
            return await self._claim_once(session)
        except OwnedError:
            await asyncio.sleep(RELEASE_S)
        try:
            return await self._claim_once(session)
        except OwnedError:
            return None

    async def _claim_once(self, session: str) -> Claim | None:
        """Raises OwnedError."""
        if self._closing.is_set():
            return None
        try:
            async with asyncio.timeout(CLAIM_TIMEOUT_S):
                await self._claims.acquire()
        except TimeoutError:
            self._warn("too many sessions wait to be claimed")
            return None
        claiming = asyncio.ensure_future(self._claim(session))  # releases what was acquired
        try:
            await asyncio.wait({claiming}, timeout=CLAIM_TIMEOUT_S)
        except asyncio.CancelledError:
            claiming.add_done_callback(_give_back)
            raise
        if not claiming.done():
            claiming.add_done_callback(_give_back)
            self._warn("reading a journal takes too long")
            return None
        result = claiming.result()
        return None if result is None else result[1]

    async def close(self) -> None:
        """See `SessionStore.close`."""
        if self._closing.is_set():
            return
        self._closing.set()
        for journal in self._journals.values():
            if journal.failed is None:
                journal.end(End.KEEP)
        if self._writer is not None and not await self._writer.stop(CLOSE_TIMEOUT_S):
            self._warn("the disk is too slow: sessions were not kept", bytes=self._queued_bytes)
            for journal in self._journals.values():
                journal.answer()
        self._unwatch()

    # Called by journals

    def no_room(self, more: int, more_of_one: int) -> str | None:
        """Why nothing more can wait."""
        if self._stalled:
            return "the disk does not answer"
        if self._queued_bytes + more > MAX_WAITING_BYTES or more_of_one > MAX_WAITING_BYTES_OF_ONE:
            return "the disk is too slow: too much waits to be written"
        return None

    def fail(self, journal: FileJournal, reason: str) -> None:
        """A journal fails for a reason that was found here."""
        self._warn(FAILING, reason=reason)
        journal.give_up(reason)
        if self._observer is not None:
            self._observer(Activity(failures=(reason,)))

    def put(self, entry: Entry) -> None:
        """On to the writer."""
        self._queued += 1
        self._queued_bytes += entry.cost
        self._running_writer().put(entry)
        if self._stall is None:
            self._watch()

    # Inside

    def _add(self, slot: Slot, failed: str | None) -> FileJournal:
        journal = FileJournal(self, slot, failed)
        if failed is None:
            self._journals[slot] = journal
        return journal

    def _no_more(self) -> str | None:
        """Why no more journals can be owned."""
        if self._closing.is_set():
            return CLOSED
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit != resource.RLIM_INFINITY and len(self._journals) >= limit // 2:
            reason = f"{len(self._journals)} journals are open, half of the {limit} files that the process may open"
            self._warn("sessions are not kept", reason=reason)
            return reason
        return None

    def _running_writer(self) -> Writer:
        if self._writer is None:
            loop = asyncio.get_running_loop()
            every = self._ttl_s / _LOOKS_PER_TTL
            self._writer = Writer(self._directory, loop, self._tell, fsync=self._fsync, touch_every_s=every)
        return self._writer

    def _tell(self, group: Group) -> None:
        """The writer is done with a group."""
        self._late = self._stalled = False
        self._unwatch()
        for slot, reason in group.failures.items():
            self._warn(FAILING, reason=reason)
            journal = self._journals.get(slot)
            if journal is not None and journal.failed is None:
                journal.give_up(reason)
        for entry in group.entries:
            self._queued -= 1
            self._queued_bytes -= entry.cost
            journal = self._journals[entry.slot]
            journal.took()
            if journal.is_idle and journal.failed is not None:
                del self._journals[entry.slot]
        if self._queued and self._stall is None and not self._closing.is_set():
            self._watch()
        if self._observer is not None and (group.activity.lines or group.activity.failures):
            self._observer(group.activity)

    def _watch(self) -> None:
        self._stall = asyncio.get_running_loop().call_later(STALL_S / 2, self._look)

    def _unwatch(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _look(self) -> None:
        """The writer told nothing for a while. Twice in a row: a process that was stopped and goes on is given its
        chance.
        """
        self._watch()  # before anything fails: that gives the writer more to do, and would set another timer
        if self._late:
            self._stalled = True
            for journal in self._journals.values():
                if journal.answer() and journal.failed is None:
                    self.fail(journal, "the disk does not answer")
        self._late = True

    async def _claim(self, session: str) -> tuple[FileJournal, Claim] | None:
        path = self._directory.path_of(session)
        try:
            if self._closing.is_set():
                return None
            no_more = self._no_more()
            taken = await in_daemon_thread(lambda: self._take_over(session, no_more))
        except OtherVersionError as error:
            self._warn("journals of another version are not read", every_s=float("inf"), reason=str(error))
            return None
        except (OSError, UnreadableError) as error:
            self._warn("a journal cannot be claimed", file=path.name, reason=str(error))
            return None
        finally:
            self._claims.release()
        if taken is None:
            return None
        file, contents, failed = taken
        if self._closing.is_set():
            if failed is None:
                file.close()
            return None
        if contents.damaged:
            log.warning("a journal is damaged", file=path.name, lines_read=len(contents.lines))
        if failed is not None:
            self._warn(FAILING, reason=failed)
        journal = self._add(Slot(session, path, None if failed else file), failed)
        journal.append(())  # so that the writer knows it
        return journal, Claim(contents.lines, journal, contents.epoch + 1, contents.damaged)

    def _take_over(self, session: str, no_more: str | None) -> tuple[JournalFile, Contents, str | None] | None:
        """In a thread: the file (locked), what is in it, and why it cannot be gone on with (then it is removed)."""
        taken = JournalFile.take_over(self._directory, session, self._ttl_s)
        if taken is None:
            return None
        file, contents = taken
        try:
            if no_more is None:
                file.write_epoch(contents.epoch + 1)
                if self._fsync:
                    file.sync()
        except OSError as error:
            no_more = f"cannot write to {self._directory.path}: {error.strerror or error}"
        if no_more is not None:
            file.discard()
        return file, contents, no_more

    def _sweep(self) -> None:
        """In a thread of its own: at the start, then four times in the time to live."""
        while True:
            try:
                removed, problem = remove_old(self._directory, self._ttl_s)
            except OSError as error:
                removed, problem = 0, str(error.strerror)
            if removed:
                log.info("old journals removed", count=removed)
            if problem is not None:
                self._warn("old journals cannot be removed", directory=str(self._directory.path), reason=problem)
            if self._closing.wait(self._ttl_s / _LOOKS_PER_TTL):
                return

    def _warn(self, event: str, *, every_s: float = _WARN_EVERY_S, **values: object) -> None:
        """Log it, but not for each of a thousand sessions. The events are few and fixed."""
        now = time.monotonic()
        if now - self._warned.get(event, float("-inf")) >= every_s:
            self._warned[event] = now
            log.warning(event, **values)


def _give_back(claiming: asyncio.Task[tuple[FileJournal, Claim] | None]) -> None:
    """Nobody waits for this claim any more."""
    if claiming.cancelled() or claiming.exception() is not None:
        return
    if (result := claiming.result()) is not None and result[0].failed is None:
        result[0].end(End.KEEP)
