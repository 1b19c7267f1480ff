"""The client library over connections that break: nothing lost, text keeps flowing, nothing left behind."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest

import client
from client.reconnecting import ATTEMPT_S
from client.shell import Session
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.media.opus import OpusUnavailableError
from tests.support.fake_server import SAMPLES_PER_CHARACTER, Behaviour, FakeSession, fake_server, speech_of

TEXT = "你好, world. A second sentence. And one without an end"
TTL_MS = 60_000


async def vanish(session: FakeSession) -> None:
    session.socket.transport.abort()


async def leave(session: FakeSession) -> None:
    await session.socket.close(1012)


async def fall_silent(session: FakeSession) -> None:
    session.muted = True


def resumable(**changes: object) -> Behaviour:
    return Behaviour(**({"resume_ttl_ms": TTL_MS} | changes))  # type: ignore[arg-type]  # by name


async def spoken(session: Session, text: str = TEXT) -> bytes:
    return b"".join([audio.pcm async for audio in session.speak(text)])


def descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    """No test may leave a task or a descriptor behind."""
    tasks, open_before = asyncio.all_tasks(), descriptors()
    yield
    async with asyncio.timeout(2):
        while descriptors() > open_before or asyncio.all_tasks() - tasks - {asyncio.current_task()}:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("how", [vanish, leave])
@pytest.mark.parametrize("format_", ["pcm", "opus"])
async def test_every_drop_is_made_good(how: object, format_: Literal["pcm", "opus"]) -> None:
    notices: list[str] = []
    async with fake_server(resumable(fail_after=7, how=how)) as server:
        async with client.connect(server.url, format=format_, on_notice=notices.append) as session:
            at = 0
            pcm = b""
            async for audio in session.speak(TEXT):
                assert audio.first_sample == at
                at = audio.end_sample
                pcm += audio.pcm
            assert at == len(TEXT) * SAMPLES_PER_CHARACTER
            if format_ == "pcm":
                assert pcm == speech_of(0, TEXT)
            drops = server.sessions[0].failures
            assert drops >= 8
            assert session.line.resumes == drops
        assert len(server.sessions) == 1
        assert server.connections == drops + 1
        assert [text.split(" after")[0] for text in notices[1::2]] == ["resumed"] * drops
        assert len(server.of(c.Text)) == 1


async def test_a_silent_connection_is_replaced() -> None:
    async with fake_server(resumable(fail_after=9, how=fall_silent)) as server:
        behaviour = server.behaviour
        async with client.connect(server.url) as session:
            got = bytearray()
            async for audio in session.speak(TEXT[:20]):
                got += audio.pcm
                behaviour.fail_after = None if session.line.resumes else 9
            assert got == speech_of(0, TEXT[:20])
            assert session.line.resumes >= 1
            assert 1.0 < session.line.outage_s / session.line.resumes < 3


async def test_text_keeps_flowing_during_an_outage() -> None:
    async with fake_server(resumable()) as server, client.connect(server.url) as session:
        utterance = await session.start()
        await utterance.write("Before. ")
        server.behaviour.refuses = True
        await vanish(server.sessions[0])
        await asyncio.sleep(0.1)
        began = time.monotonic()
        for n in range(2_000):
            await utterance.write(f"{n % 10}")
        await utterance.silence(100)
        await utterance.end()
        assert time.monotonic() - began < 1
        server.behaviour.refuses = False
        pcm = b"".join([audio.pcm async for audio in utterance.audio()])
        text = "Before. " + "".join(str(n % 10) for n in range(2_000))
        assert pcm == speech_of(0, text) + bytes(4_800)


async def test_text_beyond_the_window_waits_during_an_outage() -> None:
    async with fake_server(resumable(window=50)) as server, client.connect(server.url) as session:
        utterance = await session.start()
        server.behaviour.refuses = True
        await vanish(server.sessions[0])
        writing = asyncio.create_task(utterance.write("x" * 60 + "."))
        await asyncio.sleep(0.2)
        assert not writing.done()
        server.behaviour.refuses = False
        reading = asyncio.create_task(_collect(utterance))
        await asyncio.sleep(0.8)
        await utterance.flush()
        await writing
        await utterance.end()
        assert await reading == speech_of(0, "x" * 60 + ".")


async def _collect(utterance: client.Utterance) -> bytes:
    return b"".join([audio.pcm async for audio in utterance.audio()])


async def test_a_cancel_during_an_outage_is_confirmed_afterwards() -> None:
    behaviour = resumable(frame_delay_s=0.002)
    async with fake_server(behaviour) as server, client.connect(server.url) as session:
        utterance = await session.start()
        await utterance.write("x" * 200 + ".")
        async for _ in utterance.audio():
            break
        behaviour.refuses = True
        await vanish(server.sessions[0])
        await asyncio.sleep(0.05)
        await utterance.cancel()
        behaviour.refuses = False
        assert [type(item) async for item in utterance] == [s.Cancelled]
        assert await spoken(session) == speech_of(0, TEXT)


async def test_a_server_that_forgot_everything_is_told_the_rest() -> None:
    notices: list[str] = []
    behaviour = resumable(frame_delay_s=0.002)
    async with fake_server(behaviour) as server, client.connect(server.url, on_notice=notices.append) as session:
        got = 0
        async for audio in session.speak(TEXT, speed=1.5, lexicon={"world": "word"}):
            assert audio.first_sample == got
            got = audio.end_sample
            if got > 15 * SAMPLES_PER_CHARACTER and len(server.sessions) == 1:
                server.forget()
                await vanish(server.sessions[0])
        assert len(server.sessions) == 2
        rest = server.sessions[1].utterances[0].text
        assert TEXT.endswith(rest)
        position = len(TEXT) - len(rest)
        assert 12 <= position <= 20
        assert (
            notices[-1]
            == f"the server does not know the session any more: going on with a new one, from character {position}"
        )
        first, second = server.of(c.Start)
        assert (first.utterance, first.speed, first.lexicon) == (second.utterance, second.speed, second.lexicon)
        broke_off = got - len(rest) * SAMPLES_PER_CHARACTER
        assert 0 <= broke_off - position * SAMPLES_PER_CHARACTER < 2 * SAMPLES_PER_CHARACTER
        assert await spoken(session) == speech_of(0, TEXT)


@pytest.mark.parametrize("reason", ["expired", "evicted", "auth", "range", "epoch"])
async def test_whatever_the_reason_the_rest_is_told(reason: Literal["expired", "evicted"]) -> None:
    behaviour = resumable(fail_after=20, how=vanish, resume_answer=s.ResumeFailed(reason))
    async with fake_server(behaviour) as server, client.connect(server.url) as session:
        utterance = await session.start()
        await utterance.write(TEXT)
        await utterance.end()
        at = 0
        async for audio in utterance.audio():
            assert audio.first_sample == at
            at = audio.end_sample
            behaviour.fail_after = None
        assert isinstance(utterance.result, s.Done)
        assert utterance.result.samples == at
        assert utterance.statistics.restarts == len(server.sessions) - 1 == 1


# ---- when it does not come back ----


async def test_an_outage_ends_when_it_was_told_to() -> None:
    async with fake_server(resumable()) as server:
        async with client.connect(server.url, reconnect_s=0.8) as session:
            utterance = await session.start()
            server.behaviour.refuses = True
            await vanish(server.sessions[0])
            began = time.monotonic()
            with pytest.raises(client.ServerLost, match=r"connection broke.*no new connection brought it back.*503"):
                await anext(utterance)
            assert 0.7 < time.monotonic() - began < 1.5


async def test_without_resume_a_lost_connection_is_an_error() -> None:
    async with fake_server(resumable(fail_after=3, how=vanish)) as server:
        async with client.connect(server.url, resume=False) as session:
            with pytest.raises(client.ServerLost, match="connection broke"):
                await spoken(session)
        assert server.connections == 1


@pytest.mark.parametrize("what", ["refuses", "hangs", "gone"])
async def test_close_during_an_outage_returns_at_once(what: str) -> None:
    async with fake_server(resumable()) as server:
        session = await client.connect(server.url)
        utterance = await session.start()
        reading = asyncio.create_task(anext(utterance))
        if what != "gone":
            setattr(server.behaviour, what, True)
            await vanish(server.sessions[0])
            await asyncio.sleep(0.7)
        else:
            await fall_silent(server.sessions[0])
            await asyncio.sleep(1.3)  # the old connection is still there
        assert session._state.is_out or what == "gone"
        await utterance.write("lost")
        began = time.monotonic()
        await session.close()
        assert time.monotonic() - began < 0.3
        with pytest.raises(client.ServerLost, match="was closed"):
            await reading


async def test_attempts_that_hang_are_ended() -> None:
    async with fake_server(resumable(hangs=False)) as server, client.connect(server.url) as session:
        utterance = await session.start()
        await utterance.write(TEXT)
        server.behaviour.hangs = True
        await vanish(server.sessions[0])
        await asyncio.sleep(ATTEMPT_S / 2)
        assert len(session._wires._wires) <= 3
        server.behaviour.hangs = False
        await utterance.end()
        async with asyncio.timeout(5):
            assert await _collect(utterance) == speech_of(0, TEXT)


async def test_idle_sessions_come_back_too() -> None:
    async with fake_server(resumable()) as server, client.connect(server.url) as session:
        assert await spoken(session) == speech_of(0, TEXT)
        await vanish(server.sessions[0])
        await asyncio.sleep(0.1)
        assert await spoken(session, "Again.") == speech_of(0, "Again.")
        assert session.line.resumes == 1


async def test_auto_asks_for_pcm_where_there_is_no_opus(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OpusUnavailableError("install libopus0")

    async with fake_server() as server:
        async with client.connect(server.url, format="auto"):
            pass
        monkeypatch.setattr("client.connection.load_opuslib", fail)
        async with client.connect(server.url, format="auto"):
            pass
        async with client.connect(server.url, format="auto", decode=False):
            pass
        assert [message.format for message in server.of(c.Open)] == ["auto", "pcm", "auto"]
