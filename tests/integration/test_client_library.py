"""The client library against a small server: several utterances, back-pressure, cancel, and every way to fail."""

import asyncio
import dataclasses
import socket
from collections.abc import AsyncIterator
from typing import Literal

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Response

import client
from client.shell import Session
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.frames import AudioFrame
from protocol.media.opus import OpusUnavailableError
from tests.support.fake_server import (
    SAMPLES_PER_CHARACTER,
    Behaviour,
    FakeSession,
    fake_server,
    speech_of,
)

TEXT = "你好, world. A second sentence. And one without an end"


async def spoken(session: Session, text: str = TEXT) -> bytes:
    return b"".join([audio.pcm async for audio in session.speak(text)])


async def collect(session: Session, samples: list[int]) -> None:
    """Speaks TEXT; leaves how many samples came in `samples`, also when it fails."""
    async for audio in session.speak(TEXT):
        samples[0] = audio.end_sample


async def test_a_text_is_spoken() -> None:
    async with fake_server() as server:
        async with client.connect(server.url) as session:
            assert await spoken(session) == speech_of(0, TEXT)
        assert [type(message) for message in server.messages if not isinstance(message, c.Ack)] == [
            c.Open, c.Start, c.Text, c.End,
        ]  # fmt: skip
        assert server.messages[0] == c.Open(max_lead_ms=None, max_buffer_delay_ms=None)
        ack = server.of(c.Ack)[-1]
        assert (ack.next_sample, ack.event) == (len(TEXT) * SAMPLES_PER_CHARACTER, 10)


async def test_opus_is_decoded_to_the_exact_length() -> None:
    async with fake_server() as server, client.connect(server.url, format="opus") as session:
        at = 0
        async for audio in session.speak(TEXT):
            assert audio.first_sample == at
            at = audio.end_sample
        assert at == len(TEXT) * SAMPLES_PER_CHARACTER


async def test_opus_packets_can_be_had_as_they_are() -> None:
    async with fake_server() as server, client.connect(server.url, format="opus", decode=False) as session:
        items = [audio async for audio in session.speak(TEXT)]
        assert all(audio.packets and not audio.pcm for audio in items)
        assert items[-1].end_sample >= len(TEXT) * SAMPLES_PER_CHARACTER + session.pre_skip


async def test_text_may_come_in_pieces_from_anywhere() -> None:
    async def pieces() -> AsyncIterator[str]:
        for character in TEXT:
            yield character
            await asyncio.sleep(0)

    events: list[s.Event] = []
    async with fake_server() as server, client.connect(server.url) as session:
        audio = [a async for a in session.speak(pieces(), on_event=events.append, speed=1.5)]
        assert b"".join(a.pcm for a in audio) == speech_of(0, TEXT)
        assert await spoken(session, "") == b""
        assert b"".join([a.pcm async for a in session.speak(["ab", "c."])]) == speech_of(0, "abc.")
        assert server.of(c.Start)[0].speed == 1.5
    assert isinstance(events[0], s.SegmentBegin)
    assert isinstance(events[-1], s.Done)


async def test_utterances_are_queued_and_come_in_order() -> None:
    async with fake_server(Behaviour(queued=2)) as server, client.connect(server.url) as session:
        utterances: asyncio.Queue[client.Utterance] = asyncio.Queue()

        async def write() -> None:
            for n in range(5):
                utterance = await session.start(seed=n)
                await utterances.put(utterance)
                await utterance.write(f"Number {n}.")
                await utterance.silence(100)
                await utterance.flush()
                await utterance.end()

        writing = asyncio.create_task(write())
        for n in range(5):
            utterance = await utterances.get()
            pcm = b"".join([audio.pcm async for audio in utterance.audio()])
            assert pcm == speech_of(0, f"Number {n}.") + bytes(4_800)
            assert isinstance(utterance.result, s.Done)
        await writing
        assert [start.seed for start in server.of(c.Start)] == [0, 1, 2, 3, 4]


async def test_only_the_newest_utterance_takes_text() -> None:
    async with fake_server() as server, client.connect(server.url) as session:
        first = await session.start()
        await first.end()
        await first.end()
        with pytest.raises(RuntimeError, match="has ended"):
            await first.write("x")


async def test_a_book_written_at_once_waits_for_room() -> None:
    text = "0123456789abcdef. " * 100
    async with fake_server(Behaviour(window=200)) as server, client.connect(server.url) as session:
        assert await spoken(session, text) == speech_of(0, text)
        assert len(server.of(c.Text)) > 9


async def test_a_silence_waits_for_room() -> None:
    async with fake_server(Behaviour(window=4)) as server, client.connect(server.url) as session:
        utterance = await session.start()

        async def write() -> None:
            for _ in range(5):
                await utterance.write("ab.")
                await utterance.silence(10)
                await utterance.silence(10)
            await utterance.end()

        writing = asyncio.create_task(write())  # the server counts too
        pcm = b"".join([audio.pcm async for audio in utterance.audio()])
        await writing
        assert len(pcm) == 2 * (15 * SAMPLES_PER_CHARACTER + 10 * 240)
        assert len(server.of(c.Silence)) == 10


async def test_a_slow_consumer_slows_the_server_down() -> None:
    text = "x" * 1_200 + "."
    behaviour = Behaviour(unacked_bytes=100_000)
    async with fake_server(behaviour) as server, client.connect(server.url) as session:
        utterance = await session.start()
        await utterance.write(text)
        await utterance.end()
        await asyncio.sleep(0.5)
        acks = server.of(c.Ack)
        held = 2 * acks[-1].next_sample
        assert held <= 1_048_576
        assert acks[-1].played_sample == 0
        assert sum(item.count * 2 for item, _ in utterance._queue if isinstance(item, client.Audio)) <= held + 100_000
        pcm = b"".join([audio.pcm async for audio in utterance.audio()])
        assert pcm == speech_of(0, text)
        assert server.sessions[0].peak_unacked <= 100_000


async def test_the_lead_follows_what_was_played() -> None:
    async with fake_server() as server, client.connect(server.url, max_lead_ms=300) as session:
        utterance = await session.start()
        await utterance.write("x" * 40)
        await utterance.end()
        utterance.played(0, 0, 0)
        got = 0
        received = asyncio.Event()

        async def consume() -> None:
            nonlocal got
            async for audio in utterance.audio():
                got = audio.end_sample
                received.set()

        consuming = asyncio.create_task(consume())
        await asyncio.sleep(0.3)
        assert 0 < got <= 300 * 24 + 960
        while not consuming.done():
            utterance.played(got, 0, 0)
            await asyncio.wait([consuming], timeout=0.05)
        assert got == 40 * SAMPLES_PER_CHARACTER
        assert server.sessions[0].peak_lead <= 300 * 24


async def test_a_pause_of_the_writer_is_flushed_softly() -> None:
    async with fake_server() as server, client.connect(server.url) as session:
        utterance = await session.start()
        await utterance.write("It is late")
        await asyncio.sleep(0.6)
        assert server.of(c.Flush) == [c.Flush(3, True)]
        await utterance.end()
        assert len([a async for a in utterance.audio()]) > 0


async def test_cancel_says_what_was_heard_and_leaves_the_next_alone() -> None:
    async with fake_server(Behaviour(frame_delay_s=0.001)) as server, client.connect(server.url) as session:
        first = await session.start()
        await first.write("x" * 500 + ".")
        seen = late = 0
        async for item in first:
            assert first.result is None or isinstance(item, s.Cancelled)
            seen += 1
            if seen == 8:
                await first.cancel(played_sample=4_800)
            elif seen > 8:
                late += isinstance(item, client.Audio)
        assert late == 0
        assert isinstance(first.result, s.Cancelled)
        assert server.of(c.Cancel) == [c.Cancel(3, 1, 4_800)]
        await first.cancel()
        assert await spoken(session) == speech_of(0, TEXT)


async def test_what_was_dropped_was_not_heard() -> None:
    async with fake_server(Behaviour(window=1_000)) as server, client.connect(server.url, max_lead_ms=4_000) as session:
        utterance = await session.start()
        await utterance.write("x" * 60 + ".")
        await utterance.flush()
        async for audio in utterance.audio():
            if audio.end_sample >= 4_800:
                break
        await asyncio.sleep(0.3)  # the rest of it is here, and nobody takes it
        await session.cancel()
        assert [type(item) async for item in utterance] == [s.Cancelled]
        assert [cancel.played_sample for cancel in server.of(c.Cancel)] == [4_800]
        await asyncio.sleep(0.3)
        assert max(ack.played_sample for ack in server.of(c.Ack)) == 4_800


@pytest.mark.parametrize("still_reading", [True, False])
async def test_what_is_complete_but_still_playing_can_be_cancelled(still_reading: bool) -> None:
    async with fake_server() as server, client.connect(server.url, max_lead_ms=4_000) as session:
        utterance = await session.start()
        await utterance.write("x" * 20)
        await utterance.end()
        utterance.played(0, 0)
        async for item in utterance:
            if still_reading and isinstance(item, client.Audio):
                break
        await asyncio.sleep(0.2)
        assert isinstance(utterance.result, s.Done) != still_reading
        utterance.played(5 * SAMPLES_PER_CHARACTER, 0)
        await session.cancel()
        if still_reading:
            assert [type(item) async for item in utterance] == [s.Cancelled]
        async with asyncio.timeout(1):
            while not isinstance(utterance.result, s.Cancelled):
                await asyncio.sleep(0.01)
        assert utterance.result.heard_text_end == 5
        assert server.of(c.Cancel) == [c.Cancel(4, 1, 5 * SAMPLES_PER_CHARACTER)]
        await session.cancel()
        assert len(server.of(c.Cancel)) == 1


@pytest.mark.parametrize("format_", ["pcm", "opus"])
async def test_a_cancel_drops_what_lies_here_unread(format_: Literal["pcm", "opus"]) -> None:
    async with fake_server() as server, client.connect(server.url, format=format_) as session:
        utterance = await session.start()
        await utterance.write("x" * 20)
        await utterance.end()
        async for _ in utterance.audio():
            break
        await asyncio.sleep(0.3)  # everything is here and acked
        await utterance.cancel()
        assert not [item async for item in utterance if isinstance(item, client.Audio)]
        assert isinstance(utterance.result, s.Done)
        assert not server.of(c.Cancel)


async def test_what_is_complete_stays_complete_when_the_session_ends() -> None:
    async with fake_server() as server:
        session = await client.connect(server.url)
        utterance = await session.start()
        await utterance.write(TEXT)
        await utterance.end()
        await asyncio.sleep(0.3)
        await session.close()
        assert b"".join([audio.pcm async for audio in utterance.audio()]) == speech_of(0, TEXT)


async def test_leaving_early_cancels() -> None:
    async with fake_server(Behaviour(frame_delay_s=0.001)) as server, client.connect(server.url) as session:
        stream = session.speak("x" * 500)
        async for _ in stream:
            break
        await stream.aclose()
        assert await spoken(session) == speech_of(0, TEXT)
        assert len(server.of(c.Cancel)) == 1


async def test_an_error_in_the_text_source_reaches_the_caller() -> None:
    async def pieces() -> AsyncIterator[str]:
        yield "Hello. "
        raise LookupError("the model died")

    async with fake_server() as server, client.connect(server.url) as session:
        with pytest.raises(LookupError, match="the model died"):
            async for _ in session.speak(pieces()):
                pass
        assert await spoken(session) == speech_of(0, TEXT)
        assert len(server.of(c.Cancel)) == 1


# ---- failures ----


async def close_1000(session: FakeSession) -> None:
    await session.socket.close(1000)


async def close_1011(session: FakeSession) -> None:
    await session.socket.close(1011, "engine died")


async def engine_failed(session: FakeSession) -> None:
    await session.send(s.Error("engine_failed", "the engine died in segment 1", None, True))
    await session.socket.close(1011)


async def vanish(session: FakeSession) -> None:
    session.socket.transport.abort()


async def speak_nonsense(session: FakeSession) -> None:
    await session.socket.send('{"type": "sing"}')


async def speak_bytes(session: FakeSession) -> None:
    await session.socket.send(b"\x01\x02")


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        (close_1000, client.ServerLost, "before the audio was complete"),
        (close_1011, client.ServerLost, "engine died"),
        (engine_failed, client.ServerError, "engine_failed: the engine died in segment 1"),
        (vanish, client.ServerLost, "connection broke"),
        (speak_nonsense, client.ServerMisbehaved, "does not understand"),
        (speak_bytes, client.ServerMisbehaved, "header"),
    ],
)
async def test_a_server_that_fails_half_way_is_an_error(how: object, kind: type[Exception], said: str) -> None:
    behaviour = Behaviour(fail_after=3, how=how)  # type: ignore[arg-type]  # parametrised
    async with fake_server(behaviour) as server, client.connect(server.url) as session:
        received = [0]
        with pytest.raises(kind, match=said):
            await collect(session, received)
        assert received == [3 * 960]
        with pytest.raises(kind):
            await session.start()


async def test_a_server_that_hangs_is_noticed() -> None:
    behaviour = Behaviour(silent_at_end=True, no_heartbeat=True)
    async with fake_server(behaviour) as server, client.connect(server.url) as session:
        async with asyncio.timeout(3):
            with pytest.raises(client.ServerLost, match="nothing came from the server"):
                await spoken(session)


@pytest.mark.parametrize("what", ["sample", "digest", "gap"])
async def test_damage_is_never_silent(what: str) -> None:
    def frame(frame: AudioFrame) -> AudioFrame:
        if frame.first_sample != 960:
            return frame
        if what == "sample":
            return dataclasses.replace(frame, payload=bytes(len(frame.payload)), crc=-1)
        return dataclasses.replace(frame, first_sample=961) if what == "gap" else frame

    def event(event: s.Event) -> s.Event:
        return dataclasses.replace(event, digest="0" * 64) if what == "digest" and isinstance(event, s.Done) else event

    expected = client.ServerMisbehaved if what == "gap" else client.DigestMismatch
    behaviour = Behaviour(change_frame=frame, change_event=event)
    async with fake_server(behaviour) as server, client.connect(server.url) as session:
        with pytest.raises(expected):
            await spoken(session)


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (s.Busy(2_500), client.Busy, "in 2.5 s"),
        (s.Busy(2_500, "rate", "too many at once"), client.Busy, "too many at once: try again in 2.5 s"),
        (
            s.Error("unknown_voice", "open.voice must be one of a, b, not 'c'", "open.voice"),
            client.ServerError,
            "unknown_voice: open.voice must be one of",
        ),
        (s.Heartbeat(), client.ServerMisbehaved, "answers `open` with `heartbeat`"),
    ],
)
async def test_a_session_that_is_refused(answer: s.ServerMessage, kind: type[Exception], said: str) -> None:
    async with fake_server(Behaviour(first_answer=answer)) as server:
        with pytest.raises(kind, match=said):
            await client.connect(server.url)


async def test_a_busy_server_is_asked_again_for_as_long_as_wanted() -> None:
    async with fake_server(Behaviour(first_answer=s.Busy(200, "sessions", "too many"))) as server:
        said: list[str] = []
        with pytest.raises(client.Busy) as caught:
            await client.connect(server.url, busy_wait_s=0.5, on_notice=said.append)
        assert (caught.value.reason, caught.value.retry_after_ms) == ("sessions", 200)
        assert said == ["too many: trying again in 0.2 s"] * 2
        opening = asyncio.ensure_future(client.connect(server.url, busy_wait_s=5.0)._open())
        await asyncio.sleep(0.05)
        server.behaviour.first_answer = None
        await (await opening).close()


def http_answer(status: int, body: bytes = b"", **headers: str) -> Response:
    headers = {"Content-Length": str(len(body)), "Connection": "close"} | headers
    return Response(status, "", Headers({name.replace("_", "-"): value for name, value in headers.items()}), body)


@pytest.mark.parametrize(("status", "reason"), [(429, "rate"), (502, "loading"), (503, "loading"), (504, "loading")])
async def test_a_proxy_that_says_later_is_asked_again_when_it_says(status: int, reason: str) -> None:
    body = b'{"error":{"code":"unavailable","message":"no server answers\\n","field":null}}'
    async with fake_server(Behaviour(http_answer=http_answer(status, body, Retry_After="2"))) as server:
        said: list[str] = []
        with pytest.raises(client.Busy, match=f"is not ready .HTTP {status}.: no server answers: try") as caught:
            await client.connect(server.url, busy_wait_s=1.9, on_notice=said.append)
        assert (caught.value.reason, caught.value.retry_after_ms, said) == (reason, 2_000, [])
        server.behaviour.http_answer = http_answer(status)  # no time, no JSON: after a second
        opening = asyncio.ensure_future(client.connect(server.url, busy_wait_s=5.0, on_notice=said.append)._open())
        await asyncio.sleep(0.2)
        server.behaviour.http_answer = None
        await (await opening).close()
        assert len(said) == 1
        assert said[0].endswith(f"(HTTP {status}): trying again in 1.0 s")


async def test_who_is_refused_for_another_reason_than_a_key_hears_it() -> None:
    body = b'{"error":{"code":"forbidden","message":"the host is no name of this machine","field":null}}'
    async with fake_server(Behaviour(http_answer=http_answer(403, body))) as server:
        with pytest.raises(client.ConnectFailed, match="the host is no name of this machine") as caught:
            await client.connect(server.url)
        assert "API key" not in str(caught.value)
        for other in (b"<html>", b'{"error":[]}', b'{"error":{"message":1}}', b"[" * 100_000):
            server.behaviour.http_answer = http_answer(403, other)
            with pytest.raises(client.ConnectFailed, match=r"refuses the connection \(HTTP 403\): its log"):
                await client.connect(server.url)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.1, "0.1 s"), (60.0, "60.0 s"), (100.2, "1 min 41 s"), (3_599.5, "1 h 0 min"), (11_429.4, "3 h 11 min")],
)
def test_times_are_told_as_people_say_them(seconds: float, said: str) -> None:
    assert str(client.Busy(round(seconds * 1000), "quota", "no")) == f"no: try again in {said}"


async def test_keys() -> None:
    async with fake_server(Behaviour(api_key="secret")) as server:
        with pytest.raises(client.ConnectFailed, match="refuses the API key"):
            await client.connect(server.url)
        async with client.connect(server.url, api_key="secret") as session:
            assert await spoken(session) == speech_of(0, TEXT)


async def test_wrong_places() -> None:
    async with fake_server() as server:
        with pytest.raises(client.ConnectFailed, match="has no such path"):
            await client.connect(server.url + "/elsewhere")
    with pytest.raises(client.ConnectFailed, match="nothing listens at"):
        await client.connect(server.url)
    with pytest.raises(client.ConnectFailed, match="no host has the name"):
        await client.connect("ws://no-such-host.invalid:1")
    with pytest.raises(client.ConnectFailed, match="no server address"):
        await client.connect("ftp://x")


async def test_another_kind_of_websocket_server() -> None:
    async def handle(connection: ServerConnection) -> None:
        await connection.wait_closed()

    async with serve(handle, "127.0.0.1", 0) as listener:
        port = next(iter(listener.sockets)).getsockname()[1]
        with pytest.raises(client.ConnectFailed, match=r"does not speak cosystream\.v1"):
            await client.connect(f"127.0.0.1:{port}")


async def test_a_port_that_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(client.ConnectFailed, match=r"did not answer within 0\.2 s"):
            await client.connect(url, open_timeout=0.2)


async def test_a_peer_that_never_reads_does_not_hold_up_close() -> None:
    async with fake_server(Behaviour(ignore_cancel=True)) as server:
        session = await client.connect(server.url)
        loop = asyncio.get_running_loop()
        peer = server.sessions[0].socket.transport
        peer.pause_reading()
        utterance = await session.start()

        async def write() -> None:
            while True:
                await utterance.write("x" * 16_000)

        writing = asyncio.create_task(write())
        await asyncio.sleep(0.2)
        began = loop.time()
        await session.close()
        assert loop.time() - began < 2.5
        with pytest.raises(client.ServerLost):
            await writing
        peer.abort()


async def test_everything_is_told_when_a_session_ends() -> None:
    async with fake_server(Behaviour(silent_at_end=True)) as server:
        session = await client.connect(server.url)
        utterance = await session.start()
        reading = asyncio.create_task(anext(utterance))
        await asyncio.sleep(0.05)
        await session.close()
        with pytest.raises(client.ServerLost, match="was closed"):
            await reading
        await session.close()


def test_public_names_exist() -> None:
    assert all(getattr(client, name) is not None for name in client.__all__)
    with pytest.raises(AttributeError):
        _ = client.nothing


async def test_an_utterance_must_end_before_the_next_begins() -> None:
    async with fake_server() as server, client.connect(server.url) as session:
        first = await session.start()
        with pytest.raises(RuntimeError, match="utterance 1 takes text"):
            await session.start()
        await first.cancel()
        second = await session.start()
        await second.end()
        assert [type(item) async for item in second] == [s.Done]


async def test_text_of_a_cancelled_utterance_is_not_sent() -> None:
    async with fake_server(Behaviour(window=100)) as server, client.connect(server.url) as session:
        utterance = await session.start()
        writing = asyncio.create_task(utterance.write("x" * 1_000))  # waits for room that never comes
        await asyncio.sleep(0.05)
        await utterance.cancel()
        await writing
        await utterance.write("more")
        await utterance.flush()
        await utterance.end()
        assert [type(item) async for item in utterance] == [s.Cancelled]
        assert len(server.of(c.Text)) == 1
        assert not server.of(c.End)


async def test_a_bug_in_the_client_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    async with fake_server() as server, client.connect(server.url) as session:
        monkeypatch.setattr(session._state, "feed_frame", fail)
        with pytest.raises(client.ClientError, match=r"a bug.*please report"):
            await spoken(session)


async def test_opus_without_libopus_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_server() as server, client.connect(server.url, format="opus") as session:

        def fail(*_: object) -> None:
            raise OpusUnavailableError("install libopus0")

        monkeypatch.setattr("client.utterance.UtteranceDecoder", fail)
        with pytest.raises(client.ClientError, match="install libopus0"):
            await spoken(session)


@pytest.mark.parametrize("value", [None, 0, "many", 1.5])
async def test_a_server_whose_limits_make_no_sense(value: object) -> None:
    answer = s.Opened("id", "token", 0, 1, {}, {"text_chars": value})
    async with fake_server(Behaviour(first_answer=answer)) as server:
        with pytest.raises(client.ServerMisbehaved, match="text_chars must be a positive whole number"):
            await client.connect(server.url)
