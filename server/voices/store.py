"""The folder of learnt voices, which gateways, workers and servers on one machine may share.

A voice is one file, written beside its place and linked there when it is whole, so that readers never see half of one;
it is gone when its file is. What counts and writes holds the lock on `lock`; the kernel drops it with the process. A
file that is damaged is left out with a warning, told once. What is here blocks, for some ten microseconds where
nothing else is said.
"""

import errno
import fcntl
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final, TypeVar

import structlog

from server.voices.voice_file import (
    SUFFIX,
    BadVoiceFile,
    OwnVoice,
    digest,
    encode,
    is_own,
    new_id,
    read_data,
    read_head,
)

T = TypeVar("T")
log = structlog.get_logger(__name__)

_LOCK: Final = "lock"
_NEW: Final = ".new-"
_LEFT_BEHIND_S: Final = 3600.0  # a file that is still being written after that has no writer any more
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# No link is followed, no pipe waited for, and nothing handed to programs that we start.
_SAFE: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class VoicesFailed(Exception):
    """The folder cannot be used; the text names it and says why. `full`: there is no room left."""

    def __init__(self, message: str, *, full: bool = False) -> None:
        super().__init__(message)
        self.full = full


class TooManyVoices(Exception):
    """The principal has as many voices as it may."""


class VoiceStore:
    """See the module text. `path` None: there is no folder, and no voice. Making it touches no file. Any thread may use
    it.
    """

    def __init__(self, path: Path | None, per_principal: int = 100) -> None:
        """`per_principal`: voices that one of them may have."""
        self.path = path
        self.per_principal = per_principal
        self._told: dict[str, tuple[int, int]] = {}  # damaged files that were told, by name; dropped with the file
        self._found: set[str] = set()  # since `take_found`; bounded by the voices there were
        self._lock = threading.Lock()  # of both

    def open(self) -> None:
        """Make the folder where it is missing, for its owner alone, and show that it takes files. Removes what writers
        that died left behind. Raises VoicesFailed.
        """
        if self.path is None:
            return
        try:
            _make(self.path)
            with tempfile.TemporaryFile(dir=self.path):
                pass
            with self._locked(self.path):
                _clean_up(self.path)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            raise _failed(self.path, "written", error) from error

    # ---- one voice ----

    def may_use(self, principal: str, voice: str) -> bool:
        """Whether there is such a voice and it is this principal's."""
        return self.find(voice, principal) is not None

    def find(self, voice: str, owner: str) -> OwnVoice | None:
        """The description of one of `owner`'s voices."""
        found = self._look(voice)
        return found if found is not None and found.owner == owner else None

    def read(self, voice: str) -> bytes | None:
        """What the engine made of it, whosever it is; None where there is none (any more) or it is damaged."""
        return self._taken(voice, lambda file, size: read_data(file, read_head(file, size)))

    def _look(self, voice: str) -> OwnVoice | None:
        def head(file: BinaryIO, size: int) -> OwnVoice:
            found = read_head(file, size)
            if found.id != voice:
                raise BadVoiceFile("it is another voice's")
            return found

        return self._taken(voice, head)

    def _taken(self, voice: str, take: Callable[[BinaryIO, int], T]) -> T | None:
        """What `take` makes of the voice's file and its length."""
        path = self._file_of(voice)
        if path is None:
            return None
        try:
            with _opened(path) as (file, size):
                taken = take(file, size)
        except FileNotFoundError:
            return None
        except (OSError, BadVoiceFile) as error:
            self._tell(path, error)
            return None
        with self._lock:
            self._found.add(voice)
        return taken

    # ---- all of them ----

    def ids(self) -> frozenset[str]:
        """Those of all voices, damaged ones included."""
        return frozenset(path.stem for path in self._files())

    def take_found(self) -> set[str]:
        """Whatever was found here since it was asked last: voices that may be gone again before anybody listed them."""
        with self._lock:
            found, self._found = self._found, set()
            return found

    def of(self, owner: str, kind: str) -> list[OwnVoice]:
        """Somebody's voices that engines of this kind understand, the oldest first."""
        return [voice for voice in self._of(owner) if voice.kind == kind]

    def _of(self, owner: str) -> list[OwnVoice]:
        found = [voice for voice in map(self._look, self.ids()) if voice is not None and voice.owner == owner]
        return sorted(found, key=lambda voice: (voice.created, voice.id))

    def _files(self) -> list[Path]:
        if self.path is None:
            return []
        try:
            with os.scandir(self.path) as entries:
                names = [entry.name for entry in entries]
        except FileNotFoundError:
            return []
        except OSError as error:
            log.warning("the folder of voices cannot be read", reason=error.strerror, path=str(self.path))
            return []
        return [self.path / name for name in names if name.endswith(SUFFIX) and is_own(name.removesuffix(SUFFIX))]

    # ---- changes ----

    def check_room(self, owner: str) -> None:
        """Raises TooManyVoices where `owner` may have no further one, and VoicesFailed where there is no folder."""
        if self.path is None:
            raise VoicesFailed("there is no folder of voices")
        if len(self._of(owner)) >= self.per_principal:
            raise TooManyVoices(f"there are {self.per_principal} voices already, the most that you may have")

    def add(self, *, name: str, owner: str, text: str, kind: str, fingerprint: str, data: bytes) -> OwnVoice:
        """Keep a voice; it is on the disk when this returns. An empty name becomes its id. Raises TooManyVoices,
        VoicesFailed and ValueError (see `encode`).
        """
        if self.path is None:
            raise VoicesFailed("there is no folder of voices")
        made = new_id()
        created = datetime.now(UTC).isoformat(timespec="milliseconds")
        voice = OwnVoice(made, name or made, owner, text, created, kind, fingerprint, digest(data))
        whole = encode(voice, data)
        try:
            _make(self.path)
            with self._locked(self.path):
                _clean_up(self.path)
                self.check_room(owner)
                _write(self.path, made + SUFFIX, whole)
        except OSError as error:
            raise _failed(self.path, "written", error) from error
        return voice

    def remove(self, voice: str, owner: str) -> bool:
        """Delete one of `owner`'s voices; whether there was one. Raises VoicesFailed."""
        path = self._file_of(voice)
        if path is None or self.path is None or self.find(voice, owner) is None:
            return False
        try:
            path.unlink()
            _sync(self.path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _failed(self.path, "written", error) from error
        return True

    # ---- files ----

    def _file_of(self, voice: str) -> Path | None:
        return self.path / (voice + SUFFIX) if self.path is not None and is_own(voice) else None

    def _tell(self, path: Path, error: Exception) -> None:
        """Warn of a damaged file, once for each state of it."""
        try:
            found = path.lstat()
            state = (found.st_mtime_ns, found.st_size)
        except OSError:
            return  # it is gone
        with self._lock:
            told, self._told[path.name] = self._told.get(path.name), state
            if len(self._told) > len(names := {each.name for each in self._files()}):
                self._told = {name: known for name, known in self._told.items() if name in names}
        if told != state:
            log.warning("a voice cannot be read and is left out", file=path.name, reason=_reason(error))

    @contextmanager
    def _locked(self, path: Path) -> Iterator[None]:
        descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | _SAFE, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _make(path: Path) -> None:
    """The folder, with mode 0700 where it is new."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError as error:  # as something else
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from error


def _clean_up(folder: Path) -> None:
    """Remove what writers that died left behind. The lock is held."""
    for left in folder.glob(f"{_NEW}*"):
        if time.time() - left.lstat().st_mtime > _LEFT_BEHIND_S:
            left.unlink(missing_ok=True)


def _write(folder: Path, name: str, whole: bytes) -> None:
    """A file that is there as a whole or not at all, for its owner alone. Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=_NEW)  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(whole)
            file.flush()
            os.fsync(handle)
        os.link(temporary, folder / name)  # never in place of another one
    finally:
        Path(temporary).unlink(missing_ok=True)
    _sync(folder)


def _sync(folder: Path) -> None:
    """What was linked and unlinked survives a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A plain file to read, and its size. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | _SAFE)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "is no plain file", str(path))
        yield file, found.st_size


def _failed(path: Path, what: str, error: Exception) -> VoicesFailed:
    full = isinstance(error, OSError) and error.errno in _NO_ROOM
    return VoicesFailed(f"{path} cannot be {what}: {_reason(error)}", full=full)


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
