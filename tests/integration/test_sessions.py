"""Sessions that outlive their connections, over real sockets: who may come back, who makes way, what is left behind."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from protocol import client_messages as c
from protocol import server_messages as s
from server.app import Server
from tests.integration.test_speak import speak
from tests.support.returning import Returning, cut_all, returning
from tests.support.server import running, url_of
from tests.support.stores import file_of, names

TEXT = "你好，世界。今天天气很好，我们去公园散步吧。"


@pytest.fixture(autouse=True)
async def no_connection_left() -> AsyncIterator[None]:
    yield
    await cut_all()


async def eventually(condition: Callable[[], bool], within: float = 5.0) -> None:
    async with asyncio.timeout(within):
        while not condition():
            await asyncio.sleep(0.01)


async def spoken(server: Server, text: str = TEXT) -> bytes:
    """The same text, undisturbed."""
    async with returning(url_of(server)) as client:
        await client.say(1, text)
        await client.until(s.Done)
        return bytes(client.pcm[1])


async def detached(server: Server, client: Returning) -> None:
    """Its connection is gone, and the server knows."""
    client.vanish()
    assert client.opened is not None
    live = server.sessions._live[client.opened.session]
    await eventually(lambda: live.carrier is None)


def metric(server: Server, line: str) -> float:
    for row in server.metrics.render().decode().splitlines():
        if row.startswith(f"cosystream_{line} "):
            return float(row.split()[-1])
    return 0.0


def tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks() if not task.done()}


async def test_a_session_goes_on_over_three_connections() -> None:
    async with running() as server, returning(url_of(server)) as client:
        await client.say(1, TEXT)
        for _ in range(2):
            await client.samples(5_000)
            await detached(server, client)
            assert metric(server, "sessions_detached") == 1
            assert isinstance(await client.resume(), s.Resumed)
        await client.until(s.Done)
        assert bytes(client.pcm[1]) == await spoken(server)
        assert (client.generation, metric(server, "sessions_detached")) == (3, 0)
        assert metric(server, 'resumes_total{outcome="resumed"}') == 2


# ---- who makes way ----


async def test_one_who_waits_too_long_is_given_up() -> None:
    async with running(resume_ttl_s=1) as server, returning(url_of(server)) as client:
        await client.say(1, TEXT)
        await client.samples(100)
        await detached(server, client)
        await eventually(lambda: server.sessions.taken == 0)
        failed = await client.resume()
        assert isinstance(failed, s.ResumeFailed)
        assert failed.reason == "expired"


async def test_one_who_has_everything_is_kept_for_a_shorter_time() -> None:
    async with running() as server:
        server._policy = replace(server._policy, resume_idle_ttl_s=0.2)  # type: ignore[type-var]  # it is ready
        async with returning(url_of(server)) as idle, returning(url_of(server)) as busy:
            for client in (idle, busy):
                await client.say(1, TEXT)
                await client.samples(100)
            await idle.until(s.Done)
            await idle.send(c.Ping())
            await idle.until(s.Pong)
            for client in (idle, busy):
                await detached(server, client)
            await eventually(lambda: server.sessions.taken == 1)
            answer = await idle.resume()
            assert isinstance(answer, s.ResumeFailed)
            assert answer.reason == "expired"
            assert isinstance(await busy.resume(), s.Resumed)


async def test_beyond_the_budget_the_oldest_makes_way() -> None:
    async with running() as server:
        clients = []
        for _ in range(4):
            client = Returning(url_of(server))
            await client.open(max_lead_ms=None)
            await client.say(1, TEXT)
            await client.samples(100)
            clients.append(client)
        for client in (clients[1], clients[0], clients[2]):
            await detached(server, client)
        lives = [server.sessions._live[client.opened.session] for client in clients if client.opened]
        await eventually(lambda: all(not live.session._speaking for live in lives))
        held = server.sessions._waiting.bytes
        server.sessions._waiting.budget = held * 9 // 10
        await detached(server, clients[3])
        await eventually(lambda: server.sessions._waiting.bytes <= server.sessions._waiting.budget)
        answers = [await client.resume() for client in clients]
        reasons = [answer.reason if isinstance(answer, s.ResumeFailed) else None for answer in answers]
        assert reasons == ["evicted" if n in (0, 1) else None for n in range(4)]
        for client in clients[2:]:
            await client.until(s.Done)
            client.vanish()


async def test_one_who_waits_makes_way_for_one_who_is_there() -> None:
    async with running(max_sessions=2) as server, returning(url_of(server)) as old, returning(url_of(server)) as there:
        await old.say(1, TEXT)
        await old.samples(100)
        await detached(server, old)
        async with returning(url_of(server)) as new:
            await new.say(1, TEXT)
            await new.until(s.Done)
            await there.say(1, TEXT)
            await there.until(s.Done)
            assert server.sessions.taken == 2
            failed = await old.resume()
            assert isinstance(failed, s.ResumeFailed)
            assert failed.reason == "evicted"
            await old.send(c.Open())  # and those who are there stay
            assert isinstance(await old.receive(), s.Busy)


# ---- who may come back ----


async def test_strangers_do_not_disturb_who_is_there(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{name} {sha256(key).hexdigest()}\n" for name, key in (("ann", b"a"), ("bob", b"b"))))
    async with running(keys=keys) as server, returning(url_of(server), key="a") as client:
        await client.say(1, TEXT)
        await client.samples(1_000)
        good = client.asks()
        for key, message, reason in (
            ("a", replace(good, token="guess"), "auth"),
            ("b", good, "auth"),
            ("a", replace(good, session="nobody"), "unknown"),
            ("a", replace(good, next_sample=10**9), "range"),
            ("a", replace(good, events_seen=10**9), "range"),
            ("a", replace(good, generation_seen=9), "range"),
            ("a", replace(good, epoch=3), "epoch"),
        ):
            stranger = Returning(url_of(server), headers={"Authorization": f"Bearer {key}"})
            await stranger.connect()
            await stranger.send(message)
            answer = await stranger.receive()
            assert isinstance(answer, s.ResumeFailed)
            assert answer.reason == reason
            stranger.vanish()
        assert client.opened is not None
        assert server.sessions._live[client.opened.session].session.generation == 1
        await client.until(s.Done)  # on the same connection
        assert len(client.pcm[1]) > 10_000
        assert server.sessions.taken == 1


async def test_who_has_no_key_is_told_so(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"ann {sha256(b'a').hexdigest()}\n")
    async with running(keys=keys) as server, returning(url_of(server), key="a") as client:
        stranger = Returning(url_of(server))
        await stranger.connect()
        await stranger.send(client.asks())
        error = await stranger.receive()
        assert isinstance(error, s.Error)
        assert (error.code, error.field) == ("unauthorized", "resume.api_key")


async def test_after_eight_refusals_the_connection_is_closed() -> None:
    async with running() as server, returning(url_of(server)) as client:
        stranger = Returning(url_of(server), opened=client.opened)
        await stranger.connect()
        for _ in range(8):
            assert isinstance(await stranger.ask(token="x"), s.ResumeFailed)
        await stranger.send(stranger.asks(token="x"))
        assert await stranger.closed() == 1008
        await client.send(c.Ping(4))
        assert (await client.until(s.Pong)).id == 4


async def test_after_a_refusal_a_new_session_may_be_opened() -> None:
    async with running() as server, returning(url_of(server)) as client:
        other = Returning(url_of(server), opened=client.opened)
        await other.connect()
        assert isinstance(await other.ask(token="x"), s.ResumeFailed)
        await other.send(c.Open(max_lead_ms=None))
        assert isinstance(await other.receive(), s.Opened)
        await other.say(1, TEXT)
        await other.until(s.Done)
        other.vanish()


# ---- takeover ----


async def test_a_takeover_fences_the_old_connection() -> None:
    async with running(engine_options={"step_delay_ms": 5}) as server, returning(url_of(server)) as client:
        await client.say(1, TEXT * 3)
        await client.samples(1_000)
        old = Returning(client.url, client.socket, generation=1, place=client.place, event=client.event)
        assert isinstance(await client.resume(), s.Resumed)
        await old.closed()  # what it still brings is of the old generation: `_audio` asserts that
        await client.send(c.Ack(1, 1, 10**9))  # an ack of the old generation is ignored, whatever it says
        await client.until(s.Done)
        assert bytes(client.pcm[1]) == await spoken(server, TEXT * 3)


async def test_of_two_who_come_at_once_the_last_one_carries_it() -> None:
    async with running() as server, returning(url_of(server)) as client:
        await client.say(1, TEXT)
        await client.samples(1_000)
        await detached(server, client)
        rivals = [replace_of(client) for _ in range(3)]
        answers = await asyncio.gather(*(rival.resume() for rival in rivals), return_exceptions=True)
        won = [rival for rival, answer in zip(rivals, answers, strict=True) if isinstance(answer, s.Resumed)]
        assert won
        last = max(won, key=lambda rival: rival.generation)
        await last.until(s.Done)
        assert bytes(last.pcm[1]) == await spoken(server)
        for loser in won:
            if loser is not last:
                await loser.closed()
        last.vanish()


def replace_of(client: Returning) -> Returning:
    return replace(client, pcm={1: bytearray(client.pcm[1])}, messages=[], socket=None)


async def test_the_token_of_an_answer_that_was_overtaken_is_good() -> None:
    """A client asks twice, hears the first answer, and loses that connection to the second."""
    async with running() as server, returning(url_of(server)) as client:
        await client.say(1, TEXT)
        await client.samples(1_000)
        first, second = replace_of(client), replace_of(client)
        assert isinstance(await first.resume(), s.Resumed)
        assert isinstance(await second.resume(), s.Resumed)
        await first.closed()
        assert isinstance(await first.resume(), s.Resumed)
        await first.until(s.Done)
        assert bytes(first.pcm[1]) == await spoken(server)
        first.vanish()


# ---- the store ----


async def test_another_process_goes_on(tmp_path: Path) -> None:
    """Two servers, one after the other, on one directory: the session of a principal with a key."""
    keys = tmp_path / "keys"
    keys.write_text(f"ann {sha256(b'a').hexdigest()}\n")
    settings: dict[str, Any] = {"store": f"file:{tmp_path}/store", "keys": keys}
    async with running(**settings) as server:
        client = Returning(url_of(server), headers={"Authorization": "Bearer a"})
        await client.open(max_lead_ms=None)
        await client.say(1, TEXT)
        await client.samples(5_000)
        await detached(server, client)
    async with running(**settings) as server:
        client.url = url_of(server)
        # A client must know what may come again after a restart: this one just asks to have had no event.
        client.event = 0
        answer = await client.resume()
        assert isinstance(answer, s.Resumed)
        assert answer.epoch == 1
        await client.until(s.Done)
        async with returning(url_of(server), key="a") as whole:
            await whole.say(1, TEXT)
            await whole.until(s.Done)
            assert client.pcm[1] == whole.pcm[1]
        client.vanish()


async def test_a_client_that_leaves_while_its_session_is_restored_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"store": f"file:{tmp_path}", "open_timeout_s": 0.3}
    async with running(**settings) as server:
        client = Returning(url_of(server))
        await client.open(max_lead_ms=None)
        await client.say(1, TEXT)
        await client.samples(5_000)
        await detached(server, client)
    async with running(**settings) as server:
        claim, slow = server.sessions.store.claim, asyncio.Event()

        async def late(session: str) -> Any:
            result = await claim(session)
            await slow.wait()
            return result

        monkeypatch.setattr(server.sessions.store, "claim", late)
        client.url, client.event = url_of(server), 0
        await client.connect()
        await client.send(client.asks())
        await asyncio.sleep(0.5)  # restoring it takes longer than a client has to open a session: that is not its fault
        client.vanish()
        await client.connect()
        slow.set()
        assert isinstance(await client.ask(), s.Resumed)
        await client.until(s.Done)
        client.vanish()


async def test_a_disk_that_fills_up_ends_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with structlog.testing.capture_logs() as logs:
        async with running(store=f"file:{tmp_path}") as server, returning(url_of(server)) as client:
            await client.numbered(c.Start, utterance=1)
            await client.numbered(c.Text, text=TEXT)
            await client.samples(1_000)
            monkeypatch.setattr(os, "write", full)
            await client.numbered(c.Text, text=TEXT)
            await client.numbered(c.End)
            await client.samples(1_000)
            await detached(server, client)
            assert isinstance(await client.resume(), s.Resumed)
            await client.until(s.Done)
            monkeypatch.undo()
            assert bytes(client.pcm[1]) == await spoken(server, TEXT * 2)
            assert metric(server, "journal_failures_total") == 1
    assert len([line for line in logs if line["event"] == "session is not recorded any more"]) == 1


# ---- the end ----


async def test_a_resumed_session_is_finished_before_the_server_stops() -> None:
    async with running(drain_timeout_s=5, engine_options={"step_delay_ms": 2}) as server:
        async with returning(url_of(server)) as client:
            await client.say(1, TEXT)
            await client.samples(1_000)
            await detached(server, client)
            assert isinstance(await client.resume(), s.Resumed)
            stopping = asyncio.ensure_future(server.stop())
            await client.until(s.GoAway)
            await client.until(s.Done)
            assert await client.closed() == 1012
            await stopping


async def test_stopping_is_bounded_and_keeps_what_can_go_on(tmp_path: Path) -> None:
    async with running(store=f"file:{tmp_path}") as server:
        away, stalled = Returning(url_of(server)), Returning(url_of(server))
        for client in (away, stalled):
            await client.open(max_lead_ms=None)
            await client.say(1, TEXT * 100)
            await client.samples(100)
        await detached(server, away)
        assert stalled.socket is not None
        stalled.socket.transport.pause_reading()
        kept = {file_of(tmp_path, client.opened.session).name for client in (away, stalled) if client.opened}
        loop = asyncio.get_running_loop()
        start = loop.time()
        await server.stop()
        assert loop.time() - start < 5
        stalled.socket.transport.abort()
    assert kept <= names(tmp_path)


async def test_nothing_is_left_behind() -> None:
    async with running(resume_ttl_s=1) as server:
        before = tasks()
        for _ in range(10):
            client = Returning(url_of(server))
            await client.open(max_lead_ms=None)
            await client.say(1, TEXT * 20)
            await client.samples(100)
            await detached(server, client)
            assert isinstance(await client.resume(), s.Resumed)
            await client.samples(100)
            client.vanish()
        await eventually(lambda: not server.sessions._live)
        assert server.sessions.taken == 0
        assert not server.sessions._members
        await eventually(lambda: not server.sessions._ending)
        await eventually(lambda: tasks() - before == set())
        assert metric(server, "sessions_detached") == 0
        assert metric(server, "sessions_open") == 0


async def test_one_line_for_each_session_however_many_connections_it_had() -> None:
    with structlog.testing.capture_logs() as logs:
        async with running() as server:
            client = Returning(url_of(server))
            opened = await client.open(max_lead_ms=None)
            await client.say(1, TEXT)
            for _ in range(3):
                await client.samples(1_000)
                await detached(server, client)
                await client.resume()
            await client.until(s.Done)
            assert client.socket is not None
            await client.socket.close()
            await eventually(lambda: server.sessions.taken == 0)
            audio = metric(server, "audio_seconds_total")
            assert audio == pytest.approx(len(client.pcm[1]) / 2 / 24_000, abs=0.01)
            assert metric(server, 'sessions_total{outcome="closed"}') == 1
    lines = [line for line in logs if line["event"] == "session ended"]
    assert [(line["session"], line["resumes"], line["outcome"]) for line in lines] == [(opened.session, 3, "closed")]
    assert lines[0]["audio_s"] == pytest.approx(audio, abs=0.01)


async def test_a_client_that_says_goodbye_is_not_kept() -> None:
    async with running() as server:
        client = Returning(url_of(server))
        await client.open(max_lead_ms=None)
        await client.say(1, TEXT)
        await client.samples(100)
        assert client.socket is not None
        await asyncio.gather(client.socket.close(1000), client.closed())
        await eventually(lambda: server.sessions.taken == 0)
        failed = await client.resume()
        assert isinstance(failed, s.ResumeFailed)
        assert failed.reason == "unknown"


async def test_without_resume_a_lost_connection_ends_the_session() -> None:
    async with running(resume_ttl_s=0) as server:
        client = Returning(url_of(server))
        opened = await client.open(max_lead_ms=None)
        assert opened.limits["resume_ttl_ms"] == 0
        await client.say(1, TEXT)
        await client.samples(100)
        client.vanish()
        await eventually(lambda: server.sessions.taken == 0)
        failed = await client.resume()
        assert isinstance(failed, s.ResumeFailed)
        assert failed.reason == "unknown"
        client.vanish()


async def test_a_dead_connection_is_cut_and_the_session_waits() -> None:
    async with running(detach_after_s=1) as server, returning(url_of(server)) as client:
        await client.say(1, TEXT)
        await client.samples(100)
        assert client.opened is not None
        live = server.sessions._live[client.opened.session]
        await eventually(lambda: live.carrier is None)
        assert isinstance(await client.resume(), s.Resumed)


async def test_requests_over_http_are_as_before() -> None:
    async with running() as server, returning(url_of(server)) as client:
        await client.say(1, TEXT)
        await client.samples(100)
        await detached(server, client)
        status, _, wav = await speak(server, {"text": TEXT})
        assert status == 200
        await client.resume()
        await client.until(s.Done)
        assert wav[44:] == bytes(client.pcm[1])
