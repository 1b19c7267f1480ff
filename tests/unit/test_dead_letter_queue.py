"""Dead letters on their way to the disk: never in the way of the event loop, counted whatever becomes of them."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog

from server.jobs import DeadLetters, FolderError, Letter, LetterFolder, open_dead_letters
from server.jobs import queue as queue_module
from server.jobs.place import folder_of, state_directory
from server.jobs.queue import MAX_WAITING_CHARS
from server.observe.metrics import Metrics
from server.setting_sources import load
from server.settings import Settings, SettingsError
from tests.support.dead_letters import MIB, failed_segment, ids


class Counted(Counter[str]):
    def __call__(self, result: str, letters: int) -> None:
        self[result] += letters

    def holds(self, result: str, letters: int) -> bool:
        return self[result] == letters


class SlowFolder(LetterFolder):
    """Writes only when it may."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, 4 * MIB)
        self.may_write = threading.Event()
        self.began = threading.Event()

    def append(self, lines: Sequence[bytes]) -> tuple[int, OSError | None]:
        self.began.set()
        self.may_write.wait(10)
        return super().append(lines)


class BrokenFolder(LetterFolder):
    """As on a full disk, until it is mended."""

    broken = True

    def append(self, lines: Sequence[bytes]) -> tuple[int, OSError | None]:
        if self.broken:
            return 0, OSError(28, "No space left on device")
        return super().append(lines)


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(5):
        while not true():
            await asyncio.sleep(0.005)


async def test_what_is_added_is_written_in_order_with_ids_and_times_of_its_own(tmp_path: Path) -> None:
    counted = Counted()
    letters = DeadLetters(LetterFolder(tmp_path, 4 * MIB), counted)
    for number in range(50):
        letters.add(failed_segment(f"第{number}句。"))
    await letters.close()
    found = [entry for entry in LetterFolder(tmp_path, MIB).read() if isinstance(entry, Letter)]
    assert [each.failed.request.cut.text for each in found] == [f"第{number}句。" for number in range(50)]
    assert len({each.id for each in found}) == 50
    assert all(len(each.id) == 12 and each.time.endswith("Z") for each in found)
    assert counted == {"written": 50}


async def test_without_a_folder_nothing_happens() -> None:
    counted = Counted()
    letters = DeadLetters(None, counted)
    letters.add(failed_segment())
    await letters.close()
    assert counted == {}


async def test_more_than_may_wait_is_dropped_and_counted(tmp_path: Path) -> None:
    folder = SlowFolder(tmp_path)
    counted = Counted()
    letters = DeadLetters(folder, counted)
    text = "长" * 99_000
    fit = MAX_WAITING_CHARS // 100_000
    with structlog.testing.capture_logs() as logs:
        began = asyncio.get_running_loop().time()
        for _ in range(fit + 5):
            letters.add(failed_segment(text, attempts=()))
        assert asyncio.get_running_loop().time() - began < 5
        assert counted == {"dropped": 5}
        folder.may_write.set()
        await until(lambda: counted["written"] == fit)
        for _ in range(fit):  # there is room for as many again
            letters.add(failed_segment(text, attempts=()))
        await letters.close()
    assert counted == {"dropped": 5, "written": 2 * fit}
    assert [line["event"] for line in logs] == ["dead letters are not written", "dead letters are written again"]
    assert logs[1]["lost"] == 5


async def test_closing_does_not_wait_for_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "CLOSE_TIMEOUT_S", 0.1)
    folder = SlowFolder(tmp_path)
    counted = Counted()
    letters = DeadLetters(folder, counted)
    letters.add(failed_segment())
    folder.began.wait(5)
    with structlog.testing.capture_logs() as logs:
        await letters.close()
        letters.add(failed_segment())
        await letters.close()
    folder.may_write.set()
    assert counted == {"dropped": 1}
    assert logs[0]["event"] == "the disk is too slow: dead letters were not written"


async def test_a_full_disk_is_logged_once_and_all_is_well_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_module, "WARN_EVERY_S", -1.0)
    folder = BrokenFolder(tmp_path, 4 * MIB)
    counted = Counted()
    letters = DeadLetters(folder, counted)
    with structlog.testing.capture_logs() as logs:
        for number in range(1, 4):
            letters.add(failed_segment())
            await until(partial(counted.holds, "failed", number))
        folder.broken = False
        letters.add(failed_segment())
        await letters.close()
    assert counted == {"failed": 3, "written": 1}
    assert [(line["event"], line.get("reason"), line.get("lost")) for line in logs] == [
        ("dead letters are not written", "No space left on device", None),
        ("dead letters are written again", None, 3),
    ]
    assert len(ids(folder)) == 1


async def test_one_that_cannot_be_written_down_takes_no_other_with_it(tmp_path: Path) -> None:
    counted = Counted()
    folder = LetterFolder(tmp_path, 40_000)
    letters = DeadLetters(folder, counted)
    with structlog.testing.capture_logs() as logs:
        letters.add(failed_segment("长" * 10_000))
        letters.add(failed_segment(lexicon={"你": object()}))
        letters.add(failed_segment("短。"))
        await letters.close()
    assert counted == {"failed": 2, "written": 1}
    assert "长" not in str(logs)


async def test_a_system_without_threads_hurts_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    counted = Counted()
    letters = DeadLetters(LetterFolder(tmp_path, 4 * MIB), counted)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        letters.add(failed_segment())
    letters.add(failed_segment())
    await letters.close()
    assert counted == {"failed": 1, "written": 1}


# ---- where they are ----


def test_the_directory_follows_the_settings_and_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def path(environ: dict[str, str], **settings: Any) -> str | None:
        folder = folder_of(Settings(**settings), environ)
        return None if folder is None else str(folder.path)

    monkeypatch.setenv("HOME", "/home/ann")
    assert path({}) == "/home/ann/.local/state/cosystream/dead-letters"
    assert path({"XDG_STATE_HOME": "relative"}) == "/home/ann/.local/state/cosystream/dead-letters"
    assert path({"XDG_STATE_HOME": "/state"}) == "/state/cosystream/dead-letters"
    assert path({}, dead_letters="/there") == "/there"
    assert path({}, dead_letters="there") == f"{Path.cwd()}/there"
    assert path({}, dead_letters="off") is None
    assert path({}, no_text_at_rest=True) is None


def test_a_user_without_a_home_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", fail)
    with pytest.raises(FolderError, match="no home"):
        state_directory({})


def test_the_setting() -> None:
    for given, kept in (("AUTO", "auto"), ("off", "off"), (" /x/y ", "/x/y"), ("sub/dir", "sub/dir")):
        assert load(["--dead-letters", given], {}).dead_letters == kept
    assert load([], {"COSYSTREAM_DEAD_LETTERS": "~/x", "HOME": "/home/ann"}).dead_letters.endswith("/x")
    with pytest.raises(SettingsError, match="allowed is a directory, auto or off"):
        load(["--dead-letters", " "], {})
    with pytest.raises(SettingsError, match="allowed is a directory"):
        load(["--dead-letters", "~nobody-of-that-name/x"], {})


def test_no_text_at_rest_refuses_a_directory() -> None:
    assert load(["--no-text-at-rest"], {}).dead_letters == "auto"  # which is off then
    assert load(["--no-text-at-rest", "--dead-letters", "off"], {}).dead_letters == "off"
    with pytest.raises(SettingsError, match=r"dead_letters = '/x' .* no_text_at_rest"):
        load(["--no-text-at-rest", "--dead-letters", "/x"], {})


async def test_auto_without_a_place_is_off_with_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with structlog.testing.capture_logs() as logs:
        letters = open_dead_letters(Settings(), Metrics())
        assert open_dead_letters(Settings(), Metrics(), warns=False).folder is None
    assert letters.folder is None
    letters.add(failed_segment())
    await letters.close()
    (line,) = logs
    assert line["log_level"] == "warning"
    assert "set dead_letters to a directory that can be written, or to off" in line["event"]
    assert str(tmp_path) in line["reason"]


async def test_the_metrics_count(tmp_path: Path) -> None:
    metrics = Metrics()
    letters = open_dead_letters(Settings(dead_letters=str(tmp_path / "q")), metrics)
    letters.add(failed_segment())
    await letters.close()
    assert b'cosystream_dead_letters_total{result="written"} 1.0' in metrics.render()


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match=f"dead_letters: {tmp_path}/file/x cannot be written"):
        open_dead_letters(Settings(dead_letters=str(tmp_path / "file" / "x")), Metrics())
