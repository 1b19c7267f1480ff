"""What a store costs and for how long: the time to live, descriptors, threads."""

import asyncio
import os
import resource
import threading
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from server.store.journal_file import Directory, remove_old
from tests.support.stores import TTL_S, a_store, file_of, kept, names, open_files, written


def aged(path: Path, seconds: float) -> Path:
    then = time.time() - seconds
    os.utime(path, (then, then), follow_symlinks=False)
    return path


async def test_old_files_go_unless_somebody_lives_who_owns_them(tmp_path: Path) -> None:
    for session in ("old", "new", "future", "target"):
        await kept(tmp_path, session, b"one")
    aged(file_of(tmp_path, "old"), TTL_S + 1)
    aged(file_of(tmp_path, "new"), TTL_S - 5)
    aged(file_of(tmp_path, "future"), -1e6)
    foreign = tmp_path / "README"
    foreign.write_text("not ours")
    link = file_of(tmp_path, "link")
    link.symlink_to(foreign)
    for path in (foreign, link):
        aged(path, TTL_S + 1)
    async with a_store(tmp_path) as store:
        await written(store.create("live"), b"one")
        aged(file_of(tmp_path, "live"), TTL_S + 1)
        assert remove_old(Directory(str(tmp_path)), TTL_S)[0] <= 1  # or the sweep at the start was faster
        left = {file_of(tmp_path, session).name for session in ("new", "future", "target", "live", "link")}
        for _ in range(200):
            if names(tmp_path) == left | {"README"}:
                break
            await asyncio.sleep(0.005)
        assert names(tmp_path) == left | {"README"}
    assert file_of(tmp_path, "future").stat().st_mtime < time.time() + 1


async def test_what_is_past_its_time_is_not_claimed(tmp_path: Path) -> None:
    async with a_store(tmp_path) as store:
        await kept(tmp_path, "a", b"one")
        aged(file_of(tmp_path, "a"), TTL_S + 1)
        assert await store.claim("a") is None


async def test_files_are_swept_and_owned_ones_touched_by_a_timer(tmp_path: Path) -> None:
    await kept(tmp_path, "claimed", b"one")
    async with a_store(tmp_path, ttl_s=0.4) as store:
        await written(store.create("created"), b"one")
        assert await store.claim("claimed") is not None
        owned = [aged(file_of(tmp_path, session), 0.35) for session in ("created", "claimed")]
        then = time.time() - 0.2
        await kept(tmp_path, "dead", b"one")
        async with asyncio.timeout(5):
            while len(names(tmp_path)) > 2 or min(path.stat().st_mtime for path in owned) < then:
                await asyncio.sleep(0.02)
        assert names(tmp_path) == {path.name for path in owned}
        await asyncio.sleep(0.5)
    async with a_store(tmp_path, ttl_s=0.4) as store:
        for session in ("created", "claimed"):
            assert await store.claim(session) is not None


async def test_a_thousand_sessions(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard) if hard != resource.RLIM_INFINITY else 4096, hard))
    try:
        before = open_files()
        async with a_store(tmp_path) as store:
            journals = [store.create(f"s{number}") for number in range(1000)]
            for number in range(5):
                await asyncio.gather(*(written(journal, b"%d" % number) for journal in journals))
            assert open_files() <= before + 1010
            await asyncio.gather(*(journal.close(delete=True) for journal in journals[500:]))
            assert open_files() <= before + 510
        assert open_files() <= before + 5
        async with a_store(tmp_path) as store:
            claims = await asyncio.gather(*(store.claim(f"s{number}") for number in range(510)))
            assert [claim.lines for claim in claims if claim] == [[b"0", b"1", b"2", b"3", b"4"]] * 500
            await asyncio.gather(*(claim.journal.close(delete=True) for claim in claims if claim))
        assert names(tmp_path) == set()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_journals_take_half_of_the_descriptors_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await kept(tmp_path, "old", b"one")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 20))
    async with a_store(tmp_path) as store:
        with capture_logs() as logs:
            journals = [store.create(f"s{number}") for number in range(12)]
            await asyncio.gather(*(written(journal, b"x") for journal in journals))
        assert [journal.failed is None for journal in journals] == [True] * 10 + [False] * 2
        assert journals[-1].failed == "10 journals are open, half of the 20 files that the process may open"
        assert len(logs) == 1
        claim = await store.claim("old")  # goes on, but without being kept
        assert claim is not None
        assert claim.lines == [b"one"]
        assert claim.journal.failed == journals[-1].failed
        assert not file_of(tmp_path, "old").exists()
        await journals[0].close(delete=True)
        assert store.create("more").failed is None


async def test_nothing_is_left_of_a_closed_store(tmp_path: Path) -> None:
    threads, descriptors = set(threading.enumerate()), open_files()
    async with a_store(tmp_path) as store:
        await written(store.create("a"), b"x")
        await store.claim("b")
    for thread in set(threading.enumerate()) - threads:
        thread.join(2)
    assert set(threading.enumerate()) <= threads
    assert open_files() <= descriptors
