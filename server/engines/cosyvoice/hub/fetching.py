"""Bringing a model's files into a folder: one process at a time, what is there already is kept, all are checked.

A folder is complete when it has a list of its files (`.fetched.json`), which is written last.
"""

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from server.engines.cosyvoice.folder import needed_files
from server.engines.cosyvoice.hub.progress import Progress
from server.engines.cosyvoice.hub.remote import HubError, Interrupted, Listing, Remote, RemoteFile
from server.engines.cosyvoice.reading import BODY_FOLDER, VERSIONS, yaml_name
from server.engines.examining import existing
from server.engines.model_cache import locked

FETCHED: Final = ".fetched.json"
LOCK: Final = ".lock"
TRIES: Final = 5  # in a row that brought nothing
PAUSE_S: Final = 0.25  # before the second try; twice as long before each next one
SPARE_BYTES: Final = 64 * 1024 * 1024  # that stay free on the disk
_WHOLE_TOKENIZER: Final = f"{BODY_FOLDER}/tokenizer.json"
_OPTIONAL: Final = ("spk2info.pt", _WHOLE_TOKENIZER)
_log = logging.getLogger(__name__)


def is_complete(folder: Path) -> bool:
    """Whether all that was fetched once is still there, by size."""
    try:
        files = json.loads((folder / FETCHED).read_text("utf-8"))["files"]
        return all((folder / path).stat().st_size == size for path, size in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def fetch(name: str, remote: Remote, folder: Path) -> None:
    """Make the folder complete. Where nothing can be had, no folder is left behind. Raises HubError, one line."""
    listing = remote.listing()
    files = wanted(name, remote.where, listing)
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    lock = folder / LOCK
    try:
        _check_room(name, sum(file.bytes for file in files) - _held(folder, files), folder)
        folder.mkdir(parents=True, exist_ok=True)
        with locked(lock):
            there = lock.exists()  # not where whom we waited for got nothing
            if there and not is_complete(folder):
                try:
                    _fetch(name, remote, folder, listing, files)
                except HubError:
                    if not _size(folder):
                        _remove(folder, made)
                    raise
    except OSError as error:
        raise HubError(
            f"cannot keep the model in {folder} ({error.strerror or error}): choose another place with engine option"
            " model_dir"
        ) from error
    if not there:
        fetch(name, remote, folder)


def _fetch(name: str, remote: Remote, folder: Path, listing: Listing, files: Sequence[RemoteFile]) -> None:
    total = sum(file.bytes for file in files)
    _log.info("fetching %s from %s into %s", name, remote.where, folder)
    with Progress(name, total, lambda: _held(folder, files)):
        for file in files:
            _bring(remote, file, folder)
    told = {"name": name, "from": remote.where, "revision": listing.revision}
    list_file = folder / f"{FETCHED}.new"
    list_file.write_text(json.dumps({**told, "files": {file.path: file.bytes for file in files}}, indent=2), "utf-8")
    list_file.replace(folder / FETCHED)


def wanted(name: str, where: str, listing: Listing) -> list[RemoteFile]:
    """The files that the engine reads. Raises HubError where it is no model of this engine."""
    there = listing.files
    versions = [version for version in VERSIONS if yaml_name(version) in there]
    if len(versions) != 1:
        names = " or ".join(yaml_name(version) for version in VERSIONS)
        has = "both" if versions else "no"
        raise HubError(f"{name} on {where} is no model of CosyVoice 2 or 3: it has {has} {names}")
    needed = needed_files(versions[0])
    if _WHOLE_TOKENIZER in there:  # takes the place of two
        needed = tuple(path for path in needed if path in there or not path.endswith(("vocab.json", "merges.txt")))
    if missing := [path for path in needed if path not in there]:
        raise HubError(f"{name} on {where} lacks {', '.join(missing)}, which a model of version {versions[0]} needs")
    return [there[path] for path in (*needed, *_OPTIONAL) if path in there]


def _bring(remote: Remote, file: RemoteFile, folder: Path) -> None:
    """One file, checked; what arrived wrong is fetched once more."""
    path = folder / file.path
    if path.exists() and is_intact(path, file):
        return
    for again in (False, True):
        _download(remote, file, folder, afresh=again)
        if is_intact(path, file):
            return
        path.unlink()
        _log.warning("%s from %s is not what it should be", file.path, remote.where)
    raise HubError(f"{file.path} from {remote.where} arrives with a wrong checksum, twice: try later, or another hub")


def _download(remote: Remote, file: RemoteFile, folder: Path, *, afresh: bool) -> None:
    failures = 0
    while True:
        before = _size(folder)
        try:
            return remote.fetch(file, folder, afresh=afresh)
        except Interrupted as broken:
            afresh = False
            failures = 1 if _size(folder) > before else failures + 1
            if failures == TRIES:
                raise HubError(
                    f"{file.path} cannot be fetched from {remote.where} ({broken}): start again to go on"
                ) from broken
            _log.info("%s broke off (%s), going on", file.path, broken)
            time.sleep(PAUSE_S * 2 ** (failures - 1))


def is_intact(path: Path, file: RemoteFile) -> bool:
    """Whether size and digest are those that the hub names. Raises OSError."""
    if path.stat().st_size != file.bytes:
        return False
    with path.open("rb") as content:
        if file.sha256:
            return hashlib.file_digest(content, "sha256").hexdigest() == file.sha256.lower()
        if file.git_sha1:
            digest = hashlib.sha1(b"blob %d\0" % file.bytes)
            while piece := content.read(1 << 20):
                digest.update(piece)
            return digest.hexdigest() == file.git_sha1.lower()
    return True


def _check_room(name: str, needed: int, folder: Path) -> None:
    free = shutil.disk_usage(existing(folder)).free
    if needed + SPARE_BYTES > free:
        raise HubError(
            f"{name} takes {needed / 1e9:.1f} GB more, and {folder} has {free / 1e9:.1f} GB free: make room, or choose"
            " another place with engine option model_dir"
        )


def _remove(folder: Path, made: Sequence[Path]) -> None:
    """A folder without content, and those above it that were made for it."""
    shutil.rmtree(folder, ignore_errors=True)
    for place in made:
        try:
            place.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return  # has something by now


def _held(folder: Path, files: Sequence[RemoteFile]) -> int:
    """Bytes that are there, whole files or the beginnings of such."""
    return min(_size(folder), sum(file.bytes for file in files))


def _size(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for each in names:
            try:
                total += (Path(place) / each).stat().st_size
            except OSError:
                pass  # was renamed just now
    return total
