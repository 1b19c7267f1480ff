"""The directory of dead letters: a few files that are written in turn, by one process or by several.

`letters.jsonl` is written to. When it is full it becomes `letters.1.jsonl`, that one `letters.2.jsonl`, and so on; the
oldest is removed. Whoever writes holds the lock on `lock`; the kernel drops it with the process. Readers take no lock:
files only ever move to higher numbers, so who opens them by rising number misses none.

A line that was cut short (the process died in the middle, the disk is full) can only be the last one: who writes next
cuts it off first.
"""

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from server.jobs.letters import Entry
from server.jobs.reading import decode

FILES: Final = 4
_NAMES: Final = ("letters.jsonl", *(f"letters.{number}.jsonl" for number in range(1, FILES)))
_LOCK: Final = "lock"
_BLOCK: Final = 65_536
# No link is followed, no pipe waited for, and nothing handed to programs that we start.
_SAFE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FolderError(Exception):
    """The directory cannot be used; the text names it and says why."""


@dataclass(slots=True)
class Damage:
    """What could not be read. `lines`: by the file's name, how many of it; `files`: by name, why not."""

    lines: dict[str, int] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


class LetterFolder:
    """A directory of dead letters, at most `max_bytes` of them, the newest. Making it touches no file. What is here
    blocks.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._file_bytes = max_bytes // FILES

    @property
    def max_line_bytes(self) -> int:
        """No line may be longer."""
        return self._file_bytes

    def open(self) -> None:
        """Make the directory where it is missing, with mode 0700, and show that it takes files. Raises FolderError."""
        try:
            _make_private(self.path)
            with tempfile.TemporaryFile(dir=self.path):
                pass
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise FolderError(f"{self.path} cannot be written: {_reason(error)}") from error

    def append(self, lines: Sequence[bytes]) -> tuple[int, OSError | None]:
        """Write lines, each whole or not at all. How many were written, and why the next one was not."""
        written = 0
        try:
            _make_private(self.path)
            with self._locked():
                for line in lines:
                    self._append(line)
                    written += 1
        except OSError as error:
            return written, error
        return written, None

    def mark(self, line: bytes) -> None:
        """Append a line to what is there, whatever the bound: for whoever does not know the writers' bound. Raises
        OSError.
        """
        with self._locked(), _opened(self._file(0), os.O_RDWR | os.O_APPEND) as descriptor:
            _write(descriptor, line, _cut_torn(descriptor))

    def read(self) -> Iterator[Entry]:
        """All entries, the oldest first, as of now. What cannot be read is left out. Where a writer begins two files
        anew while they are opened, those of one file may come in another's place; none is missing.
        """
        return self.read_noting(Damage())

    def read_noting(self, damage: Damage) -> Iterator[Entry]:
        """As `read`; what cannot be read is added to `damage`, but for a last line that is not complete."""
        with ExitStack() as stack:
            files: list[tuple[str, BinaryIO]] = []
            seen: set[tuple[int, int]] = set()
            for name in _NAMES:  # by rising number, see the module text
                try:
                    file = stack.enter_context(_open_to_read(self.path / name))
                except FileNotFoundError:
                    continue
                except OSError as error:
                    damage.files[name] = _reason(error)
                    continue
                found = os.fstat(file.fileno())
                if (found.st_dev, found.st_ino) not in seen:
                    seen.add((found.st_dev, found.st_ino))
                    files.append((name, file))
            for name, file in reversed(files):
                try:
                    yield from self._entries(name, file, damage)
                except OSError as error:
                    damage.files[name] = _reason(error)

    def _entries(self, name: str, file: BinaryIO, damage: Damage) -> Iterator[Entry]:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                entry = decode(line)
            except ValueError:
                damage.lines[name] = damage.lines.get(name, 0) + 1
            else:
                yield entry

    def _append(self, line: bytes) -> None:
        """One line to the newest file, which is begun anew where it is full. The lock is held."""
        with _opened(self._file(0), os.O_RDWR | os.O_APPEND | os.O_CREAT) as descriptor:
            end = _cut_torn(descriptor)
            if end == 0 or end + len(line) <= self._file_bytes:
                _write(descriptor, line, end)
                return
        for number in range(FILES - 1, 0, -1):
            try:
                self._file(number - 1).replace(self._file(number))
            except FileNotFoundError:
                continue
        with _opened(self._file(0), os.O_RDWR | os.O_APPEND | os.O_CREAT) as descriptor:
            _write(descriptor, line, _cut_torn(descriptor))

    def _file(self, number: int) -> Path:
        return self.path / _NAMES[number]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with _opened(self.path / _LOCK, os.O_RDWR | os.O_CREAT) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield


def _make_private(path: Path) -> None:
    """Make a directory and those it lies in, as far as they are missing, with mode 0700 whatever the umask says."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        if path == path.parent:
            break
        path = path.parent
    for each in reversed(missing):
        try:
            each.mkdir(mode=0o700)
            each.chmod(0o700)
        except FileExistsError as error:
            if not each.is_dir():  # else another process was quicker
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(each)) from error


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor of a plain file that is for its owner alone. Raises OSError."""
    descriptor = os.open(path, flags | _SAFE, 0o600)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is no plain file", str(path))
        if stat.S_IMODE(found.st_mode) != 0o600:  # an odd umask, or somebody copied it
            os.fchmod(descriptor, 0o600)
        yield descriptor
    finally:
        os.close(descriptor)


def _open_to_read(path: Path) -> BinaryIO:
    descriptor = os.open(path, os.O_RDONLY | _SAFE)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is no plain file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _write(descriptor: int, line: bytes, end: int) -> None:
    """Append a line to a file that ends at `end`; where that fails, the file ends there still. Raises OSError."""
    rest = memoryview(line)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except OSError:
        try:
            os.ftruncate(descriptor, end)
        except OSError:
            pass  # whoever writes next cuts it off
        raise


def _cut_torn(descriptor: int) -> int:
    """Cut off a last line that was not written to its end; where the file ends then."""
    size = end = os.fstat(descriptor).st_size
    while end:
        begin = max(0, end - _BLOCK)
        found = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if found >= 0:
            end = begin + found + 1
            break
        end = begin
    if end < size:
        os.ftruncate(descriptor, end)
    return end


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
