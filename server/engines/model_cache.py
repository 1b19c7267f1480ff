"""A folder of built models that several servers may share: complete entries only, one builder at a time.

An *entry* is a folder with files and a `manifest.json` naming each file's size and SHA-256. Entries appear by one
rename, so a reader sees a whole entry or none; a builder that dies leaves a temporary folder that the next one removes.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.engines.base import EngineError

MANIFEST = "manifest.json"
_TEMPORARY_PREFIX = ".building-"
_log = logging.getLogger(__name__)


class ModelCacheError(EngineError):
    """The cache folder cannot be used; the text is one line that says what to do."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A verified entry: `files` maps a file's name to its SHA-256; `facts` is whatever the builder recorded."""

    folder: Path
    files: Mapping[str, str]
    facts: Mapping[str, Any]

    def path(self, name: str) -> Path:
        """Where the entry's file `name` lies."""
        return self.folder / name


def default_model_dir(environment: Mapping[str, str]) -> Path:
    """$COSYSTREAM_MODEL_DIR, else $XDG_CACHE_HOME/cosystream, else ~/.cache/cosystream."""
    if chosen := environment.get("COSYSTREAM_MODEL_DIR"):
        return Path(chosen).expanduser()
    if cache_home := environment.get("XDG_CACHE_HOME"):
        return Path(cache_home) / "cosystream"
    home = environment.get("HOME")
    if not home:
        raise ModelCacheError("no folder for voices: HOME is not set; set COSYSTREAM_MODEL_DIR to a folder for them")
    return Path(home) / ".cache" / "cosystream"


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_entry(folder: Path, wanted: Mapping[str, Any]) -> CacheEntry | None:
    """The entry in `folder`, or None when it is missing, damaged, or its facts differ from `wanted`.

    Hashes every file: about 2 ms a megabyte without SHA instructions, so keep entries to tens of megabytes.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        files, facts = manifest["files"], manifest["facts"]
        if any(facts.get(key) != value for key, value in wanted.items()):
            return None
        for name, expected in files.items():
            path = folder / name
            if path.stat().st_size != expected["bytes"] or sha256_of(path) != expected["sha256"]:
                _log.warning("%s is damaged and will be built again", path)
                return None
        return CacheEntry(folder, {name: expected["sha256"] for name, expected in files.items()}, facts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def build_entry(folder: Path, facts: Mapping[str, Any], write_files: Callable[[Path], None]) -> CacheEntry:
    """Return the entry in `folder`, after building it if it is not there.

    `write_files(temporary_folder)` writes the files; it runs under a lock that other processes wait for, and whoever
    waited finds the entry built. Raises `ModelCacheError` when the folder cannot be written.
    """
    if entry := read_entry(folder, facts):
        return entry
    parent = folder.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with locked(parent / f".{folder.name}.lock"):
            if entry := read_entry(folder, facts):
                return entry
            _remove_leftovers(parent, folder.name)
            temporary = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY_PREFIX}{folder.name}-", dir=parent))
            try:
                write_files(temporary)
                _write_manifest(temporary, facts)
                _put_in_place(temporary, folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        place = error.filename or parent
        raise ModelCacheError(
            f"cannot write voices to {parent} ({error.strerror or error}: {place}); "
            "make it writable or choose another folder with COSYSTREAM_MODEL_DIR"
        ) from error
    entry = read_entry(folder, facts)
    if entry is None:
        raise ModelCacheError(f"{folder} changed while it was being built; remove it and start again")
    return entry


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path` between processes; the kernel drops it when its holder dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.info("waiting for another process that makes %s", path.parent)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_leftovers(parent: Path, name: str) -> None:
    for leftover in parent.glob(f"{_TEMPORARY_PREFIX}{name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _write_manifest(folder: Path, facts: Mapping[str, Any]) -> None:
    files = {p.name: {"bytes": p.stat().st_size, "sha256": sha256_of(p)} for p in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps({"facts": dict(facts), "files": files}, indent=2), "utf-8")


def _put_in_place(temporary: Path, folder: Path) -> None:
    for path in temporary.iterdir():
        path.chmod(0o644)
        _sync(path)
    temporary.chmod(0o755)  # mkdtemp makes it private; another user may serve from a shared folder
    _sync(temporary)
    if folder.exists():  # damaged or of an older format: move it out of the way first, a rename cannot replace it
        shutil.rmtree(_moved_aside(folder), ignore_errors=True)
    temporary.rename(folder)
    _sync(folder.parent)


def _moved_aside(folder: Path) -> Path:
    aside = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY_PREFIX}{folder.name}-old-", dir=folder.parent))
    return folder.rename(aside / folder.name).parent


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
