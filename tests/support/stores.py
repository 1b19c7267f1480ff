"""Stores in a directory, for tests."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from server.store import Activity, FileStore, Journal
from server.store.journal_file import Directory

TTL_S: Final = 60.0


@asynccontextmanager
async def a_store(
    place: Path, ttl_s: float = TTL_S, fsync: bool = False, observer: Callable[[Activity], None] | None = None
) -> AsyncIterator[FileStore]:
    """One that is closed at the end."""
    store = FileStore(str(place), ttl_s=ttl_s, fsync=fsync, observer=observer)
    try:
        yield store
    finally:
        await store.close()


async def written(journal: Journal, *lines: bytes) -> None:
    """Append these and wait until they are answered."""
    done = asyncio.Event()
    journal.append(lines, done.set)
    async with asyncio.timeout(5):
        await done.wait()


async def kept(place: Path, session: str, *lines: bytes) -> None:
    """A session of a process that is gone."""
    async with a_store(place) as store:
        await written(store.create(session), *lines)


def file_of(place: Path, session: str) -> Path:
    """Where a session is kept."""
    return Directory(str(place)).path_of(session)


def names(place: Path) -> set[str]:
    """What lies in a directory."""
    return {path.name for path in place.iterdir()}


def open_files() -> int:
    """How many descriptors this process has."""
    return len(list(Path("/dev/fd").iterdir()))
