"""One session's file in the directory of a store: made, locked, taken over, written, removed. All of it blocks.

The lock (`flock`, exclusive, never waited for) says that a live process owns the session; the kernel drops it with the
process. It lies on the file itself, so it costs one descriptor per session owned. A child that is forked without exec
would hold it too: worker processes have to be spawned. On a network file system `flock` has to be supported.
"""

import errno
import fcntl
import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from server.store import journal_format
from server.store.base import StoreError
from server.store.journal_format import Contents, UnreadableError

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""A journal ends where it gets bigger, and a bigger file is not read: what is claimed is held in memory."""
_SUFFIX: Final = ".journal"
_FILE_NAME: Final = re.compile(r"[0-9a-f]{64}" + re.escape(_SUFFIX))
# No link is followed, no pipe waited for, and nothing handed to programs that we start.
_OPEN: Final = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FULL_SYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: its fsync leaves data in the drive's cache


def sync(descriptor: int) -> None:
    """Wait until the file or directory is on the medium."""
    if _FULL_SYNC is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, _FULL_SYNC)


class Directory:
    """The directory of a store: made where it is missing (mode 0700), and shown to take files.

    Raises:
        StoreError: it cannot be used.
    """

    def __init__(self, place: str) -> None:
        try:
            self.path = Path(place).expanduser().absolute()
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path) as probe:
                self.owner = os.fstat(probe.fileno()).st_uid
                """Of our files; not always this process's user on a network file system."""
        except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: no home for a `~`
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise StoreError(f"the session store cannot write to {place}: {reason}") from error

    def path_of(self, session: str) -> Path:
        """The file of a session: a digest, because an id that a client sends must not choose a path."""
        return self.path / (hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest() + _SUFFIX)

    def sync(self) -> None:
        """Wait until the names of new files are on the medium."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sync(descriptor)
        finally:
            os.close(descriptor)

    def old_files(self, before: float) -> Iterator[Path]:
        """Journals last touched before this time. A date in the future is set to now, or it would be kept for ever."""
        with os.scandir(self.path) as entries:
            for entry in entries:
                if not _FILE_NAME.fullmatch(entry.name):
                    continue
                try:
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode) and found.st_uid == self.owner:
                        if found.st_mtime < before:
                            yield Path(entry.path)
                        elif found.st_mtime > time.time() + 1:
                            os.utime(entry.path, follow_symlinks=False)
                except OSError:  # removed meanwhile
                    continue


class OwnedError(Exception):
    """A living process owns the journal, or one that is dying."""


class JournalFile:
    """A file that this process has open and locked."""

    def __init__(self, path: Path, descriptor: int, *, size: int, chain: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._size = size
        self._chain = chain

    @classmethod
    def create(cls, path: Path, session: str) -> "JournalFile":
        """A new file with its header. Raises OSError: FileExistsError where there is one.

        BlockingIOError means that somebody tried to claim it in the instant before it was locked. That somebody gets
        nothing, as nothing is in it, and this session fails alone: waiting would let others hold up every session.
        """
        descriptor = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
        made = cls(path, descriptor, size=0, chain=journal_format.first_chain(session))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            made._append(journal_format.HEADER)
        except OSError:
            made.discard()
            raise
        return made

    @classmethod
    def take_over(cls, directory: Directory, session: str, ttl_s: float) -> tuple["JournalFile", Contents] | None:
        """Lock and read a session's file. None: not there, past its time, or empty.

        Raises OwnedError where another process has it, UnreadableError and OSError where a file is there but not one to
        go on with.
        """
        path = directory.path_of(session)
        try:
            descriptor = _open_and_lock(path)
        except FileNotFoundError:
            return None
        except BlockingIOError:
            raise OwnedError from None
        try:
            found = os.fstat(descriptor)
            if not _is_still(path, found):
                os.close(descriptor)
                return None
            _check(found, directory.owner)
            if found.st_mtime < time.time() - ttl_s:
                os.close(descriptor)
                return None
            contents = journal_format.read(_read_all(descriptor, found.st_size), session)
            if not contents.lines:
                os.close(descriptor)
                return None
            if contents.end < found.st_size:
                os.ftruncate(descriptor, contents.end)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, size=contents.end, chain=contents.chain), contents

    def write(self, lines: Sequence[bytes]) -> int:
        """Append lines; their bytes in the file are returned. Raises OSError."""
        data, chain = journal_format.line_records(lines, self._chain)
        self._append(data)
        self._chain = chain
        return len(data)

    def write_epoch(self, epoch: int) -> None:
        """Append that the session was claimed. Raises OSError."""
        data, self._chain = journal_format.epoch_record(epoch, self._chain)
        self._append(data)

    def _append(self, data: bytes) -> None:
        if self._size + len(data) > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"the journal got bigger than {MAX_FILE_BYTES >> 20} MiB")
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        self._size += len(data)

    def sync(self) -> None:
        """Wait until it is on the medium. Raises OSError."""
        sync(self._descriptor)

    def touch(self) -> None:
        """Show that a process owns it: the time to live starts with that process's end.

        Raises OSError, also where the file was removed. (Asking before each write would cost as much as the write.)
        """
        if os.fstat(self._descriptor).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the file was removed")
        os.utime(self._descriptor)

    def close(self) -> None:
        """Give it up for others to claim."""
        try:
            self.touch()
        except OSError:
            pass  # its time started a little earlier, then
        _shut(self._descriptor)

    def discard(self) -> None:
        """Remove it and give it up."""
        try:
            if _is_still(self._path, os.fstat(self._descriptor)):
                self._path.unlink()
        except OSError:
            try:  # a directory that takes no changes: empty, it is nothing that can be claimed
                os.ftruncate(self._descriptor, 0)
            except OSError:
                pass  # nothing can be changed here; the time to live is what remains
        _shut(self._descriptor)


def remove_old(directory: Directory, ttl_s: float) -> tuple[int, str | None]:
    """Remove the files that nobody owns and nobody touched for `ttl_s`.

    How many were removed, and why one could not be. Raises OSError where the directory cannot be read.
    """
    removed, problem = 0, None
    for path in directory.old_files(time.time() - ttl_s):
        try:
            # The lock is only tried on files too old to be claimed, so that it never gets into a claimer's way.
            descriptor = _open_and_lock(path)
        except (FileNotFoundError, BlockingIOError):
            continue
        except OSError as error:
            problem = str(error.strerror)
            continue
        try:
            found = os.fstat(descriptor)
            if found.st_mtime < time.time() - ttl_s and _is_still(path, found):
                path.unlink()
                removed += 1
        except OSError as error:
            problem = str(error.strerror)
        finally:
            os.close(descriptor)
    return removed, problem


def _open_and_lock(path: Path) -> int:
    """A descriptor with the lock. Raises BlockingIOError where another owns it, else OSError."""
    descriptor = os.open(path, _OPEN)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _shut(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        pass  # it is closed all the same; what a network file system says this late is known to no write


def _is_still(path: Path, found: os.stat_result) -> bool:
    """Whether the name still leads to the file that is open: between opening and locking it another may have come."""
    try:
        return os.path.samestat(found, path.lstat())
    except FileNotFoundError:
        return False


def _check(found: os.stat_result, owner: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UnreadableError("it is no plain file")
    if found.st_uid != owner:
        raise UnreadableError("it belongs to another user")
    if found.st_size > MAX_FILE_BYTES:
        raise UnreadableError(f"it is bigger than {MAX_FILE_BYTES >> 20} MiB")


def _read_all(descriptor: int, size: int) -> bytes:
    parts: list[bytes] = []
    done = 0
    while done < size and (part := os.pread(descriptor, size - done, done)):
        parts.append(part)
        done += len(part)
    return b"".join(parts)
