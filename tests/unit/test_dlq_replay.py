"""`python -m server dlq replay`: letters tried again, and what is said where one of them fails."""

import wave
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from server.__main__ import main
from server.cluster import InProcessPool
from server.engines.rendering import SegmentRequest
from server.jobs import Resolved
from server.jobs.letters import encode
from tests.support.dead_letters import MIB, folder_with, letter

A, B, C = "aaaa00000001", "aaaa00000002", "bbbb00000003"
FAILING = ("--engine", "tone", "--engine-option", 'script=[{"match": "界", "action": "fail"}]')


@pytest.fixture(autouse=True)
def _no_logging_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a command does to logging stays in its test."""
    monkeypatch.setattr("server.jobs.replay.configure_logs", lambda *_: None)
    yield
    structlog.reset_defaults()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Three letters, of which one is resolved."""
    path = tmp_path / "q"
    folder_with(
        path,
        letter(A, "你好世界。"),
        letter(B, "第二\x1b[31m句\ud800\u202e。", outcome="fallback"),
        letter(C, "Hello.", voice="tone-high"),
        Resolved(B, "2026-03-04T05:06:07.000Z"),
    )
    return path


def dlq(place: Path, *arguments: str) -> int:
    return main(["dlq", *arguments, "--dir", str(place)])


def test_what_succeeds_is_resolved_and_written(place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert dlq(place, "replay", "--all", "-o", str(tmp_path / "out" / "wavs")) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in out] == [[A, "succeeds,"], [C, "succeeds,"], ["2", "of"]]
    assert sorted(path.name for path in (tmp_path / "out" / "wavs").iterdir()) == [f"{A}.wav", f"{C}.wav"]
    with wave.open(str(tmp_path / "out" / "wavs" / f"{A}.wav")) as file:
        assert (file.getframerate(), file.getnchannels()) == (24_000, 1)
        assert file.getnframes() == 4 * 2880 + 2880  # four words, and the pause of a clause
    assert dlq(place, "list") == 0
    assert capsys.readouterr().out == ""
    assert dlq(place, "replay", B, "-o", str(tmp_path / "one.wav")) == 0  # also one that is resolved already
    assert (tmp_path / "one.wav").exists()


def test_what_fails_again_stays(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dlq(place, "replay", "--all", *FAILING) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"{A}  fails: exception: scripted failure at chunk 0"
    assert out[1].startswith(f"{C}  succeeds, ")
    assert out[2] == "1 of 2 succeed"
    dlq(place, "list")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == [A]


def test_everything_that_decides_the_samples_is_used(tmp_path: Path) -> None:
    whole = letter(A, "Hello.", sample_rate=16_000, speed=2.0)
    slow = letter(B, "Hello.", sample_rate=16_000)
    read = letter(C, "Hello.", sample_rate=16_000, lexicon={"Hello": "one two"})
    folder_with(tmp_path, whole, slow, read)
    assert dlq(tmp_path, "replay", "--all", "-o", str(tmp_path)) == 0
    frames = []
    for each in (A, B, C):
        with wave.open(str(tmp_path / f"{each}.wav")) as file:
            assert file.getframerate() == 16_000
            frames.append(file.getnframes())
    assert frames[1] == 2 * frames[0]
    assert frames[2] > frames[1]


@pytest.mark.parametrize(
    ("changes", "options", "said"),
    [
        ({"voice": "nobody"}, (), "tone has no voice nobody here"),
        ({"engine": "gone"}, ("--engine", "tone"), "no engine gone is installed here"),
        ({}, ("--engine", "tone", "--engine-option", "x=1"), "the engine tone cannot start: engine option x is not"),
        ({"fingerprint": "tone-0"}, FAILING, "at chunk 0 (the engine is another version than then)"),
    ],
)
def test_why_it_cannot_be_tried(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, str],
    options: tuple[str, ...],
    said: str,
) -> None:
    folder_with(tmp_path, letter(A, **changes))
    assert dlq(tmp_path, "replay", A, *options) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{A}  fails: ")
    assert said in line


def test_audio_that_cannot_be_written_resolves_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "file").write_text("")
    assert dlq(place, "replay", A, "-o", str(place / "file" / "x.wav")) == 1
    assert f"fails: 0.60 s of audio cannot be written: Not a directory ({place}/file/x.wav)" in capsys.readouterr().out
    dlq(place, "list")
    assert A in capsys.readouterr().out


def test_a_full_device_is_said_and_resolves_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dlq(place, "replay", A, "-o", "/dev/full") == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line == f"{A}  fails: 0.60 s of audio cannot be written: No space left on device (/dev/full)"
    dlq(place, "list")
    assert A in capsys.readouterr().out
    assert dlq(place, "replay", A, "-o", "/dev/null") == 0
    assert capsys.readouterr().out == f"{A}  succeeds, 0.60 s of audio in /dev/null\n"


def test_no_other_file_becomes_audio(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notes = place / "notes.txt"
    notes.write_text("mine")
    assert dlq(place, "replay", A, "-o", str(notes)) == 2
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", f"cosystream: {notes} is neither a directory nor a .wav file\n")
    assert notes.read_text() == "mine"


def test_a_letter_with_a_path_for_an_id_writes_nowhere(
    place: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = encode(letter("dddd00000005"), MIB)
    with (place / "letters.jsonl").open("ab") as file:
        for odd in ("../../evil", f"{tmp_path}/evil", "x" * 1_000):
            file.write(line.replace(b"dddd00000005", odd.encode()))
    assert dlq(place, "replay", "--all", "-o", str(tmp_path / "a" / "b")) == 0
    assert "3 lines are damaged" in capsys.readouterr().err
    assert {path.name for path in tmp_path.rglob("*.wav")} == {f"{A}.wav", f"{C}.wav"}


def test_whatever_is_wrong_with_one_letter_the_others_are_tried(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    synthesize = InProcessPool.synthesize

    def fail_at_one(pool: InProcessPool, request: SegmentRequest) -> object:
        if request.voice == "tone-low":
            raise OverflowError("odd\nparameters")
        return synthesize(pool, request)

    monkeypatch.setattr(InProcessPool, "synthesize", fail_at_one)
    assert dlq(place, "replay", "--all") == 1
    first, second, last = capsys.readouterr().out.splitlines()
    assert first == f"{A}  fails: OverflowError: odd\\nparameters"
    assert second.startswith(f"{C}  succeeds")
    assert last == "1 of 2 succeed"


def test_a_mark_that_cannot_be_written_is_said(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(30, "Read-only file system", "letters.jsonl")

    monkeypatch.setattr("server.jobs.folder.LetterFolder.mark", fail)
    assert dlq(place, "replay", A) == 1
    assert (
        "of audio, but it cannot be marked as resolved: Read-only file system (letters.jsonl)"
        in capsys.readouterr().out
    )
