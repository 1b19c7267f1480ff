"""Books in the hands of people: impatient ones, two at a time, files that go missing, speech that fell short."""

import asyncio
import dataclasses
import json
import re
import signal
from pathlib import Path

import pytest

from client.cli.exit_codes import ExitCode
from client.cli.state import read_state
from protocol import client_messages as c
from protocol import server_messages as s
from tests.integration.test_client_books import TEXT, TTL_MS, book, safe, samples_of, until  # noqa: F401  # a fixture
from tests.support.client_process import Command, run
from tests.support.fake_server import Behaviour, FakeServer, fake_server, speech_of

CAPTIONED = ("stream", "book.txt", "-o", "out.wav", "--captions", "c.vtt")


async def begin(book: Path, server: FakeServer) -> Command:  # noqa: F811
    """A run that has captions and audio on the disk."""
    command = await Command.start(book, *CAPTIONED, url=server.url)
    await until(lambda: safe(book) > 200_000)
    return command


@pytest.mark.parametrize("pause_s", [0.0, 0.003, 0.02])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
async def test_an_impatient_user_gets_a_whole_file_too(book: Path, second: signal.Signals, pause_s: float) -> None:  # noqa: F811
    async with fake_server(Behaviour(frame_delay_s=0.002, ignore_cancel=True)) as server:
        command = await begin(book, server)
        for number in (signal.SIGINT, second, second):
            command.process.send_signal(number)
            await asyncio.sleep(pause_s)
        ended = await command.end()
    assert ended.code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED), ended.err
    assert "Traceback" not in ended.err
    assert ended.err.splitlines()[-1] == "to go on: python -m client stream --resume-from out.wav"
    whole = read_state(book / "out.wav.state").whole
    assert samples_of(book / "out.wav")[: 2 * whole.samples] == speech_of(0, TEXT[: whole.text])
    assert (book / "c.vtt").exists()


async def test_a_second_run_does_not_disturb_the_first(book: Path) -> None:  # noqa: F811
    async with fake_server(Behaviour(frame_delay_s=0.001, resume_ttl_ms=TTL_MS)) as server:
        first = await begin(book, server)
        connections = server.connections
        second = await run(book, "stream", "--resume-from", "out.wav.state", url=server.url)
        assert second.code == ExitCode.OUTPUT
        assert "out.wav.part: another run is writing it" in second.err
        assert (server.connections, server.of(c.Resume)) == (connections, [])
        third = await run(book, *CAPTIONED, url=server.url)
        assert (third.code, (book / "out.wav.state").exists()) == (ExitCode.OUTPUT, True)
        ended = await first.end()
    assert (ended.code, "reconnecting" in ended.err) == (0, False), ended.err
    assert samples_of(book / "out.wav") == speech_of(0, TEXT)


@pytest.mark.parametrize("name", ["out.wav.part", "c.vtt.part"])
async def test_a_file_that_is_removed_meanwhile_is_not_to_be_gone_on_with(book: Path, name: str) -> None:  # noqa: F811
    async with fake_server(Behaviour(frame_delay_s=0.004)) as server:
        command = await begin(book, server)
        (book / name).unlink()
        ended = await command.end()
    assert ended.code == ExitCode.OUTPUT
    assert f"{name} was removed meanwhile" in ended.err
    assert "to go on" not in ended.err
    assert f"{name} is gone, and nothing can go on from out.wav.state without it: begin anew" in ended.err


async def test_captions_that_are_lost_are_named_before_anything_is_asked_for(book: Path) -> None:  # noqa: F811
    async with fake_server(Behaviour(frame_delay_s=0.004, resume_ttl_ms=TTL_MS)) as server:
        command = await begin(book, server)
        await until(lambda: (mark := read_state(book / "out.wav.state").synced_mark) is not None and mark.bytes > 0)
        command.process.kill()
        await command.end()
        synced = read_state(book / "out.wav.state").synced_mark
        assert synced is not None
        connections = server.connections
        captions = (book / "c.vtt.part").read_bytes()
        (book / "c.vtt.part").unlink()
        ended = await run(book, "stream", "--resume-from", "out.wav.state", url=server.url)
        assert (ended.code, server.connections) == (ExitCode.USAGE, connections)
        assert "c.vtt is missing (and there is no c.vtt.part): put it back, or begin anew" in ended.err
        (book / "c.vtt.part").write_bytes(captions[: synced.bytes])  # what power loss may leave
        server.behaviour.frame_delay_s = 0
        ended = await run(book, "stream", "--resume-from", "out.wav.state", url=server.url)
    assert ended.code == 0, ended.err
    told = re.sub(r"<[^>]*>", "", (book / "c.vtt").read_text(encoding="utf-8"))
    assert re.findall(r"number (\d+) of", told) == [str(number) for number in range(40)]


async def test_speech_that_fell_short_is_told_at_the_end(book: Path) -> None:  # noqa: F811
    def degrade(event: s.Event) -> s.Event:
        if isinstance(event, s.SegmentEnd) and event.segment > 36:
            return dataclasses.replace(event, degraded=True, reason="clip")
        return event

    async with fake_server(Behaviour(change_event=degrade)) as server:
        ended = await run(book, "stream", "book.txt", "-o", "out.wav", "--stats", "s.json", url=server.url)
        spoken = await run(book, "say", "One. Two.", "-o", "-", "--stats", "t.json", url=server.url)
    starts = [match.end() for match in re.finditer(r"it\.", TEXT)][35:]
    assert ended.code == 0
    degraded = json.loads((book / "s.json").read_bytes())["degraded"]
    assert degraded["segments"] == 5  # the last one is the line end
    assert degraded["first"] == [{"character": at, "reason": "clip"} for at in starts[:3]]
    assert ended.err.splitlines()[-1] == (
        "5 segments do not sound as intended: "
        + ", ".join(f"at character {at:,} (clip)" for at in starts[:3])
        + " and 2 more"
    )
    assert (spoken.code, json.loads((book / "t.json").read_bytes())["degraded"]) == (0, {"segments": 0, "first": []})


async def test_a_name_that_is_no_text_is_read_without_a_state(book: Path) -> None:  # noqa: F811
    name = b"b\xfcch.txt".decode("utf-8", "surrogateescape")
    (book / "book.txt").rename(book / name)
    async with fake_server() as server:
        ended = await run(book, "stream", name, "-o", "out.wav", url=server.url)
    assert ended.code == 0, ended.err
    assert samples_of(book / "out.wav") == speech_of(0, TEXT)
