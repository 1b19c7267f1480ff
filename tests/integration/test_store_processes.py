"""Stores between processes: one that is killed leaves what it was told is written, and of many one takes it over."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from server.store.journal_file import Directory, JournalFile, OwnedError, remove_old
from tests.support.stores import a_store, kept

ROOT = Path(__file__).parents[2]

APPENDS = """
import asyncio, itertools, os, sys
from server.store import open_store

async def main():
    store = open_store("file:" + sys.argv[1], ttl_s=60)
    journals = {name: store.create(name) for name in "abc"}
    answered = asyncio.Semaphore(2000)

    def tell(line):
        os.write(1, line.encode() + b"\\n")
        answered.release()

    for number in itertools.count():
        for name, journal in journals.items():
            line = f"{name} {number} " + "x" * (number % 400)
            await answered.acquire()
            journal.append([line.encode()], lambda line=line: tell(line))

asyncio.run(main())
"""

CLAIMS = """
import asyncio, sys
from server.store import open_store

async def main():
    store = open_store("file:" + sys.argv[1], ttl_s=60)
    print("ready", flush=True)
    for session in sys.stdin:
        claims = await asyncio.gather(*(store.claim(session.strip()) for _ in range(3)))
        print(*(claim.epoch for claim in claims if claim), flush=True)

asyncio.run(main())
"""


@contextmanager
def python(program: str, *arguments: str) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("after", [10, 3_000])
async def test_what_was_told_written_survives_a_kill(tmp_path: Path, after: int) -> None:
    with python(APPENDS, str(tmp_path)) as process:
        assert process.stdout is not None
        told = list(itertools.islice(process.stdout, after))
        async with a_store(tmp_path) as store:
            assert await store.claim("a") is None  # it lives
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read()
        process.wait()
    lines = (b"".join(told) + rest).split(b"\n")[:-1]
    async with a_store(tmp_path) as store:
        for name in "abc":
            claim = await store.claim(name)
            assert claim is not None
            assert (claim.epoch, claim.damaged) == (2, False)
            expected = [line for line in lines if line.startswith(name.encode())]
            assert claim.lines[: len(expected)] == expected
            assert len(expected) >= after // 4
            numbers = [int(line.split()[1]) for line in claim.lines]
            assert numbers == list(range(len(numbers)))


async def test_of_many_processes_one_gets_each_session(tmp_path: Path) -> None:
    sessions = [f"s{number}" for number in range(16)]
    async with a_store(tmp_path) as store:
        for session in sessions:
            store.create(session).append([b"one"])
    with ExitStack() as stack:
        processes = [stack.enter_context(python(CLAIMS, str(tmp_path))) for _ in range(4)]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        winners = set()
        for turn, session in enumerate(sessions):
            for number in range(len(processes)):
                stdin = processes[(number + turn) % len(processes)].stdin
                assert stdin is not None
                stdin.write(session.encode() + b"\n")
                stdin.flush()
            answers = [process.stdout.readline() for process in processes if process.stdout is not None]
            assert sorted(answers) == [b"\n"] * 3 + [b"2\n"]
            winners.add(answers.index(b"2\n"))
        assert len(winners) > 1  # or they did not compete at all
        async with a_store(tmp_path) as store:
            assert await store.claim("s0") is None
    async with a_store(tmp_path) as store:
        claim = await store.claim("s0")
        assert claim is not None
        assert claim.epoch == 3


async def test_claims_removals_and_sweeps_at_once(tmp_path: Path) -> None:
    """Threads stand for processes: a lock is one of the open file, not of the process."""
    await kept(tmp_path, "a", b"one")
    directory = Directory(str(tmp_path))
    path = directory.path_of("a")
    owners: list[int] = []
    most: list[int] = []
    until = time.monotonic() + 0.7

    def start_anew() -> None:
        while True:
            try:
                made = JournalFile.create(path, "a")
            except BlockingIOError:  # a claimer looks at the new file
                continue
            made.write([b"one"])
            made.close()
            return

    def claims() -> int:
        won = 0
        while time.monotonic() < until:
            try:
                taken = JournalFile.take_over(directory, "a", ttl_s=60)
            except OwnedError:
                continue
            if taken is None:
                continue
            owners.append(1)
            most.append(len(owners))
            file, contents = taken
            won += 1
            file.write_epoch(contents.epoch + 1)
            if contents.epoch % 5 == 0:
                os.utime(path, (1, 1))  # tempts the sweeper
            if contents.epoch % 50 == 0:
                owners.pop()
                file.discard()
                start_anew()
            else:
                owners.pop()
                file.close()
        return won

    def sweeps() -> int:
        removed = 0
        while time.monotonic() < until:
            removed += remove_old(directory, ttl_s=60)[0]
        return removed

    *won, removed = await asyncio.gather(*(asyncio.to_thread(claims) for _ in range(3)), asyncio.to_thread(sweeps))
    assert removed == 0
    assert max(most) == 1
    assert sum(won) > 100
