"""The page with a player that only pretends (fake_player.js): what it does with what the player tells."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, Page, Route, expect

from bench._browser import watched_page
from tests.support.processes import ServerProcess

FAKE = Path(__file__).parent / "fake_player.js"
SHOWN = "() => document.getElementById('reading').textContent"
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
    """A sample can be chosen again after it was changed, and what was written is still there after a reload. The way to
    the status is shown where it is open. Where a part does not come it says so, but not at once."""
    async with page_with_fake(browser, tone_server) as page:
        await page.select_option("#sample", "A story")
        await page.fill("#text", "Mine.")
        await expect(page.locator("#sample")).to_have_value("")
        await page.select_option("#sample", "A story")
        assert "lighthouse" in await page.input_value("#text")
        await page.fill("#text", "Mine.")
        await expect(page.locator("#status")).to_be_visible()
        await page.route("**/status", lambda route: route.fulfill(status=404))
        await page.reload()
        await expect(page.locator("#speak")).to_be_enabled()
        assert await page.input_value("#text") == "Mine."
        await expect(page.locator("#count")).to_have_text("5 characters")
        await expect(page.locator("#status")).to_be_hidden()
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
        await page.dblclick("#download-wav")  # Cancel is where it was
        await expect(page.locator("#download-figure")).to_contain_text("0.0 MB so far")
        await expect(page.locator("#download-wav")).to_be_hidden()
        await page.click("#download-cancel")
        await expect(page.locator("#download-state")).to_have_text("Download cancelled.")
        await expect(page.locator("#download-wav")).to_be_focused()
        cancelled.set()
        await page.unroute_all(behavior="wait")


async def test_nothing_is_drawn_while_nothing_is_heard(browser: Browser, tone_server: ServerProcess) -> None:
    frames = """() => new Promise((resolve) => {
        let asked = 0;
        const real = window.requestAnimationFrame;
        window.requestAnimationFrame = (act) => { asked++; return real(act); };
        setTimeout(() => { window.requestAnimationFrame = real; resolve(asked); }, 250);
    })"""
    async with page_with_fake(browser, tone_server) as page:
        assert await page.evaluate(frames) == 0
        await page.click("#speak")
        await expect(page.locator("#state")).to_have_text("Speaking")
        assert await page.evaluate(frames) > 1
        await page.click("#stop")
        await expect(page.locator("#state")).to_have_text("Ready")
        assert await page.evaluate(frames) == 0
