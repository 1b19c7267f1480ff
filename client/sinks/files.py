"""Files that are whole or clearly partial, survive a kill at any byte, and can be gone on with at any sample.

A file is written as `NAME.part` and gets its name when it is complete: after a failure nothing there looks whole.
Every write reaches the kernel at once, and the header is renewed as the file grows, so what a killed program leaves
plays; at worst a stretch without a name follows, which nothing points at.
"""

import asyncio
import fcntl
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client.disk import expect_name, open_regular, to_disk
from client.errors import OutputFailed
from client.items import Audio
from client.sinks.base import CannotContinue, Container
from client.sinks.encodings import encoding_for, kept_in

HEADER_EVERY: Final = 262_144  # bytes (5 s of PCM at 24 kHz) after which the header is renewed; before, as it doubles
_PERMISSIONS: Final = 0o666  # less the umask, as for any new file


@dataclass(frozen=True, slots=True)
class Kept:
    """What a file holds. `sample_rate` None: it does not say (bare samples)."""

    path: Path
    sample_rate: int | None
    samples: int


def partial_name(path: Path) -> Path:
    """What a file is called until it is complete."""
    return path.with_name(path.name + ".part")


def kept_audio(path: Path, container: Container) -> Kept | None:
    """How much of the timeline `NAME.part`, or else `NAME`, holds. None: there is neither. Raises OutputFailed."""
    for candidate in (partial_name(path), path):
        try:
            with open_regular(candidate) as file:
                return Kept(candidate, *kept_in(file, container))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise OutputFailed(f"cannot read {candidate}: {error.strerror or error}") from error
        except CannotContinue as error:
            raise OutputFailed(f"{candidate} {error}") from error
    return None


class Claim:
    """Keeps other runs from a file that is to be gone on with, from now to `release`, whatever sinks write to it."""

    def __init__(self, path: Path) -> None:
        """`NAME.part`, or else `NAME`; of nothing where there is neither. Raises OutputFailed where another has it."""
        self._descriptor: int | None = None
        for candidate in (partial_name(path), path):
            if candidate.is_file():
                try:
                    self._descriptor = os.open(candidate, os.O_RDWR)
                except OSError as error:
                    raise OutputFailed(f"cannot write {candidate}: {error.strerror or error}") from error
                _lock(self._descriptor, candidate)
                return

    def duplicate(self, path: Path) -> int | None:
        """A descriptor of this file, which shares the lock. None: that one is not claimed."""
        if self._descriptor is None:
            return None
        try:
            is_same = os.path.samestat(os.fstat(self._descriptor), path.stat())
        except FileNotFoundError:
            return None
        return os.dup(self._descriptor) if is_same else None

    def release(self) -> None:
        """Others may have it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    """Raises OutputFailed, and closes it, where another run has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise OutputFailed(f"cannot write {path}: another run is writing it") from None
    except OSError:
        pass  # some network file systems know no locks


class FileSink:
    """A file in one of the containers.

    `at_sample`: go on with the file of an earlier run (`NAME.part`, or `NAME` after Ctrl-C), which is cut there first.
    The audio and the length given to this sink then count from there; `position` counts from the file's start.
    `bitrate`: of Opus, in bit/s, where this program has to encode: after such a cut, or where a session was replaced.
    `claim`: of the same file, taken earlier.
    """

    def __init__(
        self,
        path: Path,
        container: Container,
        *,
        at_sample: int | None = None,
        bitrate: int | None = None,
        claim: Claim | None = None,
    ) -> None:
        self._claim = claim
        self.path = path
        self.partial = partial_name(path)
        self.at_sample = at_sample or 0
        self._encoding = encoding_for(container, bitrate=bitrate)
        self._descriptor: int | None = None
        self._end = 0  # bytes that belong to the file
        self._header = b""  # true for that many
        self._position = 0
        self._provisional = b""  # the last bytes, if the next ones take their place
        self._broken = True  # not begun, or a write failed: what the encoding gave out is not all there
        self._header_at = 0  # the size when the header was written last

    @property
    def position(self) -> int:
        """Samples of the file's timeline that outlive this program, however it ends. After `sync`, the machine too."""
        return self._position

    async def begin(self, sample_rate: int, pre_skip: int) -> None:
        """Opens the file. An older one of that name goes, so that it is not taken for the new one."""
        try:
            if self.at_sample:
                await self._reopen(sample_rate, pre_skip)
            else:
                self._open(self.partial, create=True)
                self._empty()
                self._append(self._encoding.head(sample_rate, pre_skip))
                self.path.unlink(missing_ok=True)
            self._broken = False
        except OSError as error:
            raise self._failed(error) from error

    async def write(self, audio: Audio) -> None:
        """Appends."""
        try:
            self._append(self._encoding.body(audio))
            if self._end - self._header_at >= min(HEADER_EVERY, self._header_at):
                self._write_header()
        except OSError as error:
            raise self._failed(error) from error

    async def sync(self) -> int:
        """Puts all that can be on the disk there; returns `position`. Raises OutputFailed."""
        assert self._descriptor is not None
        try:
            self._append(self._encoding.flush(), provisional=self._encoding.replaces_flushed)
            self._write_header()
            expect_name(self._descriptor, self.partial)
            await asyncio.to_thread(to_disk, os.dup(self._descriptor))
        except OSError as error:
            raise self._failed(error) from error
        return self._position

    async def finish(self, samples: int) -> None:
        """Completes the container and gives the file its name."""
        self._close(samples)
        try:
            self.partial.replace(self.path)
        except OSError as error:
            raise self._failed(error) from error

    async def leave(self, samples: int) -> None:
        """As `finish`, but more is to follow, by another sink: the file keeps its partial name."""
        self._close(samples)

    async def interrupt(self) -> None:
        """The file holds what was heard, and is valid."""
        if self._descriptor is None:
            return
        self._close(None)
        with suppress(OSError):
            self.partial.replace(self.path)

    async def abandon(self) -> None:
        """Leaves NAME.part, playable as far as it goes; nothing where no file was begun."""
        with suppress(OutputFailed):
            self._close(None)

    # ---- inside ----

    async def _reopen(self, sample_rate: int, pre_skip: int) -> None:
        source = self.partial if self.partial.exists() else self.path
        descriptor = self._open(source, create=False)
        try:
            cut, more = await asyncio.to_thread(self._resume, os.dup(descriptor), sample_rate, pre_skip)
        except CannotContinue as error:
            raise OutputFailed(f"cannot go on with {source}: it {error}") from error
        if source != self.partial:
            source.replace(self.partial)
        self._end = os.fstat(descriptor).st_size
        self._put(cut, more)
        self._provisional = more if self._encoding.replaces_flushed else b""
        self._write_header()

    def _resume(self, descriptor: int, sample_rate: int, pre_skip: int) -> tuple[int, bytes]:
        """Reads some seconds where a file is many hours long."""
        with open(descriptor, "rb") as file:
            return self._encoding.resume(file, sample_rate, pre_skip, self.at_sample)

    def _open(self, path: Path, *, create: bool) -> int:
        descriptor = self._claim.duplicate(path) if self._claim is not None else None
        if descriptor is None:
            descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), _PERMISSIONS)
        _lock(descriptor, path)
        self._descriptor = descriptor
        return descriptor

    def _empty(self) -> None:
        assert self._descriptor is not None
        if stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            os.ftruncate(self._descriptor, 0)

    def _append(self, data: bytes, *, provisional: bool = False) -> None:
        """Writes all of it in place of what is provisional, or leaves the file as it was."""
        if not data:
            self._header = self._encoding.header()
            return
        assert self._descriptor is not None
        solid = self._end - len(self._provisional)
        try:
            self._put(solid, data)
        except OSError:
            self._broken = True
            with suppress(OSError):
                os.pwrite(self._descriptor, self._provisional, solid)
                os.ftruncate(self._descriptor, self._end)
            raise
        self._provisional = data if provisional else b""

    def _put(self, at: int, data: bytes) -> None:
        """Makes this the file's end. What was there before goes only when it is written."""
        assert self._descriptor is not None
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, at)
            view, at = view[written:], at + written
        if at < self._end:
            os.ftruncate(self._descriptor, at)
        self._end, self._header, self._position = at, self._encoding.header(), self._encoding.samples

    def _write_header(self) -> None:
        """Lies inside the file, on its first sector: needs no room, and is there as a whole or not at all."""
        assert self._descriptor is not None
        os.pwrite(self._descriptor, self._header, 0)
        self._header_at = self._end

    def _close(self, samples: int | None) -> None:
        if self._descriptor is None:
            return
        try:
            try:
                if not self._broken:
                    self._append(self._encoding.tail(samples))
            finally:
                self._write_header()
            expect_name(self._descriptor, self.partial)
        except OSError as error:
            raise self._failed(error) from error
        finally:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)

    def _failed(self, error: OSError) -> OutputFailed:
        return OutputFailed(f"cannot write {self.path}: {error.strerror or error}")
