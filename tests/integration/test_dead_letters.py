"""What an engine fails at reaches the dead-letter queue once, nothing of it the log, and it can be tried again."""

import asyncio
import io
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from protocol import client_messages as c
from protocol import server_messages as s
from server.__main__ import main
from server.jobs import Letter, LetterFolder
from server.observe.logs import configure_logs
from tests.support.dead_letters import MIB
from tests.support.processes import ROOT, get, server_process
from tests.support.server import bare_client, running, url_of

MARK = "玄鸟"
TEXT = f"第一句话。{MARK}翩翩。第三句话。又是{MARK}。最后一句。"
SPANS = [(5, 10), (15, 20)]  # the sentences with the mark
FAILING = {"engine_options": {"script": [{"match": MARK, "action": "fail"}]}, "fallback_engine": "none"}


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """Everything that is logged, as JSON lines."""
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    configure_logs("json", "info", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("server", "cosystream"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    structlog.reset_defaults()


def letters(place: Path) -> list[Letter]:
    return [entry for entry in LetterFolder(place, MIB).read() if isinstance(entry, Letter)]


def files(place: Path) -> list[Path]:
    return list(place.iterdir())


async def say(url: str, text: str = TEXT, **options: Any) -> bytes:
    """All samples of the text; fails where the session does."""
    async with bare_client(url, open=c.Open(**options)) as client:
        await client.say(1, text)
        done = await client.until(s.Done)
        pcm = client.pcm(1)
        assert len(pcm) == 2 * done.samples
        return pcm


async def test_each_failure_is_written_once_with_what_it_takes_to_try_again(
    tmp_path: Path, written: io.StringIO
) -> None:
    async with running(**FAILING, dead_letters=str(tmp_path / "q")) as server:
        await say(url_of(server), speed=1.25, sample_rate=16_000, voice="tone-high")
        metrics = server.metrics
    found = letters(tmp_path / "q")
    requests = [each.failed.request for each in found]
    assert [(request.cut.start, request.cut.end) for request in requests] == SPANS
    assert [request.cut.text for request in requests] == [TEXT[start:end] for start, end in SPANS]
    assert {(request.voice, request.speed, request.sample_rate) for request in requests} == {
        ("tone-high", 1.25, 16_000)
    }
    for each in found:
        assert (each.failed.engine, each.failed.fingerprint, each.failed.outcome) == ("tone", "tone-1", "clip")
        first = each.failed.attempts[0]
        assert (first.engine, first.kind) == ("tone", "exception")
        assert "scripted failure" in first.error
        assert "EngineError" in first.trace
        session, _, utterance = each.failed.request.origin.partition("/")
        assert session
        assert utterance == "1"
    assert b'cosystream_dead_letters_total{result="written"} 2.0' in metrics.render()
    assert MARK not in written.getvalue()
    assert ascii(MARK).strip("'") not in written.getvalue()


async def test_an_error_that_quotes_the_text_is_in_the_letter_and_not_in_the_log(
    tmp_path: Path, written: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **_: Any) -> Any:
        raise RuntimeError(f"cannot say {MARK} of {arguments!r}")

    async with running(**FAILING, dead_letters=str(tmp_path)) as server:
        monkeypatch.setattr("server.engines.tone.ToneEngine.prepare", fail)
        (tmp_path / "letters.1.jsonl").mkdir()  # what goes wrong with the files is logged without a text, too
        await say(url_of(server), TEXT)
    first = letters(tmp_path)[0].failed.attempts[0]
    assert f"cannot say {MARK}" in first.error
    assert f"cannot say {MARK}" in first.trace
    assert MARK not in written.getvalue()
    assert ascii(MARK).strip("'") not in written.getvalue()


def test_once_the_fault_is_gone_they_can_be_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "q"

    async def fail() -> None:
        async with running(**FAILING, dead_letters=str(place)) as server:
            await say(url_of(server))

    asyncio.run(fail())
    capsys.readouterr()
    engine = ("--engine", "tone", "--log-format", "json")
    command = [sys.executable, "-m", "server", "dlq", "replay", "--all", "--dir", str(place), *engine]
    script = f'script=[{{"match": "又是{MARK}", "action": "fail"}}]'
    half = subprocess.run([*command, "--engine-option", script], cwd=ROOT, capture_output=True, text=True, timeout=30)
    first, second = (each.id for each in letters(place))
    assert half.returncode == 1
    assert [line.split()[:2] for line in half.stdout.splitlines()[:2]] == [[first, "succeeds,"], [second, "fails:"]]
    whole = subprocess.run(
        [*command, "-o", str(tmp_path / "wavs")], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    assert (whole.returncode, whole.stderr) == (0, "")
    assert [path.name for path in (tmp_path / "wavs").iterdir()] == [f"{second}.wav"]
    assert main(["dlq", "list", "--dir", str(place)]) == 0
    assert capsys.readouterr().out == ""
    assert len(letters(place)) == 2


async def test_several_servers_share_a_directory(tmp_path: Path) -> None:
    async with running(**FAILING, dead_letters=str(tmp_path)) as one:
        async with running(**FAILING, dead_letters=str(tmp_path)) as other:
            for _ in range(3):
                await say(url_of(one))
                await say(url_of(other))
    assert len(letters(tmp_path)) == 12
    assert len({each.id for each in letters(tmp_path)}) == 12


async def test_what_is_given_up_because_the_server_stops_is_written_too(tmp_path: Path) -> None:
    async with running(**FAILING, dead_letters=str(tmp_path), read_ahead_ms=500) as server:
        async with bare_client(url_of(server), open=c.Open()) as client:
            await client.say(1, MARK + "翩翩" * 15 + "。")
            while not client.frames:
                await client.receive()
            client.socket.transport.abort()
    assert [each.failed.outcome for each in letters(tmp_path)] == ["abandoned"]


async def test_a_disk_that_takes_nothing_hurts_no_session(tmp_path: Path) -> None:
    place = tmp_path / "q"
    with structlog.testing.capture_logs() as logs:
        async with running(**FAILING, dead_letters=str(place)) as server:
            (place / "letters.jsonl").mkdir()  # nothing can be written there
            broken = await say(url_of(server))
            (place / "letters.jsonl").rmdir()
            assert await say(url_of(server)) == broken
            scraped = server.metrics.render()
    assert b'cosystream_dead_letters_total{result="failed"} 2.0' in scraped
    assert len(letters(place)) == 2
    told = [line["event"] for line in logs if "dead letters" in line["event"]]
    assert told == ["dead letters are not written", "dead letters are written again"]


async def test_nothing_is_written_where_they_are_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for settings in ({"dead_letters": "off"}, {"dead_letters": "auto", "no_text_at_rest": True}):
        async with running(**FAILING, **settings) as server:
            await say(url_of(server))
    assert files(tmp_path) == []


# ---- as a process ----


def test_the_users_state_directory_is_the_default(tmp_path: Path) -> None:
    with server_process(tmp_path / "log", "--engine", "tone", env={"XDG_STATE_HOME": "", "HOME": str(tmp_path)}):
        place = tmp_path / ".local" / "state" / "cosystream" / "dead-letters"
        assert place.stat().st_mode & 0o777 == 0o700


def test_without_a_home_the_server_warns_once_and_speaks(tmp_path: Path) -> None:
    nowhere = {"XDG_STATE_HOME": "", "HOME": "/proc/none"}
    with server_process(tmp_path / "log", "--engine", "tone", "--gateways", "2", env=nowhere) as server:
        assert get(f"{server.http}/readyz")[0] == 200
        server.stop()
        warned = [line for line in server.log() if "dead_letters" in str(line["event"])]
    assert len(warned) == 1
    assert warned[0]["level"] == "warning"


@pytest.mark.parametrize("gateways", ["1", "2"])
def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path, gateways: str) -> None:
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "q"
    options = ("--port", "0", "--engine", "tone", "--gateways", gateways, "--dead-letters", str(place))
    done = subprocess.run(
        [sys.executable, "-m", "server", *options],
        cwd=ROOT,
        env={**os.environ, "COSYSTREAM_LOG_FORMAT": "json"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert f"dead_letters: {place} cannot be written: Not a directory" in line
