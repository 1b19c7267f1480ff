"""`python -m server`: its helpers, and what it says when it cannot start."""

from pathlib import Path

import pytest

from server.__main__ import main
from server.gateway.auth import Principals, read_key_file
from server.settings import markdown_table


def test_keys_are_made_listed_and_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "keys")
    assert main(["keys", "add", "ann", "--file", file]) == 0
    output = capsys.readouterr()
    key = output.out.strip()
    assert key.startswith("cosy_")
    assert f"--keys {file}" in output.err
    assert Principals.load(Path(file)).authenticate(f"Bearer {key}")
    assert main(["keys", "add", "ann", "--file", file]) == 0
    capsys.readouterr()
    assert main(["keys", "list", "--file", file]) == 0
    assert capsys.readouterr().out == "ann\n"
    assert main(["keys", "remove", "ann", "--file", file]) == 0
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith(f"removed 2 keys of ann from {file} (a running server goes by the old file")
    assert read_key_file(Path(file)) == []
    assert main(["keys", "remove", "ann", "--file", file]) == 1
    assert capsys.readouterr().err == f"cosystream: {file} has no key of ann\n"


def test_the_key_file_of_the_environment_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSYSTREAM_KEYS", str(tmp_path / "keys"))
    assert main(["keys", "add", "bob"]) == 0
    assert [entry.name for entry in read_key_file(tmp_path / "keys")] == ["bob"]


def test_faults_are_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "list", "--file", str(tmp_path / "none")]) == 1
    assert (
        capsys.readouterr().err == f"cosystream: key file {tmp_path}/none cannot be read: No such file or directory\n"
    )
    assert main(["--port", "x", "--host", ""]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("cosystream: ") for line in lines)
    assert main(["serve", "--port", "x"]) == 2


def test_the_health_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "--port", "1"]) == 1
    assert "127.0.0.1 port 1" in capsys.readouterr().err
    assert main(["health", "--port", "x"]) == 2


def test_the_settings_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "--markdown"]) == 0
    assert capsys.readouterr().out == markdown_table() + "\n"
    assert main(["settings"]) == 0
    assert "--max-sessions" in capsys.readouterr().out


def test_help_needs_no_engine(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    assert "COSYSTREAM_" in capsys.readouterr().out


def test_a_command_behind_its_options_is_told_where_it_belongs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--port", "0", "dlq", "list"]) == 2
    assert "cosystream: the command comes first: `python -m server dlq ...`\n" in capsys.readouterr().err
    assert main(["--port", "0", "nonsense"]) == 2
    assert "comes first" not in capsys.readouterr().err
