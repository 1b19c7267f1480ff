"""`python -m server dlq`: what it shows, and what it says where there is nothing to show."""

import json
import os
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from server.__main__ import main
from server.jobs import Letter, Resolved
from server.jobs.letters import encode
from tests.support.dead_letters import MIB, TIME, folder_with, letter

ROOT = Path(__file__).parents[2]
A, B, C = "aaaa00000001", "aaaa00000002", "bbbb00000003"


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


def test_the_list_has_what_is_not_resolved_and_the_newest_last(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dlq(place, "list") == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["id", "time", "(UTC)", "outcome", "failure", "engine", "voice", "chars", "text"]
    assert [row.split() for row in rows] == [
        [A, "2026-02-03", "04:05:06", "clip", "exception", "tone", "tone-low", "5", "你好世界。"],
        [C, "2026-02-03", "04:05:06", "clip", "exception", "tone", "tone-high", "6", "Hello."],
    ]


def test_resolved_ones_are_shown_on_demand_and_no_text_moves_the_terminal(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dlq(place, "list", "--resolved") == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[1:]] == [A, B, C]
    assert "fallback, resolved" in out
    assert "第二\\x1b[31m句\\ud800\\u202e。" in out
    assert not any(character in out for character in "\x1b\u202e")


@pytest.mark.parametrize("columns", [72, 80, 100, 130, 200])
def test_a_list_fits_its_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    odd = letter(B, " 长\n\x1b" * 300, engine="引擎" * 30, voice="x" * 128, outcome="something_newer")
    folder_with(tmp_path, letter(A, "a" * 400, outcome="cut_short"), odd, letter(C, "Short."), Resolved(A, TIME))
    assert dlq(tmp_path, "list", "--resolved") == 0
    lines = capsys.readouterr().out.splitlines()
    widths = [sum(2 if unicodedata.east_asian_width(each) == "W" else 1 for each in line) for line in lines]
    assert widths[1] == columns  # the long text takes what there is
    assert max(widths) <= columns
    assert [line[:12].strip() for line in lines] == ["id", A, B, C]
    assert "resolved" in lines[1]
    assert {each.find("text") for each in lines[:1]} == {lines[1].find("aaaaa", 12), lines[3].find("Short.")}
    assert ("engine" in lines[0]) == (columns >= 130)


def test_long_texts_are_cut_in_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder_with(tmp_path, letter(A, "长" * 100), letter(B, "a" * 100))
    assert dlq(tmp_path, "list") == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert [row.split()[-1] for row in rows] == ["长" * 15 + "...", "a" * 30 + "..."]


def test_the_list_as_json(place: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert dlq(place, "list", "--json", "--resolved") == 0
    tables = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [(each["id"], each["resolved"]) for each in tables] == [(A, False), (B, True), (C, False)]
    assert tables[1]["text"] == "第二\x1b[31m句\ud800\u202e。"
    assert tables[0]["attempts"][0]["stack"].startswith("Traceback")


def test_all_about_one_by_the_beginning_of_its_id(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dlq(place, "show", "bb", B) == 0
    out = capsys.readouterr().out
    assert out.index(C) < out.index(B)
    for expected in ("s-1/1", "ann", "tone (tone-1)", "tone-high, zh", "Hello.", "characters 0 to 6",
                     "attempt 1: tone, characters 0 to 11, from sample 0, 0.250 s: exception",
                     "  | EngineError: scripted", "resolved     2026-03-04T05:06:07.000Z"):  # fmt: skip
        assert expected in out
    assert "\x1b" not in out


@pytest.mark.parametrize("command", ["show", "replay"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("aaaa", "2 dead letters have an id that begins with aaaa"),
        ("0", "no dead letter in PLACE has the id 0"),
        ("", "no dead letter in PLACE has the id (empty)"),
        ("\x1b", "no dead letter in PLACE has the id \\x1b"),
    ],
)
def test_ids_that_are_unclear(
    place: Path, capsys: pytest.CaptureFixture[str], command: str, given: str, said: str
) -> None:
    assert dlq(place, command, C, given) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == f"cosystream: {said.replace('PLACE', str(place))}\n"


def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder_with(tmp_path / "empty")
    for command in (["list"], ["list", "--json"], ["replay", "--all"]):
        assert dlq(tmp_path / "empty", *command) == 0
        output = capsys.readouterr()
        assert (output.out, output.err) == ("", f"cosystream: there is no dead letter in {tmp_path}/empty\n")
    assert dlq(tmp_path / "none", "list") == 1
    assert capsys.readouterr().err == f"cosystream: {tmp_path}/none is no directory\n"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["dlq", "list"]) == 0  # nothing has failed yet
    assert capsys.readouterr().err == f"cosystream: there is no dead letter in {tmp_path}/cosystream/dead-letters\n"
    folder_with(tmp_path / "done", letter(A), Resolved(A, TIME))
    assert dlq(tmp_path / "done", "list") == 0
    assert "that is not resolved (see `list --resolved`)" in capsys.readouterr().err


def test_wrong_calls_are_one_line_each(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSYSTREAM_DEAD_LETTERS", "off")
    assert main(["dlq", "list"]) == 1
    assert capsys.readouterr().err == "cosystream: dead letters are off (dead_letters); name a directory with --dir\n"
    assert dlq(place, "replay") == 2
    assert dlq(place, "replay", "--all", A) == 2
    assert capsys.readouterr().err == "cosystream: replay takes either ids or --all\n" * 2
    assert dlq(place, "replay", "--all", "-o", "x.wav") == 2
    assert "2 letters do not go into the one file x.wav" in capsys.readouterr().err
    assert dlq(place, "list", "--port", "x") == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    for wrong in (["dlq"], ["dlq", "burn"], ["dlq", "show"], ["dlq", "list", "--nonsense"]):
        with pytest.raises(SystemExit) as caught:
            main(wrong)
        assert caught.value.code == 2


def test_the_directory_of_the_settings_is_the_default(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dlq", "list", "--dead-letters", str(place)]) == 0
    assert A in capsys.readouterr().out


def test_damage_is_told_and_the_rest_shown(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (place / "letters.jsonl").open("ab") as file:
        file.write(b"}\n{}\n")
    assert dlq(place, "list") == 0
    output = capsys.readouterr()
    assert output.err == f"cosystream: {place}/letters.jsonl: 2 lines are damaged and left out\n"
    assert A in output.out
    with (place / "letters.1.jsonl").open("ab") as file:
        file.write(b"{}\n")
    assert dlq(place, "list") == 0
    assert f"{place}/letters.1.jsonl: 1 line is damaged and left out\n" in capsys.readouterr().err
    (place / "letters.2.jsonl").mkdir()
    assert dlq(place, "list") == 1
    output = capsys.readouterr()
    assert f"cosystream: {place}/letters.2.jsonl cannot be read: is no plain file\n" in output.err
    assert A in output.out


# ---- as a process ----


def command(place: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "server", "dlq", *arguments, "--dir", str(place)]


def test_a_reader_that_leaves_is_no_failure(tmp_path: Path) -> None:
    folder_with(tmp_path, *(letter(f"{number:012}", "长" * 50) for number in range(2_000)), max_bytes=16 * MIB)
    for arguments in (["list"], ["list", "--json"], ["show", f"{5:012}"]):
        with subprocess.Popen(
            command(tmp_path, *arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.read(1)
            process.stdout.close()
            assert (process.wait(20), process.stderr.read()) == (0, b"")


def test_a_terminal_without_hanzi_gets_their_numbers(place: Path) -> None:
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for arguments in (["list", "--resolved"], ["show", A], ["list", "--json"]):
        done = subprocess.run(command(place, *arguments), cwd=ROOT, env=environ, capture_output=True, timeout=30)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"\\u4f60" in done.stdout or "你".encode() in done.stdout


def test_an_engine_that_hangs_ends_the_command(place: Path) -> None:
    script = '[{"match": "界", "action": "stall"}]'
    options = ("--engine", "tone", "--engine-option", f"script={script}", "--step-timeout-s", "0.5")
    done = subprocess.run(command(place, "replay", A, *options), cwd=ROOT, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert f"{A}  fails: time_out: the engine hangs" in done.stdout
    assert "Traceback" not in done.stderr


def test_letters_are_read_while_they_are_written(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (place / "letters.jsonl").open("ab") as file:
        file.write(encode(letter("cccc00000004", "半句"), MIB)[:50])
    assert dlq(place, "list") == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert len(output.out.splitlines()) == 3
    assert isinstance(letter(), Letter)
