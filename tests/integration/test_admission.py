"""Who is turned away, how, and that those who are there do not notice: a real server, and clients over loopback."""

import asyncio
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import structlog.testing
from websockets.exceptions import ConnectionClosed

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.frames import AudioFrame
from server.app import Server
from server.scheduler import admission
from tests.integration.test_speak import speak
from tests.support.raw_http import ask, get
from tests.support.returning import Returning, cut_all, returning
from tests.support.server import BareClient, bare_client, running, url_of

LONG = "山高水远天蓝云白风轻。" * 3
PREROLL_S = 0.2


def metric(server: Server, line: str) -> float:
    for row in server.metrics.render().decode().splitlines():
        if row.startswith(f"cosystream_{line} "):
            return float(row.split()[-1])
    return 0.0


async def eventually(condition: Callable[[], bool], within: float = 5.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


def now() -> float:
    return asyncio.get_running_loop().time()


async def listen(client: BareClient, utterance: int = 1) -> float:
    """Play an utterance in real time, and tell the server. Seconds that a listener would have waited in the middle."""
    waited, begun, received, total = 0.0, 0.0, 0, None
    while total is None or received < total or now() < begun + total / 24_000:
        played = max(0, min(received, int((now() - begun) * 24_000))) if begun else 0
        try:
            item = await client.receive(0.05)
        except TimeoutError:
            item = None
        if isinstance(item, AudioFrame) and item.count:
            if not begun:
                begun = now() + PREROLL_S
            late = now() - (begun + item.first_sample / 24_000)
            if late > 0:
                waited, begun = waited + late, begun + late
            received = item.end_sample
        elif isinstance(item, s.Done):
            total = item.samples
        if received:
            await client.send(c.Ack(1, utterance, received, min(played, received)))
    return waited


async def busy(client: BareClient | Returning) -> s.Busy:
    """What it hears instead of anything else, and that the connection is closed."""
    while True:
        item = await client.receive()
        if isinstance(item, s.Busy):
            break
        assert not isinstance(item, s.Opened | s.Error)
    with pytest.raises(ConnectionClosed) as over:
        await client.receive()
    assert over.value.rcvd is not None
    assert over.value.rcvd.code == 1013
    return item


async def ask_to_open(url: str, **options: Any) -> s.Opened | s.Busy:
    async with bare_client(url, **options) as client:
        await client.send(c.Open())
        answer = await client.receive()
        assert isinstance(answer, s.Opened | s.Busy)
        return answer


def with_keys(tmp_path: Path, *names: str) -> Path:
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{name} {sha256(name.encode()).hexdigest()}\n" for name in names))
    return keys


def as_(name: str) -> dict[str, dict[str, str]]:
    return {"additional_headers": {"Authorization": f"Bearer {name}"}}


# ---- capacity ----


async def test_twice_the_capacity_is_offered_and_who_was_let_in_is_fed() -> None:
    slow = {"step_delay_ms": 60, "batch_max": 1}
    async with running(engine_options=slow, engine_threads=1) as server:
        assert server.pool is not None
        places = int(server.pool.capacity().streams)
        assert 2 <= places <= 8  # 60 ms of engine for 100 to 400 ms of sound
        heard: list[float] = []
        refused: list[tuple[float, s.Busy]] = []

        async def come(delay: float) -> None:
            await asyncio.sleep(delay)
            async with bare_client(url_of(server)) as client:
                asked = now()
                await client.send(c.Open())
                answer = await client.receive()
                if isinstance(answer, s.Busy):
                    refused.append((now() - asked, answer))
                    return
                await client.say(1, LONG)
                heard.append(await listen(client))

        await asyncio.gather(*(come(0.05 * number) for number in range(2 * places)))
        assert 1 <= len(heard) <= places
        assert len(refused) >= places
        assert max(heard) < 0.3
        delays = sorted(delay for delay, _ in refused)
        assert delays[len(delays) // 2] < 0.05
        assert {answer.reason for _, answer in refused} == {"capacity"}
        assert all(answer.retry_after_ms >= 500 and answer.message for _, answer in refused)
        assert metric(server, 'refusals_total{reason="capacity"}') == len(refused)
        await eventually(lambda: not server.sessions.taken)
        assert metric(server, 'sessions_total{outcome="closed"}') == len(heard)  # who was refused was no session
        assert isinstance(await ask_to_open(url_of(server)), s.Opened)


async def test_a_text_that_comes_long_after_its_start_is_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or everybody could say `start` while nobody speaks, and all their text would come at once."""
    monkeypatch.setattr(admission, "GRACE_S", 0.1)
    async with running(max_streams=1, engine_options={"step_delay_ms": 20}) as server:
        async with bare_client(url_of(server), open=c.Open()) as early:
            await early.numbered(c.Start, utterance=1)
            await asyncio.sleep(0.2)
            async with bare_client(url_of(server), open=c.Open()) as other:
                await other.say(1, LONG)
                await other.until(AudioFrame)
                await early.numbered(c.Text, text="你好。")
                assert (await busy(early)).reason == "capacity"
                await other.until(s.Done)
        async with bare_client(url_of(server), open=c.Open()) as alone:
            await alone.numbered(c.Start, utterance=1)
            await asyncio.sleep(0.2)
            await alone.numbered(c.Text, text="你好。")
            await alone.numbered(c.End)
            await alone.until(s.Done)


async def test_an_idle_session_is_judged_when_it_begins_to_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "GRACE_S", 0.1)
    async with running(max_streams=1, engine_options={"step_delay_ms": 20}) as server:
        url = url_of(server)
        async with bare_client(url, open=c.Open()) as idle:
            await asyncio.sleep(0.15)
            async with bare_client(url, open=c.Open()) as talker:
                await talker.say(1, LONG * 8)
                await talker.until(s.SegmentBegin)
                await idle.numbered(c.Start, utterance=1)
                await idle.numbered(c.Text, text="你好。")
                answer = await busy(idle)
                assert (answer.reason, bool(answer.message)) == ("capacity", True)
                assert not any(isinstance(message, s.SeqAck) for message in idle.messages)  # nothing was taken
                await talker.numbered(c.Cancel)
                await talker.until(s.Cancelled)
        await eventually(lambda: not server.sessions.taken)
        assert metric(server, 'sessions_total{outcome="busy"}') == 1
        async with bare_client(url, open=c.Open()) as again:
            await again.say(1, "你好。")
            assert (await again.until(s.Done)).samples


async def test_who_speaks_keeps_its_place_until_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "GRACE_S", 0.3)
    async with running(max_streams=1) as server:
        url = url_of(server)
        async with bare_client(url, open=c.Open()) as writer:
            await writer.numbered(c.Start, utterance=1)
            await writer.numbered(c.Text, text="你好。世界。")
            await writer.until(s.SegmentEnd)
            assert isinstance(await ask_to_open(url), s.Busy)  # its model writes on in a moment
            await asyncio.sleep(0.4)
            async with bare_client(url, open=c.Open()) as other:
                await other.say(1, "你好。")
                await other.until(s.Done)
            await writer.numbered(c.Text, text="再见。")  # an utterance that was begun is never refused
            await writer.numbered(c.End)
            await writer.until(s.Done)
        await eventually(lambda: not server.sessions.taken)
        assert server.doorkeeper.speaking == 0


async def test_over_http_the_server_says_503() -> None:
    async with running(max_streams=1, engine_options={"step_delay_ms": 20}) as server:
        async with bare_client(url_of(server), open=c.Open()) as talker:
            await talker.say(1, LONG * 8)
            await talker.until(s.SegmentBegin)
            assert server.listener is not None
            answer = await ask(server.listener.port, get("/v1/speak", method="POST", body=b'{"text":"hello"}'))
            assert (answer.status, answer.error["code"]) == (503, "capacity")
            assert 1 <= int(answer.headers["retry-after"]) <= 45
            assert "full" in (answer.error["message"] or "")
            await talker.numbered(c.Cancel)
            await talker.until(s.Cancelled)
        await eventually(lambda: not server.sessions.taken)
        assert (await speak(server, {"text": "你好"}))[0] == 200
        assert server.doorkeeper.speaking == 0


async def test_a_lost_session_comes_back_however_full_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "GRACE_S", 0.1)
    settings: dict[str, Any] = {"max_streams": 1, "session_rate": 0.001, "session_burst": 2}
    async with running(engine_options={"step_delay_ms": 20}, **settings) as server, returning(url_of(server)) as lost:
        await lost.say(1, LONG * 4)
        await lost.samples(5_000)
        lost.vanish()
        assert isinstance(await ask_to_open(url_of(server)), s.Busy)
        assert isinstance(await lost.resume(), s.Resumed)
        await lost.until(s.Done)
        assert len(lost.pcm[1]) > 24_000
        lost.vanish()
        async with bare_client(url_of(server), open=c.Open()) as other:
            assert isinstance(await ask_to_open(url_of(server)), s.Busy)  # the rate
            assert isinstance(await lost.resume(), s.Resumed)
            del other
    await cut_all()


# ---- principals ----


async def test_sessions_at_a_time_of_one_principal(tmp_path: Path) -> None:
    keys = with_keys(tmp_path, "ann", "bob")
    async with running(keys=keys, sessions_per_principal=1) as server:
        url = url_of(server)
        async with bare_client(url, open=c.Open(), **as_("ann")) as first:
            answer = await ask_to_open(url, **as_("ann"))
            assert isinstance(answer, s.Busy)
            assert answer.reason == "sessions"
            assert isinstance(await ask_to_open(url, **as_("bob")), s.Opened)
            status, kind, _ = await speak(server, {"text": "你好"}, headers={"Authorization": "Bearer ann"})
            assert (status, kind) == (429, "application/json")
            first.socket.transport.abort()
        # One that waits for its client makes way for its own principal.
        await eventually(lambda: len(server.sessions._waiting) == 1)
        assert isinstance(await ask_to_open(url, **as_("ann")), s.Opened)
        assert len(server.sessions._waiting) == 0


async def test_new_sessions_a_second_of_one_principal(tmp_path: Path) -> None:
    keys = with_keys(tmp_path, "ann", "bob")
    async with running(keys=keys, session_rate=0.5, session_burst=3) as server:
        url = url_of(server)
        answers = [await ask_to_open(url, **as_("ann")) for _ in range(5)]
        assert [type(answer) for answer in answers] == [s.Opened] * 3 + [s.Busy] * 2
        refusal = answers[-1]
        assert isinstance(refusal, s.Busy)
        assert refusal.reason == "rate"
        assert 1_000 < refusal.retry_after_ms <= 3_000
        assert isinstance(await ask_to_open(url, **as_("bob")), s.Opened)


async def test_a_quota_ends_nothing_that_was_begun(tmp_path: Path) -> None:
    keys = with_keys(tmp_path, "ann", "bob")
    async with running(keys=keys, quota_chars=20, quota_window_s=1000) as server:
        url = url_of(server)
        async with bare_client(url, open=c.Open(max_lead_ms=None), **as_("ann")) as ann:
            await ann.say(1, LONG)
            await ann.say(2, "再见。")
            done = await ann.until(s.Done)
            assert (done.utterance, done.samples) == (1, len(ann.pcm(1)) // 2)
            answer = await busy(ann)
            assert answer.reason == "quota"
            assert answer.retry_after_ms > 600_000  # 13 are owed
        assert [type(await ask_to_open(url, **as_(name))) for name in ("ann", "bob")] == [s.Busy, s.Opened]
        status, _, _ = await speak(server, {"text": "你好"}, headers={"Authorization": "Bearer ann"})
        assert status == 429
        await eventually(lambda: not server.sessions.taken)


async def test_an_utterance_without_end_does_not_dodge_the_quota() -> None:
    async with running(quota_chars=20, quota_window_s=1000) as server:
        async with bare_client(url_of(server), open=c.Open(max_lead_ms=None)) as client:
            await client.numbered(c.Start, utterance=1)
            for _ in range(5):  # 50 characters: 30 are owed
                await client.numbered(c.Text, text="一二三四五六七八九十")
            await client.send(c.Ping(1))
            await client.until(s.Pong)  # and yet they are taken
            await client.numbered(c.Text, text="一")
            assert (await busy(client)).reason == "quota"
        await eventually(lambda: not server.sessions.taken)


async def test_a_text_over_http_counts_too() -> None:
    async with running(quota_chars=10, quota_audio_s=1000) as server:
        assert [(await speak(server, {"text": "你好，世界。再见。山高水远。"}))[0] for _ in range(2)] == [200, 429]
        use = server.doorkeeper.use
        assert use._chars.level("anonymous", now()) < -3
        assert 990 < use._audio_s.level("anonymous", now()) < 999.5


async def test_who_cancels_hears_at_once_that_the_quota_is_used_up() -> None:
    async with running(quota_audio_s=0.5, engine_options={"step_delay_ms": 20}) as server:
        async with bare_client(url_of(server), open=c.Open(max_lead_ms=None)) as client:
            await client.say(1, LONG * 20)
            for _ in range(40):
                await client.until(AudioFrame)
            await client.say(2, "再见。")
            await client.send(c.Ping(9))
            await client.until(s.Pong)
            await client.numbered(c.Cancel)
            assert (await busy(client)).reason == "quota"
        await eventually(lambda: not server.sessions.taken)


async def test_attempts_that_fail_are_limited_and_write_no_lines_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.app.LEAST_FAILURES", 5)
    with structlog.testing.capture_logs() as lines:
        async with running(max_sessions=4) as server, returning(url_of(server)) as good:
            before = len(lines)
            answers: list[Any] = []
            for number in range(12):
                async with bare_client(url_of(server)) as client:
                    if number % 2:
                        await client.send(c.Open(voice="nobody"))
                    else:
                        await client.send(good.asks(token="guess"))
                    answers.append(await client.receive())
            assert {type(answer) for answer in answers[:5]} == {s.Error, s.ResumeFailed}
            assert {type(answer) for answer in answers[5:]} == {s.Busy}
            assert len(lines) - before <= 5
            good.vanish()
            assert isinstance(await good.resume(), s.Resumed)  # who has the token is not touched
            assert isinstance(await ask_to_open(url_of(server)), s.Opened)
    await cut_all()


# ---- who makes way ----


async def test_who_left_most_sessions_behind_loses_the_oldest(tmp_path: Path) -> None:
    keys = with_keys(tmp_path, "ann", "bob", "eve")
    async with running(keys=keys, max_sessions=4) as server:
        clients = []
        for name in ("bob", "ann", "ann", "ann"):
            client = Returning(url_of(server), headers={"Authorization": f"Bearer {name}"})
            await client.open(max_lead_ms=None)
            clients.append(client)
        for number, client in enumerate(clients, 1):
            client.vanish()
            await eventually(lambda number=number: len(server.sessions._waiting) == number)  # type: ignore[misc]
        for name in ("eve", "bob"):
            assert isinstance(await ask_to_open(url_of(server), **as_(name)), s.Opened)
        answers = [await client.resume() for client in clients]
        assert [isinstance(answer, s.Resumed) for answer in answers] == [True, False, True, True]
    await cut_all()
