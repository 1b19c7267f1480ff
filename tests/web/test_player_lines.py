"""The player on lines that break, in tabs that nobody sees, and when it is stopped."""

from deploy.faulty_proxy import DOWN, Connection, Cut, FaultyProxy
from tests.support.processes import ServerProcess
from tests.support.server import http_of, running, url_of
from tests.support.web_player import checksum, reference
from tests.web.conftest import OpenPlayer

SHORT = "One two three four. 五六七八，九十。"
LONG = "One two three four five six seven. 一二三四五六七，八九十。 " * 4  # some 9 s
SOCKET_FAILED = "WebSocket connection to"  # Chromium says so on the console, and nobody can stop it
QUIET_MS = 100


async def test_three_cuts_lose_no_sample(open_player: OpenPlayer, tone_server: ServerProcess) -> None:
    """Each in the middle of a frame, while the server is sending."""
    async with FaultyProxy(tone_server.port) as proxy:
        page = await open_player(f"http://127.0.0.1:{proxy.port}", player={"format": "pcm"}, expected=(SOCKET_FAILED,))
        await page.page.evaluate("async () => { await player.unlock(); }")
        await page.page.wait_for_load_state("networkidle")
        for bytes_before in (31_001, 52_003, 70_001):
            proxy.cut_next(Cut(DOWN, Connection.reset, byte=bytes_before))
        report = await page.complete(await page.speak(LONG), await reference(tone_server.url, LONG))
    assert (report["reconnects"], report["restarts"]) == (3, 0)


async def test_three_cuts_of_opus_lose_no_sample(open_player: OpenPlayer, tone_server: ServerProcess) -> None:
    text = LONG[: len(LONG) * 3 // 4]
    page = await open_player(tone_server.http, player={"format": "opus"})
    number = await page.speak(text)
    for sample in (2_400, 24_000, 43_200):
        await page.reached(number, sample)
        await page.page.evaluate("() => player.cut()")
    samples = len(await reference(tone_server.url, text)) // 2
    await page.watched.until(f"probe.events.some((each) => each.kind === 'report' && each.received >= {samples})")
    report = await page.watched.report(number)
    assert (report["received"], report["reconnects"]) == (samples, 3)
    assert report["stalls"] == 0


async def test_a_bad_network_ends_whole(open_player: OpenPlayer, tone_server: ServerProcess) -> None:
    text = LONG[: len(LONG) // 2]
    page = await open_player(tone_server.http, player={"format": "pcm"})
    await page.page.evaluate("() => { player.rough(true); }")
    await page.complete(await page.speak(text), await reference(tone_server.url, text), timeout_s=60)


async def test_a_hidden_tab_goes_on(open_player: OpenPlayer, tone_server: ServerProcess) -> None:
    """Nothing at all runs on its main thread, for longer than the server's audio lasts without an ack."""
    page = await open_player(tone_server.http, player={"format": "pcm"})
    await page.page.evaluate("() => { probe.hide(); }")
    number = await page.speak(LONG)
    await page.watched.event("audible", number)
    before = await page.watched.report(number)
    await page.page.evaluate("() => { const end = performance.now() + 6_500; while (performance.now() < end); }")
    await page.watched.until("probe.events.some((each) => each.kind === 'report' && each.played > 24_000 * 6)", 2)
    report = await page.complete(number, await reference(tone_server.url, LONG))
    assert before["played"] < 24_000
    assert (report["stalls"], report["reconnects"]) == (0, 0)


async def test_stop_and_speak_again(open_player: OpenPlayer, tone_server: ServerProcess) -> None:
    page = await open_player(tone_server.http, player={"format": "pcm"})
    await page.page.evaluate("() => { probe.listen(); }")
    first = await page.speak(LONG)
    await page.reached(first, 24_000)
    told = await page.page.evaluate("""async () => {
        const before = performance.now();
        const stopped = await player.stop();
        const after = performance.now();
        await new Promise((resolve) => setTimeout(resolve, 500));
        return { ...stopped, took: after - before, heard: probe.lastSound(0), sound: probe.lastSound(before) };
    }""")
    assert told["id"] == first
    assert told["took"] <= QUIET_MS
    assert told["heard"] > 0
    assert told["sound"] <= QUIET_MS
    assert 24_000 <= told["played"] < 24_000 * 4
    assert LONG.startswith("One two three four five")
    assert 14 <= told["heardTextEnd"] <= 60
    assert (await page.result(first))["heardAll"] is False
    report = await page.heard(SHORT)
    assert (report["received"], report["crc"]) == checksum(await reference(tone_server.url, SHORT))
    late = [each for each in await page.watched.events("report", first) if each["at"] > report["at"]]
    assert not late


async def test_stop_before_the_first_sound(open_player: OpenPlayer) -> None:
    slow = {"match": "slow", "at": 0, "action": "delay", "ms": 600}
    async with running(engine_options={"script": [slow]}) as server:
        page = await open_player(http_of(server), player={"format": "pcm"})
        await page.page.evaluate("() => { probe.listen(); }")
        number = await page.speak("slow words")
        told = await page.page.evaluate("async () => ({ ...(await player.stop()) })")
        assert told["played"] == 0
        assert (await page.result(number, 2))["heardAll"] is False
        await page.page.wait_for_timeout(900)
        assert await page.page.evaluate("() => probe.lastSound(0)") == 0
        report = await page.heard(SHORT)
        assert (report["received"], report["crc"]) == checksum(await reference(url_of(server), SHORT))


async def test_the_system_takes_the_sound_away(open_player: OpenPlayer, tone_server: ServerProcess) -> None:
    """As iOS does for a call: the page says so, and the next key press goes on where it was."""
    page = await open_player(tone_server.http, player={"format": "pcm"})
    number = await page.speak(SHORT)
    await page.reached(number, 7_200)
    await page.page.evaluate("() => player.context.suspend()")
    await page.watched.until("probe.events.some((each) => each.kind === 'audio' && each.needsTap)")
    await page.page.click("button")
    result = await page.result(number)
    assert result["heardAll"]
    report = await page.watched.report(number)
    assert (report["received"], report["crc"]) == checksum(await reference(tone_server.url, SHORT))
