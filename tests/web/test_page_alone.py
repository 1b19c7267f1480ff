"""The page with a player that only pretends (fake_player.js): what it does with what the player tells."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from playwright.async_api import Browser, Page, Route, expect

from bench._browser import watched_page
from server.engines.embedded.catalog import CHINESE, ENGLISH
from tests.support.processes import ServerProcess

FAKE = Path(__file__).parent / "fake_player.js"
SHOWN = "() => document.getElementById('reading').textContent"
LIVE = "(ids) => ids.map((id) => !!document.getElementById(id).closest('[role=alert], [role=status], [aria-live]'))"
HEARD = "() => [...document.querySelectorAll('#reading .heard')].map((each) => each.textContent).join('')"


@asynccontextmanager
async def page_with_fake(browser: Browser, server: ServerProcess, query: str = "") -> AsyncIterator[Page]:
    async with watched_page(browser, locale="en-GB") as watched:
        await watched.page.route("**/web/player.js", lambda route: route.fulfill(path=FAKE))
        await watched.page.goto(f"{server.http}/{query}")
        await expect(watched.page.locator("#speak")).to_be_enabled()
        yield watched.page
        assert [each for each in watched.problems if "uncaught" in each] == []


async def told(page: Page, expected: list[list[str]]) -> None:
    """Wait until the player was told just this: what was written to each utterance."""
    for _ in range(200):
        if await page.evaluate("() => fakePlayer.told") == expected:
            return
        await asyncio.sleep(0.05)
    assert await page.evaluate("() => fakePlayer.told") == expected


async def tell_state(page: Page, state: str, reason: str) -> None:
    await page.evaluate("(told) => fakePlayer.tell('state', told)", {"state": state, "reason": reason, "detail": None})


async def test_as_i_type(browser: Browser, tone_server: ServerProcess) -> None:
    """What is typed after Finish is said afterwards. Speak while it plays starts anew, and a double click only once."""
    async with page_with_fake(browser, tone_server) as page:
        await page.check("#way-typing")
        await page.fill("#text", "")
        await page.evaluate("() => { fakePlayer.patient = true; }")
        await page.focus("#text")
        await page.keyboard.insert_text("One two. Thr")
        await expect(page.locator("#speak")).to_have_text("Finish")
        await told(page, [["One two. ", "Thr"]])  # the last one a moment later
        await page.keyboard.press("Backspace")
        await page.keyboard.insert_text("ee\n")
        await told(page, [["One two. ", "Thr", "ee\n"]])
        await page.click("#speak")
        await page.focus("#text")
        await page.keyboard.press("Control+End")
        await page.keyboard.insert_text("Later. ")
        assert await page.evaluate(SHOWN) == "One two. Three\n"
        await page.evaluate("() => { fakePlayer.patient = false; }")
        await told(page, [["One two. ", "Thr", "ee\n"], ["Later. "]])
        await page.evaluate("() => { fakePlayer.patient = true; }")
        await page.fill("#text", "Again. ")
        await told(page, [["One two. ", "Thr", "ee\n"], ["Later. ", "Again. "]])
        await page.click("#speak")
        await expect(page.locator("#speak")).to_have_text("Speak")
        await page.dblclick("#speak")
        await expect(page.locator("#speak")).to_have_text("Finish")
        assert await page.evaluate("() => fakePlayer.told.slice(2)") == [["Again. "]]
        assert await page.evaluate(SHOWN) == "Again. "


async def test_only_what_was_asked_for_is_spoken(browser: Browser, tone_server: ServerProcess) -> None:
    async with page_with_fake(browser, tone_server) as page:
        await page.focus("#text")
        await page.evaluate(
            """() => fakePlayer.tell("failure",
                { code: "busy", message: "", retryable: true, retryAfterMs: 1, reason: "loading" })"""
        )
        await page.wait_for_timeout(300)
        await expect(page.locator("#failure")).to_be_hidden()
        await told(page, [])
        await page.fill("#text", "Hello.")
        await page.evaluate("() => { fakePlayer.patient = true; }")
        await page.keyboard.down("Control")
        for _ in range(4):  # held down
            await page.keyboard.down("Enter")
        await page.keyboard.up("Enter")
        await page.keyboard.up("Control")
        await told(page, [["Hello."]])
        await page.evaluate("() => fakePlayer.tell('failure', { code: 'internal', message: '', retryable: false })")
        await expect(page.locator("#failure")).to_be_hidden()  # of another one, which is stopped
        await expect(page.locator("#verified-note")).to_have_text("checked at the end")
        await page.keyboard.press("Escape")
        await expect(page.locator("#buffer-value")).to_have_text("0.0 s")
        await expect(page.locator("#bitrate-value")).to_have_text("–")
        await expect(page.locator("#bitrate-note")).to_contain_text("MB in all")
        await expect(page.locator("#verified-note")).to_contain_text("not checked")


async def test_what_stands_in_the_way(browser: Browser, tone_server: ServerProcess) -> None:
    """A failure nobody knows; then a browser that blocks the sound: it goes on asking for a tap, until one helps."""
    async with page_with_fake(browser, tone_server) as page:
        await page.fill("#text", "!brand_new Hello")
        await page.click("#speak")
        await expect(page.locator("#failure-text")).to_have_text("It did not work: brand_new.")
        await page.focus("#again")
        await page.keyboard.press("Enter")
        await expect(page.locator("#again")).to_be_hidden()
        await expect(page.locator("#speak")).to_be_focused()
        await expect(page.locator("#again")).to_be_visible()
        asked = page.locator("#failure-text").get_by_text("paused the sound")
        await page.fill("#text", "!tap Hello")
        await page.click("#speak")
        await expect(page.locator("#state")).to_have_text("Sound is blocked")
        await asked.wait_for()
        await page.evaluate("() => { fakePlayer.deaf = true; }")
        await page.click("#again")
        await asked.wait_for()
        await page.fill("#text", "Hello")
        await page.evaluate("() => { fakePlayer.patient = true; }")
        await page.click("#speak")
        await asked.wait_for()
        await page.evaluate("() => { fakePlayer.deaf = false; }")
        await page.click("#again")
        await expect(page.locator("#failure")).to_be_hidden()
        await expect(page.locator("#speak")).to_be_focused()
        await expect(page.locator("#state")).to_have_text("Speaking")


async def test_loaded_again(browser: Browser, tone_server: ServerProcess) -> None:
    """A sample can be chosen again after it was changed, and what was written is still there after a reload. Where a
    part does not come it says so, but not at once."""
    async with page_with_fake(browser, tone_server) as page:
        await page.select_option("#sample", "A story")
        await page.fill("#text", "Mine.")
        await expect(page.locator("#sample")).to_have_value("")
        await page.select_option("#sample", "A story")
        assert "lighthouse" in await page.input_value("#text")
        await page.fill("#text", "Mine.")
        await page.reload()
        await expect(page.locator("#speak")).to_be_enabled()
        assert await page.input_value("#text") == "Mine."
        await expect(page.locator("#count")).to_have_text("5 characters")
        await page.evaluate("() => { document.getElementById('text').value = 'a'.repeat(2_000_001); }")
        await page.click("#speak")
        await expect(page.locator("#failure-text")).to_contain_text("Too long")
        await told(page, [])
        await page.route("**/web/texts.js", lambda route: route.abort("connectionreset"))
        await page.reload()
        warning = page.locator("#unloaded")
        assert (await warning.bounding_box() or {"height": 0})["height"] == 0
        await page.evaluate("() => document.getElementById('unloaded').getAnimations()[0].finish()")
        await expect(warning).to_be_visible()
        await expect(page.locator("#way-text + span")).to_have_text("Type or paste")


async def test_a_word_in_a_long_text_changes_nothing_but_itself(browser: Browser, tone_server: ServerProcess) -> None:
    text = "This is a sentence of some length, and 天气很好 👋 too. " * 1_000
    async with page_with_fake(browser, tone_server) as page:
        await page.evaluate("(text) => { document.getElementById('text').value = text; }", text)
        await page.click("#speak")
        await page.locator("#reading .now").wait_for()
        assert await page.evaluate(SHOWN) == text
        assert await page.evaluate("() => document.querySelectorAll('#reading span').length") < 2.1 * 1_000
        changes = await page.evaluate(
            """async () => {
                const seen = [], all = { childList: true, characterData: true, attributes: true, subtree: true };
                new MutationObserver((each) => seen.push(...each)).observe(document.getElementById('reading'), all);
                await new Promise((resolve) => setTimeout(resolve, 500));
                return seen.map((each) => each.type);
            }"""
        )
        assert set(changes) <= {"attributes"}
        assert 0 < len(changes) < 15
        position = len(text) // 2
        await page.evaluate(
            """async (start) => {
                await new Promise((resolve) => setTimeout(resolve, 300));
                clearInterval(fakePlayer.timer);
                await new Promise((resolve) => setTimeout(resolve, 300));
                fakePlayer.tell("word", { id: 1, start, end: start + 1, segment: 0 });
            }""",
            position,
        )
        await page.wait_for_function("() => document.getElementById('reading').scrollTop > 1000")


async def test_stop_marks_the_very_character(browser: Browser, tone_server: ServerProcess) -> None:
    text = "👋 𠮷野家 one two three four five six, seven eight nine ten eleven."
    async with page_with_fake(browser, tone_server) as page:
        await page.fill("#text", text)
        await page.click("#speak")
        await page.locator("#reading .now").wait_for()
        await page.evaluate(
            "() => fakePlayer.stop = async () => fakePlayer.tell('stopped', { id: 1, played: 0, heardTextEnd: 12 })"
        )
        await page.focus("#stop")
        await page.keyboard.press("Enter")
        await expect(page.locator("#speak")).to_be_focused()
        await expect(page.locator("#heard")).to_contain_text(f"12 of {len(text)} characters")
        assert await page.evaluate(HEARD) == text[:12]
        assert await page.evaluate(SHOWN) == text


async def test_downloads_that_cannot_be(browser: Browser, tone_server: ServerProcess) -> None:
    async with page_with_fake(browser, tone_server) as page:
        problem = page.locator("#failure-text")
        await page.fill("#text", " ")
        await page.click("#download-wav")
        await expect(problem).to_contain_text("no text")
        await page.evaluate("() => { document.getElementById('text').value = '👋'.repeat(100001); }")
        await page.click("#download-opus")
        await expect(problem).to_contain_text("100,001 characters")

        async def broken(route: Route) -> None:
            await route.fulfill(body="no RIFF" * 20, content_type="audio/wav")

        await page.route("**/v1/speak", broken)
        await page.fill("#text", "Hello.")
        await page.click("#download-wav")
        await expect(problem).to_contain_text("nothing was saved")
        await page.unroute("**/v1/speak")
        cancelled = asyncio.Event()

        async def late(route: Route) -> None:
            await cancelled.wait()
            await route.abort()

        await page.route("**/v1/speak", late)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.evaluate(
            """() => { for (const each of ["wav", "opus"]) document.getElementById(`download-${each}`).click(); }"""
        )
        await page.click("#download-cancel")
        await expect(page.locator("#download-wav")).to_be_focused()
        assert len(asked) == 1
        await page.dblclick("#download-wav")  # Cancel is where it was
        await expect(page.locator("#download-figure")).to_contain_text("0 kB so far")
        await expect(page.locator("#download-wav")).to_be_hidden()
        await page.click("#download-cancel")
        await expect(page.locator("#download-state")).to_have_text("Download cancelled.")
        await expect(page.locator("#download-wav")).to_be_focused()
        cancelled.set()
        await page.unroute_all(behavior="wait")
        await page.click("#download-opus")
        await expect(page.locator("#download-state")).to_have_text(re.compile(r"^Saved: [1-9]\d* kB\.$"))
        await page.evaluate("() => { fakePlayer.patient = true; }")
        await page.click("#speak")
        await page.evaluate("() => { document.getElementById('text').value = '👋'.repeat(100001); }")
        await page.click("#download-opus")
        await expect(problem).to_contain_text("100,001 characters")
        await expect(page.locator("#download-state")).to_have_text("")
        await page.click("#stop")
        await expect(page.locator("#failure")).to_be_hidden()


async def test_the_list_and_the_figures_tell_the_same(browser: Browser, tone_server: ServerProcess) -> None:
    """Whatever the player counts. The list shows whole lines, and its last."""
    async with page_with_fake(browser, tone_server) as page:
        await page.evaluate("() => { fakePlayer.patient = true; }")
        await page.click("#speak")
        await expect(page.locator("#reconnects-value")).to_have_text("0")
        for _ in range(2):
            await tell_state(page, "reconnecting", "silent")
            await tell_state(page, "ready", "")
        await expect(page.locator("#reconnects-value")).to_have_text("2")
        assert await page.locator("#log li", has_text="Connected again").count() == 2
        for _ in range(4):
            await page.click("#rough")
        cut = """() => [...log.children].map((each) => each.getBoundingClientRect()).filter(({ top, bottom }) => {
            const shown = log.getBoundingClientRect();
            return [shown.top, shown.bottom].some((edge) => top + 0.5 < edge && edge < bottom - 0.5);
        }).length"""
        scrolled = "() => [log.scrollTop > 0, log.scrollTop + log.clientHeight === log.scrollHeight]"
        assert await page.evaluate(scrolled) == [True, True]
        assert await page.evaluate(cut) == 0
        await page.click("#stop")
        await expect(page.locator("#chart-summary")).to_contain_text("2 reconnects")


async def test_a_text_with_nothing_to_say(browser: Browser, tone_server: ServerProcess) -> None:
    async with page_with_fake(browser, tone_server) as page:
        await page.evaluate("() => { fakePlayer.patient = true; }")
        await page.fill("#text", "!!! ... ???")
        await page.click("#speak")
        await page.locator("#reading div").first.wait_for()
        await page.evaluate(
            """() => {
                clearInterval(fakePlayer.timer);
                fakePlayer.tell("event", { id: 1, message: { type: "done", samples: 0 } });
                fakePlayer.tell("ended", { id: 1 });
            }"""
        )
        await expect(page.locator("#heard")).to_have_text("Nothing in it can be spoken.")
        assert await page.evaluate(HEARD) == ""


async def test_what_the_keys_do_while_it_is_typed(browser: Browser, tone_server: ServerProcess) -> None:
    async with page_with_fake(browser, tone_server) as page:
        await page.evaluate("() => { fakePlayer.patient = true; }")
        await expect(page.locator("#hint")).to_contain_text("Ctrl+Enter speaks")
        await page.check("#way-typing")
        await page.focus("#text")
        await page.keyboard.insert_text("One two. ")
        await expect(page.locator("#speak")).to_have_text("Finish")
        await expect(page.locator("#hint")).to_contain_text("Ctrl+Enter finishes")
        await expect(page.locator("#way-hint")).to_contain_text("What was sent will be said")
        await page.keyboard.press("Control+Enter")
        await expect(page.locator("#hint")).to_contain_text("Ctrl+Enter speaks")


async def test_the_voices_decide_what_is_there_to_begin_with(browser: Browser, tone_server: ServerProcess) -> None:
    """And say in the page's language what they are, as far as it knows; else as the engine says it."""
    mine = replace(ENGLISH, id="mine", description="Mine alone.")
    for voices, sample, note, lang in (
        ([ENGLISH], "Welcome", "美式英语女声", "zh-CN"),
        ([ENGLISH, CHINESE], "你好", "仅限非商业用途", "zh-CN"),
        ([mine], "Welcome", "Mine alone.", "en"),
    ):
        answer = {
            "engine": "embedded",
            "voices": [{**asdict(each), "parameters": [], "default": each is voices[0]} for each in voices],
        }
        async with watched_page(browser, locale="zh-CN") as watched:
            page = watched.page
            await page.route("**/v1/voices", partial(Route.fulfill, json=answer))
            await page.goto(f"{tone_server.http}/")
            await expect(page.locator("#speak")).to_be_enabled()
            await expect(page.locator("#sample")).to_have_value(sample)
            await expect(page.locator("#voice-note")).to_contain_text(note)
            assert await page.get_attribute("#voice-note", "lang") == lang
            await page.click("#language")
            chosen = await page.input_value("#voice")
            told = next(each for each in voices if each.id == chosen)
            await expect(page.locator("#voice-note")).to_have_text(told.notice or told.description)
            await expect(page.locator("#sample")).to_have_value(sample)


async def test_on_a_phone(browser: Browser, tone_server: ServerProcess) -> None:
    """Nothing is printed over anything else, and what cuts the connection comes right below what is heard."""
    async with page_with_fake(browser, tone_server) as page:
        await page.set_viewport_size({"width": 375, "height": 812})
        places = """() => [rate, document.getElementById("rate-value"), count].map((each) => {
            const all = document.createRange();  // text may be wider than its element
            if (each === rate) all.selectNode(each);
            else all.selectNodeContents(each);
            return all.getBoundingClientRect().toJSON();
        })"""
        for _ in range(2):
            await page.check("#way-model")
            for characters in (56, 188, 123_456):
                await page.fill("#text", "a" * characters)
                rate, value, count = await page.evaluate(places)
                assert rate["width"] >= 40
                assert rate["right"] <= value["left"]
                assert value["right"] + 4 <= count["left"] or value["bottom"] <= count["top"]
            await page.click("#language")
        gap = """() => document.querySelector("#line-title").parentElement.getBoundingClientRect().top
            - document.querySelector(".listen").getBoundingClientRect().bottom"""
        assert 0 < await page.evaluate(gap) < 20
        await page.fill("#text", "Hello.")
        await page.evaluate("() => { fakePlayer.patient = true; }")
        await page.click("#speak")
        await expect(page.locator("#cut")).to_be_enabled()
        await expect(page.locator("#cut")).to_be_in_viewport(ratio=1)


async def test_nothing_is_drawn_while_nothing_is_heard(browser: Browser, tone_server: ServerProcess) -> None:
    """And nothing moves up or down, whatever is."""
    frames = """() => new Promise((resolve) => {
        let asked = 0;
        const real = window.requestAnimationFrame;
        window.requestAnimationFrame = (act) => { asked++; return real(act); };
        setTimeout(() => { window.requestAnimationFrame = real; resolve(asked); }, 250);
    })"""
    moved = """() => { window.shifts = []; new PerformanceObserver((list) => shifts.push(...list.getEntries()))
        .observe({ type: "layout-shift" }); }"""
    async with page_with_fake(browser, tone_server) as page:
        await page.evaluate(moved)
        assert await page.evaluate(frames) == 0
        await page.click("#speak")
        await expect(page.locator("#state")).to_have_text("Speaking")
        assert await page.evaluate(frames) > 1
        await page.click("#stop")
        await expect(page.locator("#state")).to_have_text("Ready")
        assert await page.evaluate(frames) == 0
        sources = "shifts.flatMap((each) => each.sources)"
        up_or_down = "({ previousRect, currentRect }) => previousRect.y !== currentRect.y"
        assert await page.evaluate(f"() => {sources}.filter({up_or_down}).map(({{ node }}) => node?.id)") == []


async def test_the_way_to_the_status_is_shown_on_the_server_s_machine(
    browser: Browser, tone_server: ServerProcess
) -> None:
    """Nothing is asked for to know that."""
    for host, shown in (("127.0.0.1", True), ("localhost", True), ("demo.test", False)):
        async with watched_page(browser) as watched:
            await watched.page.goto(f"{tone_server.http.replace('127.0.0.1', host)}/")
            await expect(watched.page.locator("#speak")).to_be_enabled()
            await expect(watched.page.locator("#status")).to_be_visible(visible=shown)
            assert [url for url in watched.requests if url.endswith("/status")] == []


async def test_what_is_said_while_the_server_is_away(browser: Browser, tone_server: ServerProcess) -> None:
    """Once, not at every attempt, and nothing that goes on changing; why it is away, where the server says it."""
    async with page_with_fake(browser, tone_server) as page:
        problem = page.locator("#failure-text")
        await page.evaluate("() => { fakePlayer.speak = (text) => ({ id: 1, finished: new Promise(() => {}) }); }")
        await page.click("#speak")
        for reason, words in (("loading", "just starting"), ("stopping", "just stopping")):
            for state in ("connecting", "reconnecting"):
                await tell_state(page, state, reason)
                await expect(problem).to_contain_text(words)
        await page.click("#language")
        await expect(problem).to_contain_text("正在停止")
        await page.click("#language")
        await tell_state(page, "ready", "")
        await expect(page.locator("#failure")).to_be_hidden()

        await page.clock.install()
        await page.route("**/v1/*", lambda route: route.abort("connectionrefused"))
        await page.click("#download-wav")
        await expect(problem).to_contain_text("does not answer")
        await tell_state(page, "reconnecting", "broken")
        await tell_state(page, "ready", "resumed")
        await expect(page.locator("#failure")).to_be_hidden()

        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.evaluate(
            """() => {
                fakePlayer.tell("stopped", { id: 1, played: 0, heardTextEnd: 0 });
                fakePlayer.tell("failure", { code: "unauthorized" });
            }"""
        )
        await expect(problem).to_contain_text("does not answer")
        await page.evaluate(
            """() => {
                window.said = [];
                const all = { childList: true, characterData: true, subtree: true };
                const observer = new MutationObserver((each) => said.push(...each));
                observer.observe(document.getElementById("failure-text"), all);
            }"""
        )
        for attempts in (2, 3):
            await page.clock.run_for(3_000)
            await expect(page.locator("#failure-wait")).to_have_text("Again in 3 s.")
            assert len(asked) == attempts
        assert await page.evaluate("() => said.length") == 0
        assert await page.evaluate(LIVE, ["failure-text", "download-state", "heard"]) == [True, True, True]
        assert await page.evaluate(LIVE, ["failure-wait", "download-figure"]) == [False, False]
        await page.unroute("**/v1/*")
        await page.clock.run_for(3_000)
        await expect(page.locator("#failure")).to_be_hidden()
        await expect(page.locator("#state")).not_to_have_text("Not available")


async def test_names_in_both_languages(browser: Browser, tone_server: ServerProcess) -> None:
    """Of the key's field, and of the voice where no one is the server's first."""
    async with page_with_fake(browser, tone_server) as page:
        await page.route("**/v1/voices", lambda route: route.fulfill(json={"engine": "x", "voices": []}))
        await page.reload()
        await expect(page.locator("#voice option")).to_have_text("The server's choice")
        await page.click("#language")
        await expect(page.locator("#voice option")).to_have_text("由服务器选择")
        await page.route("**/v1/voices", lambda route: route.fulfill(status=401, json={}))
        await page.reload()
        key = page.locator("#key")
        await expect(key).to_be_focused()
        await expect(key).to_have_accessible_name("密钥")
        await page.click("#language")
        await expect(key).to_have_accessible_name("Key")
        await expect(key).to_have_accessible_description(re.compile("^Kept in this page's memory"))
