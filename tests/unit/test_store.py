"""Stores: what is appended is kept, in order, for exactly one claimer."""

import asyncio
import fcntl
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from server.store import Activity, FileStore, SessionStore, StoreError, open_store
from server.store.file import RELEASE_S
from server.store.journal_file import MAX_FILE_BYTES
from server.store.journal_format import HEADER
from tests.support.loops import each_loop
from tests.support.stores import TTL_S, a_store, file_of, kept, names, written


@each_loop
async def test_another_process_goes_on_with_what_was_written(tmp_path: Path) -> None:
    await kept(tmp_path, "a", b"one", b"", b"\x00\xff")
    for epoch in (2, 3, 4):
        async with a_store(tmp_path) as store:
            assert store.keeps
            claim = await store.claim("a")
            assert claim is not None
            assert claim.lines == [b"one", b"", b"\x00\xff", *[b"epoch %d" % each for each in range(2, epoch)]]
            assert (claim.epoch, claim.damaged, claim.journal.failed) == (epoch, False, None)
            claim.journal.append([b"epoch %d" % epoch])
            assert await store.claim("b") is None


@each_loop
async def test_every_append_is_answered_once_in_order_and_never_at_once(tmp_path: Path) -> None:
    heard: list[tuple[str, int]] = []
    async with a_store(tmp_path) as store:
        journals = {name: store.create(name) for name in "abc"}
        for number in range(300):
            for name, journal in journals.items():
                journal.append([b"%d" % number], lambda name=name, number=number: heard.append((name, number)))  # type: ignore[misc]
        assert heard == []
        await asyncio.gather(*(written(journal) for journal in journals.values()))
        for name in journals:
            assert [number for who, number in heard if who == name] == list(range(300))
        journals["a"].append([b"again"])
    async with a_store(tmp_path) as store:
        claim = await store.claim("b")
        assert claim is not None
        assert claim.lines == [b"%d" % number for number in range(300)]


async def test_a_callback_that_raises_harms_no_other(tmp_path: Path) -> None:
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))

    def bad() -> None:
        raise RuntimeError("bad")

    async with a_store(tmp_path) as store:
        journal = store.create("a")
        journal.append([b"one"], bad)
        await written(journal, b"two")
        await written(store.create("b"), b"x")
    assert [str(fault) for fault in faults] == ["bad"]


async def test_lines_hold_no_newline(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        journal = store.create("a")
        with pytest.raises(ValueError, match="newline"):
            journal.append([b"good", b"two\nlines"])
        await written(journal, b"x")
    async with a_store(tmp_path) as store:
        claim = await store.claim("a")
        assert claim is not None
        assert claim.lines == [b"x"]


async def test_everything_appended_before_the_store_closes_is_kept(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path), ttl_s=TTL_S)
    heard: list[int] = []
    journals = [store.create(f"s{session}") for session in range(20)]
    for journal in journals:
        for number in range(500):
            journal.append([b"%d" % number], lambda number=number: heard.append(number))  # type: ignore[misc]
    started = time.monotonic()
    await store.close()
    assert time.monotonic() - started < 2
    await asyncio.sleep(0)
    assert len(heard) == 10_000
    assert {journal.failed for journal in journals} == {"closed"}
    late = store.create("late")
    assert late.failed == "closed"
    await written(late, b"x")
    assert await store.claim("s1") is None
    await store.close()
    async with a_store(tmp_path) as other:
        for session in range(20):
            claim = await other.claim(f"s{session}")
            assert claim is not None
            assert claim.lines == [b"%d" % number for number in range(500)]


async def test_a_closed_journal_is_removed_or_left_to_others(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store, a_store(tmp_path) as other:
        journal = store.create("a")
        journal.append([b"one"])
        await journal.close(delete=False)
        await journal.close(delete=True)  # it is not ours any more
        claim = await other.claim("a")
        assert claim is not None
        assert await store.claim("a") is None
        await claim.journal.close(delete=True)
        assert names(tmp_path) == set()
        await written(journal, b"ignored")
        unused = store.create("b")
        await unused.close(delete=False)
        assert names(tmp_path) == set()


async def test_a_journal_is_given_up_even_if_closing_is_cancelled(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        journal = store.create("a")
        await written(journal, b"one")
        closing = asyncio.ensure_future(journal.close(delete=True))
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await written(store.create("b"), b"x")
        assert names(tmp_path) == {file_of(tmp_path, "b").name}


@each_loop
async def test_of_many_claimers_one_gets_it(tmp_path: Path) -> None:
    await kept(tmp_path, "a", b"one")
    async with a_store(tmp_path) as first, a_store(tmp_path) as second:
        for epoch in range(2, 12):
            claims = [
                claim for claim in await asyncio.gather(*(store.claim("a") for store in [first, second] * 5)) if claim
            ]
            assert [claim.epoch for claim in claims] == [epoch]
            await claims[0].journal.close(delete=False)


async def test_a_live_session_is_not_claimed(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store, a_store(tmp_path) as other:
        await written(store.create("a"), b"one")
        assert await other.claim("a") is None
        assert await store.claim("a") is None
        again = other.create("a")
        await written(again, b"two")
        assert again.failed == "there is a journal of this session already"
    async with a_store(tmp_path) as store:
        claim = await store.claim("a")
        assert claim is not None
        assert claim.lines == [b"one"]


async def test_the_locks_of_a_process_that_is_killed_may_go_after_its_sockets(tmp_path: Path) -> None:
    await kept(tmp_path, "a", b"one")
    async with a_store(tmp_path) as store:
        with file_of(tmp_path, "a").open() as dying:
            fcntl.flock(dying, fcntl.LOCK_EX)
            asyncio.get_running_loop().call_later(RELEASE_S / 2, dying.close)
            claim = await store.claim("a")
        assert claim is not None
        assert claim.lines == [b"one"]


async def test_a_claim_that_nobody_waits_for_is_given_back(tmp_path: Path) -> None:
    await kept(tmp_path, "a", b"one")
    async with a_store(tmp_path) as store:
        for patience in (0.0, 0.0005, 0.001, 0.003, 0.01, 0.03):
            claiming = asyncio.ensure_future(store.claim("a"))
            await asyncio.sleep(patience)
            claiming.cancel()
            got = await asyncio.gather(claiming, return_exceptions=True)
            if not isinstance(got[0], BaseException) and got[0] is not None:
                await got[0].journal.close(delete=False)
        async with asyncio.timeout(2):  # or the lock was lost
            while (claim := await store.claim("a")) is None:
                await asyncio.sleep(0.005)
        assert claim.lines == [b"one"]


async def test_a_cut_line_is_dropped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    await kept(tmp_path, "a", b"one", b"two")
    path = file_of(tmp_path, "a")
    path.write_bytes(path.read_bytes()[:-2])
    with capture_logs() as logs:
        async with a_store(tmp_path) as store:
            claim = await store.claim("a")
            assert claim is not None
            assert (claim.lines, claim.damaged) == ([b"one"], False)
            await written(claim.journal, b"three")
        async with a_store(tmp_path) as store:
            claim = await store.claim("a")
            assert claim is not None
            assert (claim.lines, claim.epoch) == ([b"one", b"three"], 3)
    assert logs == []


async def test_damage_ends_what_is_read_and_is_logged(tmp_path: Path) -> None:
    await kept(tmp_path, "a", b"one", b"two", b"three")
    path = file_of(tmp_path, "a")
    path.write_bytes(path.read_bytes().replace(b"two", b"twO"))
    with capture_logs() as logs:
        async with a_store(tmp_path) as store:
            claim = await store.claim("a")
            assert claim is not None
            assert (claim.lines, claim.damaged) == ([b"one"], True)
            await written(claim.journal, b"four")
    assert [(each["event"], each["log_level"], each["lines_read"]) for each in logs] == [
        ("a journal is damaged", "warning", 1)
    ]
    async with a_store(tmp_path) as store:
        claim = await store.claim("a")
        assert claim is not None
        assert (claim.lines, claim.damaged) == ([b"one", b"four"], False)


async def test_another_version_is_not_there_and_said_once(tmp_path: Path) -> None:
    for session in "ab":
        await kept(tmp_path, session, b"one")
        path = file_of(tmp_path, session)
        path.write_bytes(path.read_bytes().replace(b"journal 1", b"journal 2"))
    with capture_logs() as logs:
        async with a_store(tmp_path) as store:
            assert await store.claim("a") is None
            assert await store.claim("b") is None
    assert [each["event"] for each in logs] == ["journals of another version are not read"]
    assert b"journal 2" in file_of(tmp_path, "a").read_bytes()  # left to the version that can read it


def a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def huge(path: Path) -> None:
    os.truncate(path, MAX_FILE_BYTES + 1)


def something_else(path: Path) -> None:
    path.write_bytes(b"#!/bin/sh\n")


@pytest.mark.parametrize("become", [a_link, a_pipe, a_folder, huge, something_else])
async def test_what_is_no_journal_is_not_claimed(tmp_path: Path, become: Callable[[Path], None]) -> None:
    await kept(tmp_path, "a", b"one")
    become(file_of(tmp_path, "a"))
    with capture_logs() as logs:
        async with a_store(tmp_path) as store:
            async with asyncio.timeout(3):
                assert await store.claim("a") is None
                assert await store.claim("a") is None
    assert [each["event"] for each in logs] == ["a journal cannot be claimed"]


@pytest.mark.parametrize("content", [b"", HEADER[:5], HEADER])
async def test_a_file_without_a_line_is_not_there(tmp_path: Path, content: bytes) -> None:
    file_of(tmp_path, "a").write_bytes(content)
    with capture_logs() as logs:
        async with a_store(tmp_path) as store:
            assert await store.claim("a") is None
    assert logs == []


async def test_files_of_other_users_are_not_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await kept(tmp_path, "a", b"one")
    with capture_logs() as logs:
        async with a_store(tmp_path) as store:
            monkeypatch.setattr(store._directory, "owner", 4_294_967)
            assert await store.claim("a") is None
    assert logs[0]["reason"] == "it belongs to another user"


@pytest.mark.parametrize("session", ["", "../../etc/passwd", "/abs", "a\0b", "x" * 5000, "\ud800", "..", "é"])
async def test_no_session_id_chooses_a_path(tmp_path: Path, session: str) -> None:
    place = tmp_path / "store"
    await kept(place, session, b"one")
    (name,) = names(place)
    assert len(name) == 64 + len(".journal")
    assert name.isascii()
    async with a_store(place) as store:
        assert await store.claim(session) is not None
    assert names(tmp_path) == {"store"}


async def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    place = tmp_path / "new" / "store"
    await kept(place, "a", b"one")
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert stat.S_IMODE(file_of(place, "a").stat().st_mode) == 0o600


@pytest.mark.parametrize("place", ["file/store", "file"])
def test_a_directory_that_cannot_be_used_is_said_at_the_start(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=f"cannot write to .*/{place}: "):
        open_store(f"file:{tmp_path}/{place}", ttl_s=1)


def test_a_directory_that_takes_no_files_is_said_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)  # root may write anywhere, so that modes prove nothing
    with pytest.raises(StoreError, match=f"cannot write to {tmp_path}: Permission denied"):
        open_store(f"file:{tmp_path}", ttl_s=1)


@pytest.mark.parametrize("spec", ["", "file", "file:", "file: ", "memory:x", "redis://host", "/var/lib", "file:a\0b"])
def test_a_store_that_there_is_not(spec: str) -> None:
    with pytest.raises(ValueError, match="'memory' or 'file:DIRECTORY'"):
        open_store(spec, ttl_s=1)


@pytest.mark.parametrize("ttl_s", [0, -1, float("nan")])
def test_a_time_to_live_is_above_zero(ttl_s: float) -> None:
    with pytest.raises(ValueError, match="more than 0 seconds"):
        open_store("memory", ttl_s=ttl_s)


async def test_memory_keeps_nothing() -> None:
    store: SessionStore = open_store("memory", ttl_s=1)
    assert not store.keeps
    journal = store.create("a")
    await written(journal, b"one")
    await journal.close(delete=False)
    assert journal.failed is None
    assert await store.claim("a") is None
    await store.close()


async def test_the_observer_hears_of_every_group(tmp_path: Path) -> None:
    heard: list[Activity] = []
    async with a_store(tmp_path, observer=heard.append) as store:
        await asyncio.gather(*(written(store.create(name), b"12345", b"6") for name in "abc"))
    assert sum(each.lines for each in heard) == 6
    size = sum(file_of(tmp_path, name).stat().st_size - len(HEADER) for name in "abc")
    assert sum(each.bytes for each in heard) == size
    assert all(each.seconds >= 0 and not each.failures for each in heard)
    assert sum(each.files for each in heard) == 3
