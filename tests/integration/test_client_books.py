"""`stream --resume-from` and books above the limit of an utterance, as a user runs them, against a small server."""

import asyncio
import dataclasses
import json
import re
import signal
import wave
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from client.cli.exit_codes import ExitCode
from client.cli.state import read_state, write_state
from protocol import client_messages as c
from tests.support.client_process import Command, run
from tests.support.fake_server import Behaviour, FakeServer, FakeSession, fake_server, speech_of

TEXT = "".join(f"Sentence number {number} of it.\n" for number in range(40))
TTL_MS = 60_000


def samples_of(path: Path) -> bytes:
    with wave.open(str(path)) as file:
        pcm: bytes = file.readframes(file.getnframes())
    return pcm


def spoken_in(server: FakeServer) -> bytes:
    """What a file has to which all utterances went."""
    return b"".join(speech_of(0, utterance.text) for session in server.sessions for utterance in session.utterances)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(15):
        while not condition():
            await asyncio.sleep(0.005)


def safe(folder: Path) -> int:
    """Samples, as the state says."""
    path = folder / "out.wav.state"
    return int(json.loads(path.read_bytes())["samples"]) if path.exists() else 0


@pytest.fixture
def book(tmp_path: Path) -> Path:
    (tmp_path / "book.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", ["out.wav", "out.flac", "out.opus"])
async def test_a_book_above_the_limit_of_an_utterance_is_one_file(book: Path, name: str) -> None:
    async with fake_server(Behaviour(utterance_chars=400)) as server:
        ended = await run(
            book, "stream", "book.txt", "-o", name, "--captions", "c.srt", "--stats", "s.json", url=server.url
        )
        (session,) = server.sessions
        texts = [utterance.text for utterance in session.utterances]
    assert ended.code == 0, ended.err
    assert "".join(texts) == TEXT
    assert len(texts) > 2
    assert all(text.endswith("\n") for text in texts)
    expected = b"".join(speech_of(0, text) for text in texts)
    if name == "out.wav":
        assert samples_of(book / name) == expected
    else:
        import soundfile

        assert len(soundfile.read(book / name)[0]) == len(expected) // 2
    captions = (book / "c.srt").read_text(encoding="utf-8")
    assert re.findall(r"number (\d+) of", captions) == [str(number) for number in range(40)]
    last = re.findall(r"--> (\d+):(\d+):(\d+),(\d+)", captions)[-1]
    hours, minutes, seconds, ms = map(int, last)
    assert abs(3600 * hours + 60 * minutes + seconds + ms / 1000 - len(expected) / 48_000) < 1
    stats = json.loads((book / "s.json").read_bytes())
    assert (stats["characters"], stats["samples"]) == (len(TEXT), len(expected) // 2)
    assert names(book) == {"book.txt", name, "c.srt", "s.json"}


Scenario = Callable[[Path], Coroutine[Any, Any, None]]


async def side_by_side(folder: Path, *scenarios: Scenario) -> None:
    """Each with a book of its own: most of what they take is the start of clients."""

    async def one(number: int, scenario: Scenario) -> None:
        book = folder / str(number)
        await asyncio.to_thread(book.mkdir)
        await asyncio.to_thread((book / "book.txt").write_text, TEXT, encoding="utf-8")
        await scenario(book)

    await asyncio.gather(*(one(number, scenario) for number, scenario in enumerate(scenarios)))


async def test_a_run_that_was_interrupted_is_gone_on_with(tmp_path: Path) -> None:
    await side_by_side(
        tmp_path,
        partial(an_interrupted_book_goes_on_in_a_new_session, number=signal.SIGINT),
        partial(an_interrupted_book_goes_on_in_a_new_session, number=signal.SIGTERM),
        standard_input_goes_on_when_it_is_given_again,
        a_run_that_only_lacked_its_last_step_gets_its_name,
    )


async def test_a_client_or_a_session_that_died_is_followed_by_another(tmp_path: Path) -> None:
    await side_by_side(
        tmp_path,
        a_killed_client_is_followed_by_one_in_the_same_session,
        a_session_that_is_gone_is_replaced_at_a_whole_segment,
        a_session_that_died_with_its_client_is_told_in_one_line,
    )


async def test_what_is_kept_of_a_run_that_failed(tmp_path: Path) -> None:
    await side_by_side(
        tmp_path,
        what_was_spoken_before_a_wrong_byte_came_is_kept,
        a_file_that_lost_audio_is_not_gone_on_with,
        a_failure_says_how_to_go_on,
    )


async def an_interrupted_book_goes_on_in_a_new_session(book: Path, number: signal.Signals) -> None:
    async with fake_server(Behaviour(frame_delay_s=0.002)) as server:
        command = await Command.start(book, "stream", "book.txt", "-o", "out.wav", url=server.url)
        await until(lambda: safe(book) > 200_000)
        command.process.send_signal(number)
        ended = await command.end()
        assert ended.code == (ExitCode.INTERRUPTED if number == signal.SIGINT else ExitCode.TERMINATED)
        assert ended.err.splitlines()[-1] == "to go on: python -m client stream --resume-from out.wav"
        partial = samples_of(book / "out.wav")  # plays
        whole = read_state(book / "out.wav.state").whole
        assert partial[: 2 * whole.samples] == speech_of(0, TEXT[: whole.text])
        server.behaviour.frame_delay_s = 0
        ended = await run(book, "stream", "--resume-from", "out.wav.state", "--stats", "s.json", url=server.url)
    assert ended.code == 0, ended.err
    assert f"going on with a new session, at {whole.samples / 24_000:.1f} s, from character {whole.text}" in ended.err
    assert samples_of(book / "out.wav") == speech_of(0, TEXT[: whole.text]) + speech_of(0, TEXT[whole.text :])
    assert not (book / "out.wav.state").exists()
    stats = json.loads((book / "s.json").read_bytes())
    assert stats["resumed_from"] == {"samples": whole.samples, "characters": whole.text}


async def a_killed_client_is_followed_by_one_in_the_same_session(book: Path) -> None:
    async with fake_server(Behaviour(frame_delay_s=0.002, resume_ttl_ms=TTL_MS)) as server:
        command = await Command.start(book, "stream", "book.txt", "-o", "out.wav", url=server.url)
        await until(lambda: safe(book) > 200_000)
        command.process.kill()
        await command.end()
        ack = max(server.of(c.Ack), key=lambda ack: ack.next_sample)
        assert ack.next_sample <= safe(book)  # the server may not forget what is not in the file
        ended = await run(book, "stream", "--resume-from", "out.wav", "--quiet", url=server.url)
        (resume,) = server.of(c.Resume)
        assert len(server.sessions) == 1
    assert (ended.code, ended.err) == (0, "")
    assert resume.next_sample >= ack.next_sample
    assert samples_of(book / "out.wav") == speech_of(0, TEXT)


async def a_session_that_is_gone_is_replaced_at_a_whole_segment(book: Path) -> None:
    """Without a new client."""

    async def vanish_once(session: FakeSession) -> None:
        session.behaviour.fail_after = None
        session.end()
        session.socket.transport.abort()

    async with fake_server(Behaviour(fail_after=200, how=vanish_once, resume_ttl_ms=TTL_MS)) as server:
        ended = await run(book, "stream", "book.txt", "-o", "out.wav", "--stats", "s.json", url=server.url)
        _, second = server.sessions
        rest = second.utterances[0].text
    assert ended.code == 0, ended.err
    assert TEXT.endswith(rest)
    assert "the server does not know the session any more: going on with a new one, at " in ended.err
    assert f" s, from character {len(TEXT) - len(rest)}\n" in ended.err
    assert samples_of(book / "out.wav") == speech_of(0, TEXT[: -len(rest)]) + speech_of(0, rest)
    assert json.loads((book / "s.json").read_bytes())["restarts"] == 1


async def a_session_that_died_with_its_client_is_told_in_one_line(book: Path) -> None:
    async with fake_server(Behaviour(frame_delay_s=0.002, resume_ttl_ms=TTL_MS)) as server:
        command = await Command.start(book, "stream", "book.txt", "-o", "out.wav", url=server.url)
        await until(lambda: safe(book) > 200_000)
        command.process.kill()
        await command.end()
        server.forget()
        server.behaviour.frame_delay_s = 0
        whole = read_state(book / "out.wav.state").whole
        ended = await run(book, "stream", "--resume-from", "out.wav", url=server.url)
    assert ended.code == 0, ended.err
    assert ended.err.splitlines()[:-1] == [
        "the server does not know the session any more: going on with a new one, "
        f"at {whole.samples / 24_000:.1f} s, from character {whole.text}"
    ]


async def standard_input_goes_on_when_it_is_given_again(book: Path) -> None:
    async with fake_server(Behaviour(frame_delay_s=0.002)) as server:
        command = await Command.start(book, "stream", "-", "-o", "out.wav", url=server.url)
        assert command.process.stdin is not None
        command.process.stdin.write(TEXT.encode())
        await until(lambda: safe(book) > 200_000)
        command.process.send_signal(signal.SIGINT)
        ended = await command.end()
        assert "to go on: the same text again | python -m client stream - --resume-from out.wav" in ended.err
        whole = read_state(book / "out.wav.state").whole
        server.behaviour.frame_delay_s = 0
        arguments = ("stream", "-", "--resume-from", "out.wav")
        ended = await run(book, *arguments, url=server.url, stdin=TEXT.replace("0", "9").encode())
        assert (ended.code, ended.out) == (ExitCode.USAGE, b"")
        assert "this is not the text of the earlier run" in ended.err
        ended = await run(book, *arguments, url=server.url, stdin=TEXT[: whole.text - 9].encode())
        assert ended.code == ExitCode.USAGE
        assert "the text ends at character" in ended.err
        ended = await run(book, *arguments, url=server.url, stdin=TEXT.encode())
    assert ended.code == 0, ended.err
    assert samples_of(book / "out.wav") == speech_of(0, TEXT[: whole.text]) + speech_of(0, TEXT[whole.text :])


async def what_was_spoken_before_a_wrong_byte_came_is_kept(book: Path) -> None:
    async with fake_server(Behaviour(frame_delay_s=0.002)) as server:
        command = await Command.start(book, "stream", "-", "-o", "out.wav", url=server.url)
        assert command.process.stdin is not None
        command.process.stdin.write(TEXT.encode())
        await until(lambda: safe(book) > 50_000)
        command.process.stdin.write("字".encode() * 20 + b"\xff\xfe\n")
        command.process.stdin.write_eof()
        ended = await command.end()
    assert ended.code == ExitCode.USAGE, ended.err
    assert "(what came is in out.wav.part)\nto go on: " in ended.err
    assert names(book) == {"book.txt", "out.wav.part", "out.wav.state"}


async def a_run_that_only_lacked_its_last_step_gets_its_name(book: Path) -> None:
    async with fake_server() as server:
        ended = await run(book, "stream", "book.txt", "-o", "out.wav", url=server.url)
        command = await Command.start(book, "stream", "book.txt", "-o", "other.wav", url=server.url)
        state = read_state(book / "other.wav.state") if (await command.end()).code != 0 else None
    assert ended.code == 0
    assert state is None
    from client.cli.ledger import Place
    from client.cli.state import ARGUMENTS, Source, State

    samples = len(samples_of(book / "out.wav")) // 2
    arguments = {
        **dict.fromkeys(ARGUMENTS), "language": "auto", "speed": 1.0, "pitch": 1.0, "volume": 1.0, "instruct": "",
        "seed": 0, "mode": "auto", "format": "pcm", "sample_rate": 24_000,
    }  # fmt: skip
    complete = State(
        Source.of(str(book / "book.txt")), "ws://127.0.0.1:1", "wav", arguments,
        Place(len(TEXT), samples), Place(len(TEXT), samples), samples, is_complete=True,
    )  # fmt: skip
    for name in ("out.wav.part", "out.wav"):  # killed before it had its name, or after
        whole = (book / "out.wav").read_bytes()
        (book / "out.wav").rename(book / name)
        write_state(book / "out.wav.state", complete, sync=False)
        ended = await run(book, "stream", "--resume-from", "out.wav")
        assert ended.code == 0, ended.err
        assert (book / "out.wav").read_bytes() == whole
        assert not (book / "out.wav.state").exists()


async def a_file_that_lost_audio_is_not_gone_on_with(book: Path) -> None:
    async with fake_server(Behaviour(frame_delay_s=0.002)) as server:
        command = await Command.start(book, "stream", "book.txt", "-o", "out.wav", url=server.url)
        await until(lambda: safe(book) > 200_000)
        command.process.kill()
        await command.end()
        state = read_state(book / "out.wav.state")
        write_state(book / "out.wav.state", dataclasses.replace(state, synced=state.whole), sync=False)
        with (book / "out.wav.part").open("r+b") as file:
            file.truncate(100_000)
        ended = await run(book, "stream", "--resume-from", "out.wav", url=server.url)
        assert ended.code == ExitCode.USAGE
        assert "out.wav.part is shorter than its state says: put it back, or begin anew" in ended.err
        (book / "out.wav.part").unlink()
        ended = await run(book, "stream", "--resume-from", "out.wav", url=server.url)
        assert ended.code == ExitCode.USAGE
        assert ended.err.startswith("error: out.wav is missing (and there is no out.wav.part): put it back, or begin")
        assert len(server.sessions) == 1


async def a_failure_says_how_to_go_on(book: Path) -> None:
    async def vanish(session: FakeSession) -> None:
        session.socket.transport.abort()

    async with fake_server(Behaviour(fail_after=100, how=vanish)) as server:
        ended = await run(book, "stream", "book.txt", "-o", "out.wav", url=server.url)
        assert ended.code == ExitCode.LOST
        assert "(what came is in out.wav.part)\nto go on: python -m client stream --resume-from out.wav\n" in ended.err
        server.behaviour.fail_after = None
        ended = await run(book, "stream", "--resume-from", "out.wav", url=server.url)
    assert ended.code == 0, ended.err
    assert (book / "out.wav").exists()


async def test_no_state_is_kept_where_nothing_can_be_gone_on_with(book: Path) -> None:
    async with fake_server(Behaviour(frame_delay_s=0.002)) as server:
        for arguments in (("say", TEXT[:300], "-o", "a.wav"), ("stream", "book.txt", "-o", "-")):
            command = await Command.start(book, *arguments, url=server.url)
            async with asyncio.timeout(10):
                await server.started.wait()
            await asyncio.sleep(0.3)
            command.process.send_signal(signal.SIGINT)
            ended = await command.end()
            assert "to go on" not in ended.err
        assert not [name for name in names(book) if name.endswith(".state")]
