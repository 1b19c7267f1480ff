"""The command line over connections that break: the file is whole, and what happened is told and measured."""

import asyncio
import json
import signal
import time
import wave
from pathlib import Path

import pytest
import soundfile

from client.cli.exit_codes import ExitCode
from protocol import client_messages as c
from protocol import server_messages as s
from tests.support.client_process import Command, run
from tests.support.fake_server import (
    FRAME_SAMPLES,
    SAMPLES_PER_CHARACTER,
    Behaviour,
    FakeSession,
    fake_server,
    speech_of,
)

TEXT = "你好, world. A second sentence."
TTL_MS = 60_000


async def vanish(session: FakeSession) -> None:
    session.socket.transport.abort()


async def vanish_once(session: FakeSession) -> None:
    session.behaviour.fail_after = None
    session.socket.transport.abort()


async def go_away(session: FakeSession) -> None:
    session.behaviour.refuses = True
    session.socket.transport.abort()


def samples_of(path: Path) -> bytes:
    with wave.open(str(path)) as file:
        pcm: bytes = file.readframes(file.getnframes())
    return pcm


async def test_a_run_that_resumed_is_a_success(tmp_path: Path) -> None:
    async with fake_server(Behaviour(fail_after=10, how=vanish, resume_ttl_ms=TTL_MS)) as server:
        ended = await run(tmp_path, "say", TEXT, "-o", "a.wav", "--stats", "s.json", url=server.url)
        drops = server.sessions[0].failures
    assert ended.code == 0, ended.err
    assert samples_of(tmp_path / "a.wav") == speech_of(0, TEXT)
    lines = ended.err.splitlines()
    assert lines[0] == "the connection broke: reconnecting"
    assert lines[1].startswith("resumed after 0.")
    assert len(lines) == 2 * drops + 1
    stats = json.loads((tmp_path / "s.json").read_bytes())
    assert stats["ok"] is True
    assert (stats["resumes"], stats["restarts"], stats["resent_bytes"], stats["mode_switches"]) == (drops, 0, 0, 0)
    assert 0 < stats["outage_s"] < drops
    assert set(stats["modes"]) == {"stream", "block"}
    assert stats["modes"]["stream"] > 0


async def test_quiet_is_quiet(tmp_path: Path) -> None:
    async with fake_server(Behaviour(fail_after=10, how=vanish, resume_ttl_ms=TTL_MS)) as server:
        ended = await run(tmp_path, "say", TEXT, "-o", "a.wav", "--quiet", url=server.url)
    assert (ended.code, ended.err) == (0, "")


async def test_no_resume(tmp_path: Path) -> None:
    async with fake_server(Behaviour(fail_after=10, how=vanish, resume_ttl_ms=TTL_MS)) as server:
        ended = await run(tmp_path, "say", TEXT, "-o", "a.wav", "--no-resume", url=server.url)
        assert server.of(c.Resume) == []
    assert ended.code == ExitCode.LOST
    assert ended.err.count("\n") == 1
    assert "error: the connection broke before the audio was complete, and resuming is off" in ended.err


async def test_a_server_that_keeps_no_sessions(tmp_path: Path) -> None:
    async with fake_server(Behaviour(fail_after=10, how=vanish)) as server:
        ended = await run(tmp_path, "say", TEXT, "-o", "a.wav", url=server.url)
    assert ended.code == ExitCode.LOST
    assert "error: the connection broke before the audio was complete, and the server keeps no sessions" in ended.err


async def test_an_outage_is_shown_while_it_lasts(tmp_path: Path) -> None:
    await asyncio.gather(an_outage(tmp_path, "a.wav", shown=True), an_outage(tmp_path, "b.wav", shown=False))


async def an_outage(folder: Path, name: str, *, shown: bool) -> None:
    behaviour = Behaviour(fail_after=10, how=go_away, resume_ttl_ms=TTL_MS)
    options = ["--progress"] if shown else []
    async with fake_server(behaviour) as server:
        command = await Command.start(folder, "say", TEXT, "-o", name, *options, url=server.url)
        assert command.process.stderr is not None
        begun = await command.process.stderr.readuntil(b"reconnecting")
        await asyncio.sleep(2.3)
        behaviour.refuses, behaviour.fail_after = False, None
        ended = await command.end()
    assert ended.code == 0, ended.err
    lines = (begun.decode() + ended.err).split("\n")
    assert lines[0].endswith("the connection broke: reconnecting")
    assert "resumed after 2." in lines[1]
    assert len(lines) == 4
    assert "still trying, 0 s" not in lines[1]
    for seconds in (1, 2):
        assert (f"\r0.4 s of audio; still trying, {seconds} s" in lines[1]) == shown
    assert "still trying" not in lines[2]
    assert len(lines[1]) < 250


async def test_opus_that_was_resumed_is_whole(tmp_path: Path) -> None:
    async with fake_server(Behaviour(fail_after=10, how=vanish, resume_ttl_ms=TTL_MS)) as server:
        ended = await run(tmp_path, "say", TEXT, "-o", "a.opus", url=server.url)
    assert ended.code == 0, ended.err
    assert len(soundfile.read(tmp_path / "a.opus")[0]) == len(TEXT) * SAMPLES_PER_CHARACTER


@pytest.mark.parametrize("name", ["a.wav", "a.opus"])
async def test_what_cannot_be_resumed_is_spoken_on_and_says_so(tmp_path: Path, name: str) -> None:
    behaviour = Behaviour(
        fail_after=18,
        how=vanish_once,
        resume_ttl_ms=TTL_MS,
        resume_answer=s.ResumeFailed("evicted"),
        frame_delay_s=0.001,
    )
    async with fake_server(behaviour) as server:
        ended = await run(tmp_path, "say", TEXT, "-o", name, "--stats", "s.json", "--captions", "c.vtt", url=server.url)
        rest = server.sessions[1].utterances[0].text
    assert ended.code == 0, ended.err
    position = len(TEXT) - len(rest)
    assert TEXT.endswith(rest)
    assert f"for want of memory: going on with a new one, from character {position}\n" in ended.err
    stats = json.loads((tmp_path / "s.json").read_bytes())
    assert (stats["resumes"], stats["restarts"], stats["ok"]) == (0, 1, True)
    length = len(soundfile.read(tmp_path / name)[0])
    assert 0 <= length - stats["samples"] < 1_000
    captions = (tmp_path / "c.vtt").read_text(encoding="utf-8")
    said = [word for line in captions.splitlines() for word in line.split("<")]
    assert sum("w" in part for part in said if "-->" not in part) >= 1
    for character in ("好", "w", "d"):
        assert captions.replace("WEBVTT", "").count(character) == TEXT.count(character)


async def test_a_server_that_stays_away_is_an_error(tmp_path: Path) -> None:
    async def refuse(session: FakeSession) -> None:
        session.behaviour.resume_answer = s.Error("unauthorized", "the key was revoked")
        session.socket.transport.abort()

    async with fake_server(Behaviour(fail_after=10, how=refuse, resume_ttl_ms=TTL_MS)) as server:
        ended = await run(tmp_path, "say", TEXT, "-o", "a.wav", url=server.url)
    assert ended.code == ExitCode.CONNECT
    assert "the key was revoked" in ended.err
    assert not (tmp_path / "a.wav").exists()
    assert (tmp_path / "a.wav.part").exists()


async def test_an_interrupt_during_an_outage_leaves_a_valid_file(tmp_path: Path) -> None:
    async with fake_server(Behaviour(fail_after=10, how=go_away, resume_ttl_ms=TTL_MS)) as server:
        command = await Command.start(tmp_path, "say", TEXT, "-o", "a.wav", "--stats", "s.json", url=server.url)
        assert command.process.stderr is not None
        await command.process.stderr.readuntil(b"reconnecting")
        await asyncio.sleep(0.2)
        command.process.send_signal(signal.SIGINT)
        began = time.monotonic()
        ended = await command.end()
        assert time.monotonic() - began < 2
    assert ended.code == ExitCode.INTERRUPTED
    assert samples_of(tmp_path / "a.wav") == speech_of(0, TEXT)[: 2 * 10 * FRAME_SAMPLES]
    assert 0.2 < json.loads((tmp_path / "s.json").read_bytes())["outage_s"] < 2


async def test_auto_is_pcm_or_opus_as_the_server_likes(tmp_path: Path) -> None:
    async with fake_server() as server:
        ended = await run(tmp_path, "say", TEXT, "--format", "auto", "-o", "a.wav", url=server.url)
        assert ended.code == 0, ended.err
        assert server.of(c.Open)[0].format == "auto"
    assert samples_of(tmp_path / "a.wav") == speech_of(0, TEXT)
    async with fake_server() as server:
        ended = await run(tmp_path, "say", TEXT, "--format", "auto", "-o", "a.opus", url=server.url)
    assert ended.code == ExitCode.USAGE
