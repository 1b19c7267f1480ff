"""The directory of dead letters: modes, bounds, full disks, torn lines, and several processes at once."""

import errno
import fcntl
import multiprocessing
import os
import resource
import signal
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from server.jobs import FolderError, Letter, LetterFolder, Resolved
from server.jobs.folder import FILES, Damage
from server.jobs.letters import encode
from tests.support.dead_letters import MIB, TIME, folder_with, ids, letter


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def sizes(folder: LetterFolder) -> int:
    return sum(path.stat().st_size for path in folder.path.iterdir())


@contextmanager
def disk_full_after(size: int) -> Iterator[None]:
    """No file may grow beyond `size`: as on a full disk, the last write is a short one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277, 0o777])
def test_only_the_owner_may_look(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        folder = folder_with(tmp_path / "a" / "b", letter())
    finally:
        os.umask(before)
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == 0o700
    assert {path.name: mode(path) for path in folder.path.iterdir()} == {"letters.jsonl": 0o600, "lock": 0o600}
    assert ids(folder) == [letter().id]


def test_a_file_that_became_readable_is_shut_again(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, letter("a" * 12))
    (tmp_path / "letters.jsonl").chmod(0o644)
    folder.append([encode(letter("b" * 12), MIB)])
    assert mode(tmp_path / "letters.jsonl") == 0o600


def test_the_newest_are_kept_within_the_bound(tmp_path: Path) -> None:
    bound = 40_000
    folder = folder_with(tmp_path, max_bytes=bound)
    written = [f"{number:012}" for number in range(300)]
    for each in written:
        folder.append([encode(letter(each), folder.max_line_bytes)])
        assert sizes(folder) <= bound
    kept = ids(folder)
    assert kept == written[-len(kept) :]
    assert sizes(folder) > bound * (FILES - 1) // FILES - 2_000
    assert len([path for path in tmp_path.iterdir() if path.suffix == ".jsonl"]) == FILES


def test_several_at_once_go_over_a_change_of_files(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, max_bytes=40_000)
    lines = [encode(letter(f"{number:012}"), 10_000) for number in range(30)]
    assert folder.append(lines) == (30, None)
    assert ids(folder) == [f"{number:012}" for number in range(30)]


@pytest.mark.parametrize("left", range(0, 60, 7))
def test_a_full_disk_tears_no_line_and_is_over_when_there_is_room(tmp_path: Path, left: int) -> None:
    folder = folder_with(tmp_path, letter("a" * 12))
    size = (tmp_path / "letters.jsonl").stat().st_size
    with disk_full_after(size + left):
        written, problem = folder.append([encode(letter("b" * 12), MIB)])
    assert written == 0
    assert problem is not None
    assert problem.errno == errno.EFBIG
    assert (tmp_path / "letters.jsonl").stat().st_size == size
    folder.append([encode(letter("c" * 12), MIB)])
    assert ids(folder) == ["a" * 12, "c" * 12]


def test_of_several_lines_those_that_fit_are_written(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    lines = [encode(letter(name * 12), MIB) for name in "abcd"]
    with disk_full_after(len(lines[0]) * 5 // 2):
        written, problem = folder.append(lines)
    assert written == 2
    assert problem is not None
    assert ids(folder) == ["a" * 12, "b" * 12]


@pytest.mark.parametrize("torn", [b'{"v', b"\x00" * 100_000, encode(letter("f" * 12), MIB)[:-1]])
def test_a_torn_line_is_skipped_and_cut_off_by_the_next_writer(tmp_path: Path, torn: bytes) -> None:
    folder = folder_with(tmp_path, letter("a" * 12))
    with (tmp_path / "letters.jsonl").open("ab") as file:
        file.write(torn)
    damage = Damage()
    assert [entry.id for entry in folder.read_noting(damage)] == ["a" * 12]
    assert damage == Damage()  # it may be one that is being written just now
    folder.append([encode(letter("b" * 12), MIB)])
    assert ids(folder) == ["a" * 12, "b" * 12]
    assert len((tmp_path / "letters.jsonl").read_bytes().splitlines()) == 2


def test_a_file_of_one_torn_line_is_begun_anew(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    (tmp_path / "letters.jsonl").write_bytes(b"{" * 200_000)
    folder.append([encode(letter("a" * 12), MIB)])
    assert ids(folder) == ["a" * 12]


def test_damaged_lines_are_counted_and_the_others_read(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, letter("a" * 12))
    with (tmp_path / "letters.jsonl").open("ab") as file:
        file.write(b"\xff\xff\n{}\n\n" + encode(letter("b" * 12), MIB))
    (tmp_path / "letters.1.jsonl").mkdir()
    damage = Damage()
    assert [entry.id for entry in folder.read_noting(damage)] == ["a" * 12, "b" * 12]
    assert damage.lines == {"letters.jsonl": 3}
    assert damage.files == {"letters.1.jsonl": "is no plain file"}


def test_nothing_there_reads_as_nothing(tmp_path: Path) -> None:
    assert list(LetterFolder(tmp_path / "none", MIB).read()) == []
    assert not (tmp_path / "none").exists()


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "q", letter("a" * 12))
    for path in folder.path.iterdir():
        path.unlink()
    folder.path.rmdir()
    assert folder.append([encode(letter("b" * 12), MIB)]) == (1, None)
    assert ids(folder) == ["b" * 12]
    assert mode(folder.path) == 0o700


def test_no_link_is_followed_and_no_pipe_waited_for(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"precious")
    for name, make in (("link", elsewhere), ("pipe", None)):
        folder = folder_with(tmp_path / name)
        place = folder.path / "letters.jsonl"
        if make is None:
            os.mkfifo(place)
        else:
            place.symlink_to(make)
        written, problem = folder.append([encode(letter(), MIB)])
        assert written == 0
        assert problem is not None
        assert list(folder.read()) == []
    assert elsewhere.read_bytes() == b"precious"


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/x"), Path("/a\0b")):
        with pytest.raises(FolderError, match="cannot be written: "):
            LetterFolder(place, MIB).open()


def test_a_mark_comes_behind_its_letter_whatever_the_bound(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, letter("a" * 12), letter("b" * 12))
    LetterFolder(tmp_path, 8).mark(encode(Resolved("a" * 12, TIME), MIB))
    assert [type(entry) for entry in folder.read()] == [Letter, Letter, Resolved]
    with pytest.raises(FileNotFoundError):
        LetterFolder(tmp_path / "none", MIB).mark(b"x\n")


def test_who_writes_waits_for_the_one_who_does(tmp_path: Path) -> None:
    folder = folder_with(tmp_path)
    with (tmp_path / "lock").open("rb") as lock, ThreadPoolExecutor(1) as threads:
        fcntl.flock(lock, fcntl.LOCK_EX)
        writing = threads.submit(folder.append, [encode(letter("a" * 12), MIB)])
        with pytest.raises(TimeoutError):
            writing.result(0.1)
        assert ids(folder) == []  # reading waits for nobody
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert writing.result(10) == (1, None)


def _write_many(path: Path, name: str, count: int) -> None:
    folder = LetterFolder(path, 16 * MIB)
    for number in range(count):
        written, problem = folder.append([encode(letter(f"{name}{number:011}"), MIB)])
        assert (written, problem) == (1, None)


def test_several_processes_write_beside_each_other(tmp_path: Path) -> None:
    count = 150
    folder = folder_with(tmp_path)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(tmp_path, name, count)) for name in "abc"]
    for writer in writers:
        writer.start()
    damage = Damage()
    while any(writer.is_alive() for writer in writers):  # who reads meanwhile sees whole lines only
        list(folder.read_noting(damage))
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    found = [entry.id for entry in folder.read_noting(damage)]
    assert damage == Damage()
    assert sorted(found) == sorted(f"{name}{number:011}" for name in "abc" for number in range(count))
    assert [each for each in found if each.startswith("a")] == [f"a{number:011}" for number in range(count)]


def test_who_reads_while_files_change_misses_no_letter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_with(tmp_path, max_bytes=40_000)
    folder.append([encode(letter(f"{number:012}"), 10_000) for number in range(20)])
    before = ids(folder)
    opened = os.open
    rotated = False

    def open_and_rotate(path: Path, flags: int, *rest: int) -> int:
        nonlocal rotated
        descriptor = opened(path, flags, *rest)
        if path.name == "letters.jsonl" and not flags & os.O_CREAT and not rotated:
            rotated = True
            folder.append([encode(letter(f"{number:012}"), 10_000) for number in range(20, 36)])
        return descriptor

    newest = (tmp_path / "letters.jsonl").stat().st_ino
    monkeypatch.setattr("server.jobs.folder.os.open", open_and_rotate)
    found = ids(folder)
    assert rotated
    assert (tmp_path / "letters.1.jsonl").stat().st_ino == newest
    assert found[: len(before)] == before
    assert len(set(found)) == len(found)
