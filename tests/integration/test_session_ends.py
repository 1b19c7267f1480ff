"""How sessions end when something is wrong: the client hears why, the log knows, nothing is left behind."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

import server.engines.tone as tone
from protocol import client_messages as c
from protocol import server_messages as s
from server.session import Session
from tests.integration.test_sessions import TEXT, detached, eventually, metric
from tests.support.pools import GivingUp
from tests.support.returning import Returning, cut_all, returning
from tests.support.server import running, url_of


@pytest.fixture(autouse=True)
async def no_connection_left() -> AsyncIterator[None]:
    yield
    await cut_all()


async def refused(client: Returning, **changes: Any) -> str:
    answer = await client.resume(**changes)
    assert isinstance(answer, s.ResumeFailed)
    return answer.reason


async def test_another_voice_after_a_restart_and_a_new_session_on_the_same_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is opened after `resume_failed` is a session like any other: it can be resumed, too."""
    store = f"file:{tmp_path / 'sessions'}"
    async with running(store=store) as server:
        client = Returning(url_of(server))
        await client.open(max_lead_ms=None)
        await client.say(1, TEXT)
        await client.samples(10_000)
    render = tone.render

    def louder(*arguments: Any) -> Any:
        samples, words = render(*arguments)
        return samples * 0.5, words

    monkeypatch.setattr(tone, "render", louder)
    async with running(store=store) as server:
        client.url = url_of(server)
        failed = await client.resume()
        assert isinstance(failed, s.ResumeFailed)
        assert (failed.reason, failed.utterance) == ("epoch", 1)
        again = Returning(client.url, client.socket)
        await again.send(c.Open(max_lead_ms=None))
        again.opened = await again.until(s.Opened)
        again.token = again.opened.token
        await again.say(1, TEXT)
        await again.samples(100)
        await detached(server, again)
        assert isinstance(await again.resume(), s.Resumed)
        await again.until(s.Done)
        assert server.sessions.taken == 1


async def test_a_fault_in_the_timer_ends_the_session_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Session, now: float) -> None:
        raise RuntimeError("a bug")

    async with running() as server, returning(url_of(server)) as client:
        monkeypatch.setattr(Session, "on_time", broken)
        await client.say(1, TEXT)
        error = await client.until(s.Error, acks=False)
        assert error.code == "internal"
        assert await client.closed() == 1011
        await eventually(lambda: server.sessions.taken == 0)


async def test_an_engine_that_fails_while_nobody_is_there_is_logged_and_counted() -> None:
    with structlog.testing.capture_logs() as logs:
        async with running(engine_options={"step_delay_ms": 150}) as server:
            GivingUp(server.pool, "", 2)
            client = Returning(url_of(server))
            await client.open(max_lead_ms=None)
            await client.say(1, TEXT)
            await client.samples(100)
            await detached(server, client)
            await eventually(lambda: server.sessions.taken == 0)
            assert metric(server, 'errors_total{code="engine_failed"}') == 1
            assert await refused(client) == "unknown"
    assert [entry["event"] for entry in logs if entry.get("code") == "engine_failed"] == ["session failed"]


async def test_a_failure_reaches_a_client_that_does_not_read() -> None:
    """It waits for nothing that is on its way to a peer that takes nothing."""
    async with running(engine_options={"step_delay_ms": 1}) as server:
        GivingUp(server.pool, "公园", 0)
        client = Returning(url_of(server))
        await client.open(max_lead_ms=None)
        assert client.socket is not None
        client.socket.transport.pause_reading()
        await client.say(1, TEXT)
        await eventually(lambda: server.sessions.taken == 0, within=8)


async def test_after_an_error_the_session_is_over_at_once() -> None:
    async with running() as server, returning(url_of(server)) as client:
        await client.say(1, TEXT)
        await client.samples(100)
        await client.send(c.Text(99, "a gap"))
        assert (await client.until(s.Error, acks=False)).code == "sequence"
        assert await refused(client) == "unknown"


@pytest.mark.parametrize("data", ["x" * 300_000, b"\xff\xff"], ids=["too long", "binary"])
async def test_who_breaks_the_rules_of_the_connection_cannot_resume(data: str | bytes) -> None:
    async with running() as server, returning(url_of(server)) as client:
        await client.say(1, TEXT)
        await client.samples(100)
        assert client.socket is not None
        await client.socket.send(data)
        await client.closed()
        await eventually(lambda: server.sessions.taken == 0)
        assert await refused(client) == "unknown"


async def test_a_session_that_was_never_opened_leaves_no_line_in_the_log() -> None:
    with structlog.testing.capture_logs() as logs:
        async with running() as server, returning(url_of(server)) as client:
            stranger = Returning(url_of(server))
            stranger.opened, stranger.token = client.opened, "x"
            assert await refused(stranger, session="nobody") == "unknown"
            stranger.vanish()
            await asyncio.sleep(0.05)
    assert sum(entry["event"] == "session ended" for entry in logs) == 1


async def test_one_fault_at_the_end_does_not_keep_the_others_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as server, returning(url_of(server)) as client, returning(url_of(server)) as other:
        for each in (client, other):
            await each.say(1, TEXT)
            await each.samples(100)

        async def broken(deadline_ms: int) -> None:
            raise RuntimeError("a bug")

        member = next(iter(server.sessions._members))
        monkeypatch.setattr(member, "stop", broken)
        await server.stop()
        assert server.sessions.taken == 0


async def test_a_thousand_detached_sessions_cost_a_chunk_no_more_than_one_does() -> None:
    """Only what changed is counted again."""
    async with running() as server, returning(url_of(server)) as client:
        await client.say(1, TEXT)
        await client.samples(100)
        await detached(server, client)
        live = next(iter(server.sessions._waiting))
        before = server.sessions._waiting.bytes
        for _ in range(3):
            server.sessions._changed(live)
        assert server.sessions._waiting.bytes == before
        await eventually(lambda: server.sessions._waiting.bytes == live.session.kept_bytes)
        assert isinstance(await client.resume(), s.Resumed)
        assert (server.sessions._waiting.bytes, len(server.sessions._waiting)) == (0, 0)
