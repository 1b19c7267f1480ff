"""The browser's shell with a real server: what reaches the playout, over cuts, restarts and refusals. Runs in node."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

import pytest

from deploy.faulty_proxy import DOWN, UP, Connection, Cut, FaultyProxy
from protocol import client_messages as c
from server.app import Server
from server.gateway.auth import Principal
from server.gateway.tokens import Asked
from tests.support.fake_server import fake_server
from tests.support.processes import server_process
from tests.support.server import running, url_of
from tests.support.web_connection import OPEN, WebConnection, web_connection

TEXT = "The first sentence is spoken at once. The second one follows it, without a gap. " * 2
LONG = "山高水远，天蓝云白，风轻日暖。 The line breaks, and the sentence goes on. " * 6
KEY = "cosy_the-key-of-a-test"


@contextlib.asynccontextmanager
async def speaking(**settings: Any) -> AsyncIterator[tuple[Server, WebConnection]]:
    """A server, and a connection that is set up for it."""
    async with running(**settings) as server, web_connection(url_of(server)) as connection:
        yield server, connection


@contextlib.asynccontextmanager
async def broken_line(**settings: Any) -> AsyncIterator[tuple[FaultyProxy, WebConnection]]:
    """The same with a line between that fails on request."""
    async with running(**settings) as server:
        assert server.listener is not None
        async with FaultyProxy(server.listener.port) as proxy, web_connection(proxy.url) as connection:
            yield proxy, connection


async def test_every_sample_reaches_the_playout() -> None:
    async with speaking() as (_, web):
        web.speak(1, TEXT)
        web.speak(2, "Another text.")
        await web.done(1)
        await web.done(2)
        assert await web.checked(1) > 24000
        await web.checked(2)
        begin = web.found("begin", 1, playout=True)[0]
        assert (begin["rate"], begin["maxPrerollMs"]) == (24000, 3000)
        for number in (1, 2):
            (verified,) = web.found("verified", number)
            assert verified["samples"] == web.events(number, "done")[0]["samples"]
            assert web.events(number, "timing")
        (opened,) = web.found("opened")
        assert opened["message"]["config"]["format"] == "pcm"
        assert web.states() == ["connecting", "ready"]
        await web.until(lambda: web.found("statistics"))
        last = web.found("statistics")[-1]
        assert last["bytes"] > 0
        assert (last["reconnects"], last["restarts"], last["codec"]) == (0, 0, "pcm")


async def test_without_a_decoder_it_is_pcm_and_said_once() -> None:
    async with speaking() as (_, web):
        web.speak(1, "One.", format="opus")
        web.speak(2, "Two.", format="auto")
        await web.done(1)
        await web.done(2)
        assert [each["code"] for each in web.found("warning")] == ["no_opus"]
        assert web.found("opened")[0]["message"]["config"]["format"] == "pcm"


async def test_a_warm_session_is_the_one_that_speaks() -> None:
    async with speaking() as (_, web):
        web.send("warm", open=OPEN)
        await web.state("ready")
        web.speak(1, "Already there.")
        await web.done(1)
        web.send("warm", open=OPEN)
        web.speak(2, "Still there.")
        await web.done(2)
        assert len(web.found("opened")) == 1


async def test_another_configuration_is_another_session_after_what_was_asked_for() -> None:
    async with speaking() as (_, web):
        web.speak(1, TEXT)
        web.speak(2, "Quickly.", speed=1.5)
        web.speak(3, "Quickly again.", speed=1.5)
        await web.done(3)
        opened = [each["message"]["config"]["speed"] for each in web.found("opened")]
        assert opened == [1.0, 1.5]
        order = [each["id"] for each in web.told if each.get("playout") and each["type"] == "audio"]
        assert order == sorted(order)
        for number in (1, 2, 3):
            await web.checked(number)


async def test_what_waits_for_another_configuration_can_be_cancelled() -> None:
    async with speaking() as (_, web):
        web.speak(1, TEXT)
        web.speak(2, "Never said.", speed=1.5)
        web.speak(3, "But this is.", speed=1.5)
        web.send("cancel", id=2, played=None)
        await web.done(3)
        assert len(web.events(2, "cancelled")) == 1
        assert not web.found("begin", 2, playout=True)
        await web.checked(3)


async def test_text_as_it_is_written_and_silence_that_is_the_writers() -> None:
    async with speaking() as (_, web):
        web.send("begin", id=1, open=OPEN, start={})
        web.send("write", id=1, text="It is written ")
        await asyncio.sleep(0.05)
        web.send("write", id=1, text="slowly.")
        web.send("flush", id=1, soft=False)
        await web.until(lambda: web.found("between", 1, playout=True))
        web.send("write", id=1, text=" And it ends.")
        web.send("end", id=1)
        await web.done(1)
        await web.checked(1)
        kinds = [
            each["type"] for each in web.told if each.get("playout") and each["id"] == 1 and each["type"] != "played"
        ]
        assert kinds.count("between") == 1, "once it has ended, silence is nobody's"


async def test_cancel_before_the_first_sound() -> None:
    async with speaking(engine_options={"step_delay_ms": 300}) as (_, web):
        web.speak(1, TEXT)
        web.send("cancel", id=1, played=0)
        web.speak(2, "And now this.")
        await web.done(2, 60)
        assert len(web.events(1, "cancelled")) == 1
        assert not web.found("audio", 1, playout=True)
        await web.checked(2)


async def test_cancel_in_mid_sentence_and_another_voice_at_once() -> None:
    async with speaking() as (_, web):
        web.speak(1, LONG)
        await web.until(lambda: web.found("played", 1, playout=True)[-1:] and web.found("audio", 1, playout=True))
        played = web.found("played", 1, playout=True)[-1]["sample"]
        web.send("cancel", id=None, played=played)
        web.speak(2, "Now in another tempo.", speed=2.0)
        await web.done(2)
        (cancelled,) = web.events(1, "cancelled")
        assert cancelled["heard_text_end"] < len(LONG)
        order = [each["id"] for each in web.told if each.get("playout") and each["type"] == "audio"]
        assert order == sorted(order), "late audio of what was cancelled"
        await web.checked(2)


async def test_three_cuts_lose_nothing() -> None:
    async with broken_line() as (proxy, web):
        proxy.cut_next(*[Cut(DOWN, Connection.reset, byte=byte) for byte in (30_000, 130_001, 77_777)])
        web.speak(1, LONG)
        await web.done(1)
        await web.checked(1)
        assert proxy.accepted == 4
        assert web.states().count("reconnecting") == 3
        await web.until(lambda: web.found("statistics")[-1]["reconnects"] == 3)
        assert web.found("statistics")[-1]["restarts"] == 0
        assert web.found("verified", 1)


async def test_a_silent_line_is_left_for_another_connection() -> None:
    async with broken_line() as (proxy, web):
        web.speak(1, LONG)
        await web.until(lambda: proxy.carried[DOWN] > 60_000)
        first = await proxy.connection(proxy.accepted)
        first.hole(UP, DOWN)
        await web.done(1)
        await web.checked(1)
        assert proxy.accepted >= 2
        assert web.found("statistics")[-1]["reconnects"] == 1


async def hears_more(web: WebConnection, connections: int) -> None:
    """Wait until so many carried the session, and the last one more of utterance 1."""
    await web.until(lambda: web.states().count("ready") >= connections)
    before = len(web.found("audio", 1, playout=True))
    await web.until(lambda: len(web.found("audio", 1, playout=True)) > before)


async def test_the_buttons_cut_and_rough() -> None:
    async with speaking() as (_, web):
        web.speak(1, LONG)
        for cuts in range(3):
            await hears_more(web, cuts + 1)
            web.send("cut")
        web.send("rough", on=True)
        await asyncio.sleep(2)
        web.send("rough", on=False)
        await web.done(1)
        await web.checked(1)
        assert web.states().count("reconnecting") >= 3
        assert not web.found("restarted", 1)


async def test_a_cut_while_it_connects() -> None:
    async with broken_line() as (proxy, web):
        proxy.change(DOWN, UP, delay_s=0.05)
        web.speak(1, TEXT)
        await web.until(lambda: proxy.accepted)
        web.send("cut")
        await web.done(1)
        await web.checked(1)


@pytest.mark.parametrize("store", [True, False])
async def test_the_server_dies(tmp_path: Path, store: bool) -> None:
    options = ["--engine", "tone", "--engine-option", "step_delay_ms=20", "--drain-timeout-s", "0.2"]
    options += ["--store", f"file:{tmp_path / 'store'}"] if store else []
    with contextlib.ExitStack() as servers:
        first = await asyncio.to_thread(servers.enter_context, server_process(tmp_path / "1.log", *options))
        async with FaultyProxy(first.port) as proxy, web_connection(proxy.url) as web:
            web.speak(1, LONG)
            await web.until(lambda: proxy.carried[DOWN] > 100_000)
            first.process.kill()
            second = await asyncio.to_thread(servers.enter_context, server_process(tmp_path / "2.log", *options))
            proxy.upstream_port = second.port
            await web.done(1)
            if store:
                assert not web.found("restarted", 1)
                await web.checked(1)
            else:
                assert await samples_of(web, 1) == web.events(1, "done")[0]["samples"]
                (place,) = web.found("restarted", 1)
                assert 0 < place["position"] < len(LONG)
                assert place["sample"] == web.found("restart", 1, playout=True)[0]["first"]


async def samples_of(web: WebConnection, number: int) -> int:
    """What reached the playout, without a gap."""
    web.send("digests", id=number, parts=[])
    found = await web.until(lambda: web.found("digests", number))
    assert not [each for each in web.told if each["type"] == "wrong"]
    return int(found[-1]["samples"])


async def test_the_page_gives_a_token_before_each_connection(tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    keys.write_text(f"somebody {sha256(KEY.encode()).hexdigest()}\n", encoding="utf-8")
    async with speaking(keys=keys) as (server, web):
        token, _ = server.principals.make_token(Principal("somebody"), Asked())
        web.token = {"token": token}
        web.speak(9, LONG)
        await web.until(lambda: web.found("audio", 9, playout=True))
        web.send("cut")
        await web.done(9)
        await web.checked(9)
        assert len(web.found("token")) == 2, "one before each connection"
        web.send("warm", open={})  # another configuration
        await web.until(lambda: len(web.found("opened")) == 3)
        web.token = {"token": "cosyt_wrong"}
        web.speak(10, TEXT, mode="block")
        failed = await web.state("failed")
        assert (failed["detail"]["code"], failed["detail"]["retryable"]) == ("unauthorized", False)
        web.token = {"token": None, "error": {"code": "unreachable", "message": "no", "retryable": False}}
        web.speak(11, TEXT)
        await web.until(lambda: len([each for each in web.states() if each == "failed"]) == 2)
        assert web.found("state")[-1]["detail"]["code"] == "unreachable"


@pytest.mark.parametrize(("open", "code"), [({"voice": "nobody"}, "unknown_voice"), ({"speed": 9.0}, "bad_message")])
async def test_what_the_server_refuses(open: dict[str, Any], code: str) -> None:
    async with speaking() as (_, web):
        web.speak(1, TEXT, **open)
        failed = await web.state("failed")
        assert failed["detail"]["code"] == code
        web.speak(2, "But this works.")
        await web.done(2)
        await web.checked(2)


async def test_a_wrong_voice_of_an_utterance_ends_what_is_spoken_cleanly() -> None:
    async with speaking() as (_, web):
        web.speak(1, TEXT)
        await web.until(lambda: web.found("audio", 1, playout=True))
        web.speak(2, "Nobody.", start={"voice": "nobody"})
        failed = await web.state("failed")
        assert failed["detail"]["code"] == "unknown_voice"
        (complete,) = await web.until(lambda: web.found("complete", 1, playout=True))
        assert complete["samples"] == await samples_of(web, 1)


async def test_a_full_server_says_when_to_come_back() -> None:
    async with running(max_sessions=1) as server, web_connection(url_of(server)) as first:
        first.send("warm", open=OPEN)
        await first.state("ready")
        async with web_connection(url_of(server)) as web:
            web.speak(1, TEXT)
            failed = await web.state("failed")
            assert failed["detail"]["code"] == "busy"
            assert failed["detail"]["retryable"]
            assert failed["detail"]["retryAfterMs"] > 0


async def test_nobody_is_there() -> None:
    async with web_connection("ws://127.0.0.1:9/v1/stream") as web:
        web.speak(1, TEXT)
        await asyncio.sleep(1.2)
        told = [(each["state"], each["reason"]) for each in web.found("state")]
        assert told == [("connecting", ""), ("connecting", "unreachable")], "it is tried again"
        web.send("close")
        await web.state("closed")


async def test_a_hidden_page_is_reported() -> None:
    async with fake_server() as server, web_connection(f"{server.url}/v1/stream") as web:
        web.speak(1, TEXT)
        await web.done(1)
        assert all(ack.visible for ack in server.of(c.Ack))
        web.send("visible", visible=False)
        web.speak(2, TEXT)
        await web.done(2)
        assert not server.of(c.Ack)[-1].visible


@pytest.mark.parametrize("pause_s", [1.5, 5.0])  # the server drops a connection that says nothing for 4 s
async def test_a_machine_that_sleeps_goes_on(pause_s: float) -> None:
    async with running() as server, web_connection(url_of(server), speed=2) as web:
        web.speak(1, TEXT)
        await hears_more(web, 1)
        web.signal(SIGSTOP)
        await asyncio.sleep(pause_s)
        web.signal(SIGCONT)
        await web.done(1)
        await web.checked(1)
        assert not web.found("restarted", 1)


async def test_text_for_another_utterance_than_the_newest_is_not_the_newests() -> None:
    async with speaking() as (_, web):
        web.send("begin", id=1, open=OPEN, start={})
        web.send("write", id=1, text="One. ")
        web.speak(2, "Two.")
        web.send("write", id=1, text="This comes too late.")
        await web.done(2)
        assert web.events(2, "segment_end")[-1]["samples"] == web.events(2, "done")[0]["samples"]
        await web.checked(1)


async def test_a_listener_who_stands_still_gets_no_more_than_the_lead() -> None:
    async with speaking() as (_, web):
        web.send("hold", on=True)
        web.speak(1, LONG)
        await web.until(lambda: sum(each["count"] for each in web.found("audio", 1, playout=True)) > 90_000)
        await asyncio.sleep(0.5)
        assert sum(each["count"] for each in web.found("audio", 1, playout=True)) <= 4 * 24000 + 4800
        web.send("hold", on=False)
        await web.done(1)
        await web.checked(1)


async def test_a_text_of_many_pages() -> None:
    async with running() as server, web_connection(url_of(server), speed=400) as web:
        web.speak(1, LONG * 6)
        await web.done(1, 60)
        await web.checked(1)


async def test_a_server_that_starts_again_is_waited_for() -> None:
    async with running(engine_options={"step_delay_ms": 20}) as first, running() as second:
        assert first.listener is not None
        assert second.listener is not None
        async with FaultyProxy(first.listener.port) as proxy, web_connection(proxy.url, speed=20) as web:
            web.speak(1, LONG)
            await hears_more(web, 1)
            second.ready.clear()
            proxy.upstream_port = second.listener.port
            await first.stop()
            connections = proxy.accepted
            await web.until(lambda: proxy.accepted >= connections + 2)
            second.ready.set()
            await web.done(1)
            assert "failed" not in web.states()
            assert await samples_of(web, 1) == web.events(1, "done")[0]["samples"]
            assert len(web.found("restarted", 1)) == 1
