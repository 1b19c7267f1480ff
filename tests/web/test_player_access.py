"""Keys and tokens, encryption, pages from elsewhere, and servers that say no."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from protocol import client_messages as c
from server.gateway.auth import add_key
from tests.support.server import bare_client, http_of, running, url_of
from tests.support.web_player import checksum, reference
from tests.web.conftest import OpenPlayer

TEXT = "One two three. 四五六。"
SHORT = "One."
_MAKE_WITH_TOKEN = """async key => {
    const { Player } = await import("/web/player.js");
    window.results = {};
    window.asked = 0;
    window.player = new Player({ format: "pcm", token: async () => {
        asked++;
        const headers = { "Authorization": `Bearer ${key}`, "Content-Type": "application/json" };
        const answer = await fetch("/v1/tokens", { method: "POST", headers, body: "{}" });
        return (await answer.json()).token;
    } });
}"""


async def test_a_token_for_each_connection(open_player: OpenPlayer, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    key = add_key(keys, "ann")
    async with running(keys=keys) as server:
        page = await open_player(http_of(server))
        await page.page.evaluate(_MAKE_WITH_TOKEN, key)
        number = await page.speak(TEXT)
        await page.reached(number, 4_800)
        await page.page.evaluate("() => player.cut()")
        assert (await page.result(number))["heardAll"]
        assert await page.page.evaluate("() => asked") == 2
        report = await page.watched.report(number)
        assert (report["received"], report["crc"]) == checksum(await reference(url_of(server), TEXT, api_key=key))


async def test_without_a_token(open_player: OpenPlayer, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    add_key(keys, "ann")
    async with running(keys=keys) as server:
        page = await open_player(http_of(server), expected=("WebSocket connection to",))
        assert (await page.result(await page.speak(TEXT)))["error"] == "unauthorized"
        await page.make(token="cosyt_nonsense")
        await page.page.evaluate("() => { probe.events.length = 0; }")
        assert (await page.result(await page.speak(TEXT)))["error"] == "unauthorized"
        assert [each["code"] for each in await page.watched.events("failure")] == ["unauthorized"]


async def test_a_busy_server(open_player: OpenPlayer) -> None:
    """It says until when, and does not ask by itself: the person may have gone. The next utterance is spoken."""
    async with running(max_sessions=1) as server:
        page = await open_player(http_of(server), player={"format": "pcm"})
        async with bare_client(url_of(server), open=c.Open()):
            assert (await page.result(await page.speak(TEXT)))["error"] == "busy"
            (failure,) = await page.watched.events("failure")
            assert failure["code"] == "busy"
            assert failure["retryable"]
            assert failure["retryAfterMs"] > 0
        await page.heard(TEXT)


async def test_no_server(open_player: OpenPlayer) -> None:
    """It goes on asking without a word of failure, may be stopped meanwhile, and speaks when there is one."""
    asked = 0

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.transport.abort()

    async with running() as server:
        port = urlsplit(http_of(server)).port
        page = await open_player(http_of(server), player={"format": "pcm"}, expected=("WebSocket connection to",))
        await page.page.evaluate("() => player.unlock()")
        await page.page.wait_for_load_state("networkidle")
    async with await asyncio.start_server(hang_up, "127.0.0.1", port):
        number = await page.speak(TEXT)
        async with asyncio.timeout(10):
            while asked < 3:
                await asyncio.sleep(0.02)
        await page.page.evaluate("() => player.stop()")
        assert not (await page.result(number))["heardAll"]
        number = await page.speak(SHORT)
    async with running(port=port) as server:
        assert (await page.result(number))["heardAll"]
        report = await page.watched.report(number)
        assert (report["received"], report["crc"]) == checksum(await reference(url_of(server), SHORT))
    assert await page.watched.events("failure") == []


async def test_a_certificate_of_its_own_by_another_name(open_player: OpenPlayer) -> None:
    """What it is for: a secure context, and so the AudioWorklet and Opus, on an address of the network."""
    async with running(tls_self_signed=True, allow_origins="https://demo.test") as server:
        assert server.listener is not None
        page = await open_player(f"https://demo.test:{server.listener.port}", ignore_https_errors=True)
        support = await page.page.evaluate("() => player.support")
        assert (support["secure"], support["worklet"], support["reasons"]) == (True, True, [])
        assert (await page.heard(TEXT))["codec"] == "opus"
