"""The page as a person uses it, against a real server."""

import re
import wave
from pathlib import Path

import pytest
import soundfile
from playwright.async_api import expect

from server.gateway.auth import add_key
from tests.support.processes import ServerProcess, server_process
from tests.support.server import http_of, running, url_of
from tests.support.web_page import DemoPage
from tests.support.web_player import checksum, reference
from tests.web.conftest import OpenPage, free_port

TEXT = "One two three four. 五六七八，九十。"
LONG = "One two three four five six seven. 一二三四五六七，八九十。 " * 3  # some 10 s
SOCKET_FAILED = ("WebSocket connection to", "ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET")
QUIET_MS = 100


async def demo(open_page: OpenPage, http: str, **options: object) -> DemoPage:
    page = DemoPage(await open_page(f"{http}/", **options))
    await page.ready()
    return page


async def test_it_speaks(open_page: OpenPage, voice_server: ServerProcess) -> None:
    text = "Good morning. 今天天气很好。"
    page = await demo(open_page, voice_server.http)
    await page.page.evaluate("() => { probe.listen(); }")
    number = await page.speak(text)
    assert await page.says("#state") in {"Waiting for sound", "Speaking"}
    report = await page.over(number)
    assert report["codec"] == "opus"
    assert report["stalls"] == 0
    await page.page.get_by_text("Heard to the end.").wait_for()
    assert int(re.sub(r"\D", "", await page.says("#verified-value"))) == report["received"]
    assert re.fullmatch(r"\d+ ms", await page.says("#first-value"))
    assert await page.says("#reading") == text
    assert await page.page.evaluate("() => Math.max(...probe.levels.map((each) => each[1]))") > 0.01
    assert {"Good", "morning"} <= {
        text[word["start"] : word["end"]] for word in await page.watched.events("word", number)
    }


async def test_by_keyboard_and_as_pcm(open_page: OpenPage, tone_server: ServerProcess) -> None:
    page = await demo(open_page, tone_server.http)
    await page.page.evaluate("() => { document.querySelector('#more').open = true; }")
    await page.page.select_option("#format", "pcm")
    await page.page.fill("#text", TEXT)
    await page.page.press("#text", "Control+Enter")
    report = await page.over(1)
    assert (report["received"], report["crc"], report["codec"]) == (
        *checksum(await reference(tone_server.url, TEXT)),
        "pcm",
    )
    assert "PCM" in await page.says("#format-value")


async def test_as_a_person_types(open_page: OpenPage, tone_server: ServerProcess) -> None:
    page = await demo(open_page, tone_server.http)
    await page.page.check("#way-typing")
    await page.page.fill("#text", "")
    await page.page.focus("#text")
    await page.page.keyboard.type("One two three. ", delay=30)
    await page.watched.event("audible", 1)
    await page.page.keyboard.type("Four five six.", delay=30)
    await page.page.click("#speak")
    report = await page.over(1)
    words = [each["start"] for each in await page.watched.events("word", 1)]
    assert len(words) == 6
    assert report["received"] >= 6 * 2_880


async def test_as_a_model_writes(open_page: OpenPage, tone_server: ServerProcess) -> None:
    page = await demo(open_page, tone_server.http)
    await page.page.check("#way-model")
    await page.page.evaluate("""() => {
        const rate = document.querySelector("#rate");
        rate.value = 50;
        rate.dispatchEvent(new Event("input", { bubbles: true }));
    }""")
    report = await page.over(await page.speak(TEXT))
    assert report["received"] == len(await reference(tone_server.url, TEXT)) // 2
    assert await page.says("#reading") == TEXT


async def test_stop_is_silent_at_once_and_marks_what_was_heard(open_page: OpenPage, tone_server: ServerProcess) -> None:
    page = await demo(open_page, tone_server.http)
    await page.page.evaluate("() => { probe.listen(); }")
    number = await page.speak(LONG)
    await page.reached(number, 24_000)
    await page.page.click("#stop")
    stopped = await page.watched.event("stopped", number)
    await page.page.wait_for_timeout(500)
    heard_ms, late_ms = await page.page.evaluate("() => [probe.lastSound(0), probe.lastSound(probe.pressed)]")
    assert heard_ms > 0
    assert late_ms <= QUIET_MS
    heard = stopped["heardTextEnd"]
    assert 14 <= heard <= 60
    assert f"{heard} of {len(LONG)} " in await page.says("#heard")
    number = await page.speak(TEXT)
    report = await page.over(number)
    assert report["received"] == len(await reference(tone_server.url, TEXT)) // 2


async def test_cut_three_times_on_a_bad_line(open_page: OpenPage, tone_server: ServerProcess) -> None:
    page = await demo(open_page, tone_server.http)
    await page.page.click("#rough")
    assert await page.page.get_attribute("#rough", "aria-pressed") == "true"
    number = await page.speak(LONG)
    for sample in (12_000, 48_000, 84_000):
        await page.reached(number, sample)
        await page.page.click("#cut")
    report = await page.over(number, 60)
    assert report["received"] == len(await reference(tone_server.url, LONG)) // 2
    assert report["reconnects"] >= 3
    await page.page.get_by_text("Heard to the end.").wait_for()
    assert re.sub(r"\D", "", await page.says("#verified-value")) == str(report["received"])
    told = await page.says("#log")
    assert told.count("You cut the connection") == 3
    assert int(await page.says("#reconnects-value")) == told.count("Connected again")
    assert told.count("Connected again") >= 3


async def test_a_change_of_mode_is_shown(open_page: OpenPage, tone_server: ServerProcess) -> None:
    """After a loss the server sends blocks for a while, and says why."""
    page = await demo(open_page, tone_server.http)
    number = await page.speak(LONG)
    await page.reached(number, 12_000)
    await page.page.click("#cut")
    await expect(page.page.locator("#mode-value")).to_have_text("Block")
    assert "lost" in await page.says("#mode-note")
    await page.page.click("#stop")


async def test_downloads_are_whole(open_page: OpenPage, tone_server: ServerProcess, tmp_path: Path) -> None:
    page = await demo(open_page, tone_server.http)
    await page.page.fill("#text", TEXT)
    expected = await reference(tone_server.url, TEXT)
    with wave.open(str(await page.download("#download-wav", tmp_path))) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (24_000, 1, 2)
        assert sound.getnframes() == len(expected) // 2, "as the header says"
        assert sound.readframes(sound.getnframes()) == expected
    ogg = await page.download("#download-opus", tmp_path)
    samples, rate = soundfile.read(ogg)
    assert len(samples) / rate == pytest.approx(len(expected) / 48_000, abs=0.001)


async def test_a_server_with_keys(open_page: OpenPage, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    key = add_key(keys, "ann")
    async with running(keys=keys) as server:
        page = DemoPage(await open_page(f"{http_of(server)}/", expected=("401", *SOCKET_FAILED)))
        await page.page.locator("#key-form").wait_for()
        await page.page.fill("#key", "not-a-key")
        await page.page.press("#key", "Enter")
        await page.page.get_by_text("The server does not know this key.").wait_for()
        await page.page.fill("#key", key)
        await page.page.click("#key-send")
        await page.ready()
        assert await page.page.locator("#key-form").is_hidden()
        report = await page.over(await page.speak(TEXT))
        assert report["received"] == len(await reference(url_of(server), TEXT, api_key=key)) // 2
        kept = await page.page.evaluate(
            "() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie])"
            " + document.querySelector('#key').value"
        )
        assert key not in kept


async def test_a_server_that_forgot_its_tokens(open_page: OpenPage, tmp_path: Path) -> None:
    """As one that was started again, and has another secret: the page comes back with a token made just then."""
    key = add_key(tmp_path / "keys", "ann")
    async with running(keys=tmp_path / "keys") as server:
        page = DemoPage(await open_page(f"{http_of(server)}/", expected=("401", *SOCKET_FAILED)))
        await page.page.fill("#key", key)
        await page.page.press("#key", "Enter")
        await page.ready()
        text = TEXT * 2
        number = await page.speak(text)
        server.principals._secret = bytes(32)
        await page.page.evaluate("() => probe.player.cut()")
        report = await page.over(number)
        assert report["received"] == len(await reference(url_of(server), text, api_key=key)) // 2
        assert await page.page.locator("#key-form").is_hidden()


async def test_a_busy_server(open_page: OpenPage) -> None:
    """It says so, and until when."""
    async with running(max_sessions=1) as server:
        other = await demo(open_page, http_of(server))
        number = await other.speak(LONG)
        page = await demo(open_page, http_of(server))
        await page.page.fill("#text", TEXT)
        await page.page.click("#speak")
        await page.page.get_by_text("The server speaks for as many people as it can.").wait_for()
        assert re.search(r"\d", await page.says("#failure-wait"))
        await other.page.click("#stop")
        await other.watched.event("stopped", number)
        await other.page.close()
        await page.page.click("#again")
        await page.watched.until("probe.events.some((each) => each.kind === 'ended')", 30)


async def test_a_server_that_goes_away_and_comes_back(open_page: OpenPage, tmp_path: Path) -> None:
    """It comes back without the session: the rest of the text is said in a new one, and nothing is heard twice."""
    text = LONG[: len(LONG) * 3 // 4].strip()
    options = ("--engine", "tone", "--port", str(free_port()))
    with server_process(tmp_path / "log", *options) as server:
        page = await demo(open_page, server.http, expected=SOCKET_FAILED)
        number = await page.speak(text)
        await page.reached(number, 12_000)
        server.process.kill()
        await expect(page.page.locator("#state")).to_have_text("Reconnecting")
    with server_process(tmp_path / "log", *options) as server:
        report = await page.over(number, 40)
        expected = len(await reference(server.url, text)) // 2
        assert report["restarts"] == 1
        assert abs(report["received"] - expected) <= 24_000, "segments are cut anew where it went on"
        await page.page.get_by_text("The server had lost the session: it goes on in a new one").wait_for()
        assert await page.says("#reconnects-value") == "1"
        assert await page.says("#reconnects-note") == "and started anew: 1"
        assert await page.says("#reading") == text


async def test_no_server_when_it_is_asked(open_page: OpenPage, tmp_path: Path) -> None:
    """It goes on asking, and speaks when the server is there again; nobody presses anything twice."""
    options = ("--engine", "tone", "--port", str(free_port()))
    with server_process(tmp_path / "log", *options) as server:
        page = await demo(open_page, server.http, expected=SOCKET_FAILED)
        await page.page.wait_for_load_state("networkidle")
        server.process.kill()
        server.process.wait(10)
        await page.page.fill("#text", TEXT)
        await page.page.click("#speak")
        await expect(page.page.locator("#state")).to_have_text("Connecting")
        await page.page.get_by_text("The server does not answer.").wait_for()
    with server_process(tmp_path / "log", *options):
        report = await page.over(1, 30)
        assert report["received"] == len(await reference(server.url, TEXT)) // 2


async def test_the_server_is_gone_before_the_player_is_loaded(open_page: OpenPage, tmp_path: Path) -> None:
    """Neither its Worker nor what stands in for it can be loaded. It says so, and tries again when it is asked to."""
    options = ("--engine", "tone", "--port", str(free_port()))
    with server_process(tmp_path / "log", *options) as server:
        page = DemoPage(await open_page(f"{server.http}/empty", expected=SOCKET_FAILED))
        await page.page.route("**/web/connection.js", lambda route: route.abort("connectionrefused"))
        await page.page.goto(f"{server.http}/")
        await page.ready()
        await page.page.fill("#text", TEXT)
        await page.page.click("#speak")
        await page.page.get_by_text("The server does not answer.").wait_for()
        await page.page.unroute("**/web/connection.js")
        await page.page.click("#again")
        await page.watched.until("probe.events.some((each) => each.kind === 'ended')")


async def test_without_a_secure_context_it_says_why(open_page: OpenPage, tone_server: ServerProcess) -> None:
    page = await demo(open_page, tone_server.http.replace("127.0.0.1", "demo.test"))
    assert "--tls-self-signed" in await page.says("#support")
    report = await page.over(await page.speak(TEXT))
    assert report["received"] == len(await reference(tone_server.url, TEXT)) // 2
    assert "https" in await page.says("#format-note")


async def test_with_a_certificate_of_its_own(open_page: OpenPage) -> None:
    async with running(tls_self_signed=True) as server:
        page = await demo(open_page, http_of(server).replace("http:", "https:"), ignore_https_errors=True)
        assert await page.page.locator("#support").is_hidden()
        await page.over(await page.speak(TEXT))


_WORDS = """() => [...document.querySelectorAll("[data-text], [data-label]")].map((each) =>
    each.dataset.text ? each.textContent : each.getAttribute("aria-label"))"""


async def test_every_word_is_in_both_languages(open_page: OpenPage, tone_server: ServerProcess) -> None:
    """Every element that names its words, shown or not, and each of them another one than before."""
    page = await demo(open_page, tone_server.http, locale="zh-CN")
    assert await page.page.get_attribute("html", "lang") == "zh-CN"
    assert await page.says("#speak") == "朗读"
    chinese = await page.page.evaluate(_WORDS)
    await page.page.click("#language")
    assert await page.page.get_attribute("html", "lang") == "en"
    english = await page.page.evaluate(_WORDS)
    assert len(english) > 50
    assert [word for word in english if re.search(r"[\u3400-\u9fff]", word)] == []
    assert [pair for pair in zip(chinese, english, strict=True) if pair[0] == pair[1] or not all(pair)] == []


async def test_what_the_browser_loads(open_page: OpenPage, tone_server: ServerProcess) -> None:
    """Nothing that is not there, nothing from elsewhere, and no more than 150 KB as it comes over the line."""
    page = await demo(open_page, tone_server.http)
    await page.over(await page.speak("One."))
    sizes = await page.page.evaluate(
        """() => ["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind))
            .map((each) => [each.name, each.encodedBodySize])"""
    )
    assert len(sizes) >= 8
    assert 20_000 < sum(size for _, size in sizes) <= 150_000
    assert len(set(page.watched.requests)) >= 8
