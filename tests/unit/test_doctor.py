"""`python -m server doctor`: what there is, what is wrong, one line each."""

from importlib import metadata
from pathlib import Path

import pytest

from server.__main__ import main
from server.engines import examining
from server.engines.embedded import examining as embedded


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_the_default_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COSYSTREAM_MODEL_DIR", str(tmp_path))
    assert main(["doctor", "--engine-option", "voices=en-hibari"]) == 0
    told = lines(capsys)
    assert any(line.split() == "voice en-hibari is built at the first start".split() for line in told)
    assert not any("zh-baker" in line for line in told)
    assert told[-1] == "it fits"
    assert not list(tmp_path.iterdir())


def test_too_little_of_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COSYSTREAM_MODEL_DIR", str(tmp_path))
    monkeypatch.setattr(embedded, "free_memory", lambda: 10_000_000)
    monkeypatch.setattr(embedded, "BUILD_BYTES", 10**18)
    assert main(["doctor"]) == 1
    told = lines(capsys)
    problems = [line for line in told if line.startswith("PROBLEM: ")]
    assert [problem.split()[1] for problem in problems] == ["disk:", "memory:"]
    assert "400.0 MB" in problems[1] or "0.4 GB" in problems[1]
    assert told[-1] == "it does not fit"


def test_wrong_names_and_options_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--engine", "nobody"]) == 1
    told = lines(capsys)
    assert any(line.startswith("PROBLEM: engine: nobody is not one of ") for line in told)
    assert told[-1] == "it cannot run here"
    assert main(["doctor", "--engine-option", "colour=red"]) == 1
    assert "PROBLEM: embedded: engine option colour is not one of " in capsys.readouterr().out
    assert main(["doctor", "--port", "x"]) == 2


def test_its_help_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--engine", "tone", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("usage: python -m server doctor ")
    assert "Exit status: 0 it fits; 1 " in told


def test_what_is_assumed_is_a_condition(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def assuming(_: object, found: examining.Examination) -> None:
        found.assumed = "pigs fly"

    monkeypatch.setattr(embedded, "examine", assuming)
    assert main(["doctor"]) == 0
    assert lines(capsys)[-1] == "it fits, if pigs fly"


def test_an_engine_that_nobody_knows_of_is_only_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--engine", "tone", "--workers", "3"]) == 0
    told = lines(capsys)
    assert told[-2:] == [
        "advice: each of the 3 workers takes as much, on the device that it is given",
        "it fits",
    ]


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ["numpy>=2", 'win-only>=1; sys_platform == "win32"', 'torch>=2.6; extra == "cosyvoice"']
    there += ['gone-away>=1; extra == "cosyvoice"', "lost>=3"]
    monkeypatch.setattr(metadata, "requires", lambda _: there)
    found = examining.Examination()
    assert not examining.check_packages(found)
    assert found.problems == ["packages: there is no lost: pip install -e . -c constraints.txt"]
    found = examining.Examination()
    assert not examining.check_packages(found, "cosyvoice")
    assert "gone-away" in found.problems[0]
    assert found.problems[0].endswith(": pip install -e '.[cosyvoice]' -c constraints.txt")


def test_a_container_s_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "/proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    5000 kB\n",
        "/sys/fs/cgroup/memory.max": "3000000\n",
        "/sys/fs/cgroup/memory.current": "1000000\n",
    }
    monkeypatch.setattr(Path, "read_text", lambda self, *_: files[str(self)])
    assert examining.free_memory() == 2_000_000
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert examining.free_memory() == 5000 * 1024


def test_a_folder_that_is_not_there_yet_is_on_the_disk_above(tmp_path: Path) -> None:
    assert examining.existing(tmp_path / "a" / "b") == tmp_path
