"""Disks that are full, slow or stuck: journals fail and say why, whoever waits is answered, sessions go on."""

import asyncio
import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from server.store import Activity, file, journal_file
from tests.support.stores import a_store, file_of, kept, names, written


class Disk:
    """What stands between a store and the disk."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.answers = threading.Event()
        self.answers.set()
        self._write = os.write

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        """Like os.write: a part, an error, or an answer that does not come."""
        self.answers.wait()
        if self.room is not None:
            data = data[: self.room]
            if not data:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= len(data)
        return self._write(descriptor, data)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk()
    monkeypatch.setattr(os, "write", made.write)
    yield made
    made.answers.set()


@pytest.mark.parametrize("room", [0, 1, 25, 60, 61])
async def test_a_full_disk_fails_the_journal_and_removes_what_is_half(tmp_path: Path, disk: Disk, room: int) -> None:
    heard: list[Activity] = []
    disk.room = room
    with capture_logs() as logs:
        async with a_store(tmp_path, observer=heard.append) as store:
            journals = [store.create(name) for name in "ab"]
            for _ in range(3):
                await asyncio.gather(*(written(journal, b"x" * 60) for journal in journals))
            for journal in journals:
                assert journal.failed == f"cannot write to {tmp_path}: No space left on device"
                await journal.close(delete=False)
            assert sum(len(each.failures) for each in heard) == 2
            assert names(tmp_path) == set()
            disk.room = None
            again = store.create("c")
            await written(again, b"x")
            assert again.failed is None
    assert [each["log_level"] for each in logs] == ["warning"]


async def test_a_write_that_takes_a_part_goes_on_with_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:3]))
    await kept(tmp_path, "a", b"one", b"two" * 20)
    monkeypatch.undo()
    async with a_store(tmp_path) as store:
        claim = await store.claim("a")
        assert claim is not None
        assert (claim.lines, claim.damaged) == ([b"one", b"two" * 20], False)


async def test_a_full_disk_at_a_claim_goes_on_without_keeping(tmp_path: Path, disk: Disk) -> None:
    await kept(tmp_path, "a", b"one")
    disk.room = 0
    async with a_store(tmp_path) as store:
        claim = await store.claim("a")
        assert claim is not None
        assert (claim.lines, claim.epoch) == ([b"one"], 2)
        assert claim.journal.failed == f"cannot write to {tmp_path}: No space left on device"
        await written(claim.journal, b"two")
        assert names(tmp_path) == set()  # or a third process would take it for epoch 2 again


async def test_a_file_that_was_removed_fails_the_journal(tmp_path: Path) -> None:
    failures: asyncio.Queue[Activity] = asyncio.Queue()

    def hear(activity: Activity) -> None:
        if activity.failures:
            failures.put_nowait(activity)

    async with a_store(tmp_path, ttl_s=0.4, observer=hear) as store:
        journal = store.create("a")
        await written(journal, b"one")
        file_of(tmp_path, "a").unlink()
        async with asyncio.timeout(2):
            activity = await failures.get()
        assert activity.failures == (f"cannot write to {tmp_path}: the file was removed",)
        assert journal.failed == activity.failures[0]
        await written(journal, b"two")


async def test_another_file_in_the_place_of_ours_is_left_alone(tmp_path: Path) -> None:
    path = file_of(tmp_path, "a")
    async with a_store(tmp_path) as store:
        journal = store.create("a")
        await written(journal, b"one")
        path.unlink()
        path.write_bytes(b"other")
        await journal.close(delete=True)
    assert path.read_bytes() == b"other"


async def test_a_file_replaced_while_it_is_locked_is_not_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kept(tmp_path, "a", b"one")
    path = file_of(tmp_path, "a")
    content = path.read_bytes()
    flock = fcntl.flock

    def replace(descriptor: int, operation: int) -> None:
        path.unlink()
        path.write_bytes(content)
        flock(descriptor, operation)

    async with a_store(tmp_path) as store:
        monkeypatch.setattr(fcntl, "flock", replace)
        assert await store.claim("a") is None
        monkeypatch.undo()
        assert await store.claim("a") is not None


async def test_a_file_removed_while_it_is_locked_is_not_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await kept(tmp_path, "a", b"one")
    flock = fcntl.flock

    def remove(descriptor: int, operation: int) -> None:
        file_of(tmp_path, "a").unlink()
        flock(descriptor, operation)

    async with a_store(tmp_path) as store:
        monkeypatch.setattr(fcntl, "flock", remove)
        assert await store.claim("a") is None
    assert names(tmp_path) == set()


async def test_with_fsync_each_file_is_synced_once_per_group_before_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: Disk
) -> None:
    events: list[str] = []
    really_sync = journal_file.sync

    def sync(descriptor: int) -> None:
        events.append("sync")
        really_sync(descriptor)

    monkeypatch.setattr(journal_file, "sync", sync)
    async with a_store(tmp_path, fsync=True) as store:
        journals = [store.create(name) for name in "abc"]
        await written(journals[0], b"x")
        assert events == ["sync"] * 2  # the file, and the directory with its name
        await asyncio.gather(*(written(journal, b"x") for journal in journals))
        disk.answers.clear()
        journals[0].append([b"first"], lambda: events.append("told"))
        assert store._writer is not None
        while not store._writer._queue.empty():  # until the writer is at it
            await asyncio.sleep(0.001)
        events.clear()
        for journal in journals:
            for _ in range(10):
                journal.append([b"x"], lambda: events.append("told"))
        disk.answers.set()
        await asyncio.gather(*(written(journal) for journal in journals))
    assert events[: events.index("told")] == ["sync"] * events.index("told")
    assert events.count("sync") == 1 + 3
    assert events.count("told") == 1 + 30


async def test_a_sync_that_fails_fails_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async with a_store(tmp_path, fsync=True) as store:
        good = store.create("good")
        await written(good, b"one")
        monkeypatch.setattr(journal_file, "sync", fail)
        new = store.create("new")
        await asyncio.gather(written(good, b"two"), written(new, b"one"))
        for journal in (good, new):
            assert journal.failed == f"cannot write to {tmp_path}: Input/output error"
        assert names(tmp_path) == set()


async def test_what_waits_is_bounded_and_nobody_waits_for_ever(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "MAX_WAITING_BYTES_OF_ONE", 10_000)
    monkeypatch.setattr(file, "MAX_WAITING_BYTES", 25_000)
    heard: list[tuple[str, int]] = []
    disk.answers.clear()
    async with a_store(tmp_path) as store:
        journals = {name: store.create(name) for name in "abcd"}
        quiet = store.create("quiet")
        for number in range(9):
            journals["a"].append([b"x" * 1000], lambda number=number: heard.append(("a", number)))  # type: ignore[misc]
        assert journals["a"].failed == "the disk is too slow: too much waits to be written"
        await asyncio.sleep(0)
        assert heard == [("a", number) for number in range(9)]
        for name in "bcd":
            for _ in range(7):
                journals[name].append([b"x" * 1000])
        assert [journals[name].failed is None for name in "bcd"] == [True, False, False]
        assert store._queued_bytes < 26_500
        disk.answers.set()
        await written(journals["b"])
        assert store._queued_bytes <= 300
        await written(quiet, b"x")
        assert names(tmp_path) == {file_of(tmp_path, name).name for name in ("b", "quiet")}


async def test_a_disk_that_does_not_answer_is_given_up_until_it_does(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "STALL_S", 0.1)
    with capture_logs() as logs:
        async with a_store(tmp_path) as store:
            idle, busy, closing = (store.create(name) for name in ("idle", "busy", "closing"))
            await asyncio.gather(*(written(journal, b"one") for journal in (idle, busy, closing)))
            disk.answers.clear()
            started = time.monotonic()
            busy_waits = asyncio.ensure_future(written(busy, b"two"))
            await asyncio.sleep(0)
            await closing.close(delete=False)
            await busy_waits
            assert time.monotonic() - started < 1
            assert busy.failed == "the disk does not answer"
            assert idle.failed is None
            late = store.create("late")
            await written(late, b"one")
            assert late.failed == "the disk does not answer"
            disk.answers.set()
            while store._queued:
                await asyncio.sleep(0.005)
            await written(idle, b"two")
            assert idle.failed is None
            assert names(tmp_path) == {file_of(tmp_path, name).name for name in ("idle", "closing")}
    assert len(logs) == 1


async def test_a_disk_that_gets_stuck_again_has_its_full_time_again(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "STALL_S", 0.3)
    async with a_store(tmp_path) as store:
        for name in "abc":
            journal = store.create(name)
            disk.answers.clear()
            started = time.monotonic()
            await written(journal, b"one")
            assert journal.failed == "the disk does not answer"
            assert 0.29 < time.monotonic() - started < 1
            disk.answers.set()
            while store._queued:
                await asyncio.sleep(0.001)
        assert store._stall is None


async def test_a_short_wait_for_the_disk_fails_nothing(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "STALL_S", 0.4)
    async with a_store(tmp_path) as store:
        journal = store.create("a")
        disk.answers.clear()
        asyncio.get_running_loop().call_later(0.1, disk.answers.set)
        for _ in range(3):
            await written(journal, b"one")
            await asyncio.sleep(0.15)
        assert journal.failed is None


async def test_a_stuck_disk_holds_up_the_end_for_two_seconds_at_most(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "CLOSE_TIMEOUT_S", 0.1)
    heard: list[int] = []
    async with a_store(tmp_path) as store:
        disk.answers.clear()
        store.create("a").append([b"one"], lambda: heard.append(1))
        started = time.monotonic()
        with capture_logs() as logs:
            await store.close()
        assert time.monotonic() - started < 1
        await asyncio.sleep(0)
        assert heard == [1]
        assert [each["event"] for each in logs] == ["the disk is too slow: sessions were not kept"]
        disk.answers.set()


async def test_a_stuck_disk_does_not_hold_up_a_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "CLAIM_TIMEOUT_S", 0.1)
    for session in "abc":
        await kept(tmp_path, session, b"one")
    answers = threading.Event()
    read = os.pread

    def pread(descriptor: int, size: int, offset: int) -> bytes:
        answers.wait()
        return read(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", pread)
    async with a_store(tmp_path) as store:
        started = time.monotonic()
        assert await asyncio.gather(*(store.claim(session) for session in "abc")) == [None, None, None]
        assert time.monotonic() - started < 2
        answers.set()
        for session in "abc":
            async with asyncio.timeout(2):
                while (claim := await store.claim(session)) is None:
                    await asyncio.sleep(0.005)
            assert claim.lines == [b"one"]


async def test_a_directory_that_cannot_be_read_is_logged_and_swept_again(tmp_path: Path) -> None:
    place = tmp_path / "store"
    with capture_logs() as logs:
        async with a_store(place, ttl_s=0.2) as store:
            place.rename(tmp_path / "moved")
            for _ in range(200):
                if logs:
                    break
                await asyncio.sleep(0.01)
            (tmp_path / "moved").rename(place)
            journal = store.create("a")
            await written(journal, b"x")
            assert journal.failed is None
    assert [each["event"] for each in logs] == ["old journals cannot be removed"]


async def test_a_journal_that_cannot_be_loaded_again_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_file, "MAX_FILE_BYTES", 1 << 20)
    async with a_store(tmp_path) as store:
        journal = store.create("a")
        for _ in range(20):
            await written(journal, b"x" * 60_000)
        assert journal.failed == f"cannot write to {tmp_path}: the journal got bigger than 1 MiB"
        assert names(tmp_path) == set()
