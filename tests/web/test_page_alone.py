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


async def test_what_is_typed_after_finish_is_said_afterwards(browser: Browser, tone_server: ServerProcess) -> None:
    async with page_with_fake(browser, tone_server) as page:
        await page.check("#way-typing")
        await page.fill("#text", "")
        await page.type("#text", "One two. Thr")
        await expect(page.locator("#speak")).to_have_text("Finish")
        assert await page.evaluate(SHOWN) == "One two. "
        await expect(page.locator("#reading")).to_have_text("One two. Thr")  # a moment later
        await page.keyboard.press("Backspace")
        await page.keyboard.type("ee\n")
        assert await page.evaluate(SHOWN) == "One two. Three\n"
        await page.click("#speak")
        await page.focus("#text")
        await page.keyboard.press("Control+End")
        await page.keyboard.type("Later. ")
        assert await page.evaluate(SHOWN) == "One two. Three\n"
        await expect(page.locator("#reading")).to_have_text("Later. ")


async def test_sound_that_the_browser_blocks(browser: Browser, tone_server: ServerProcess) -> None:
    async with page_with_fake(browser, tone_server) as page:
        await page.fill("#text", "!tap Hello")
        await page.click("#speak")
        await expect(page.locator("#state")).to_have_text("Sound is blocked")
        await expect(page.locator("#failure-text")).to_contain_text("paused the sound")
        await page.click("#again")
        await expect(page.locator("#failure")).to_be_hidden()
        await expect(page.locator("#speak")).to_be_focused()
        await expect(page.locator("#state")).to_have_text("Waiting for sound")


async def test_a_failure_that_nobody_knows(browser: Browser, tone_server: ServerProcess) -> None:
    async with page_with_fake(browser, tone_server) as page:
        await page.fill("#text", "!brand_new Hello")
        await page.click("#speak")
        await expect(page.locator("#failure-text")).to_have_text("It did not work: brand_new.")
        await expect(page.locator("#again")).to_be_visible()
        await page.fill("#text", "Hello.")
        await page.click("#speak")
        await expect(page.locator("#failure")).to_be_hidden()


async def test_a_word_in_a_long_text_changes_nothing_but_itself(browser: Browser, tone_server: ServerProcess) -> None:
    text = "This is a sentence of some length, and 天气很好 👋 too. " * 2_000
    async with page_with_fake(browser, tone_server) as page:
        await page.evaluate("(text) => { document.getElementById('text').value = text; }", text)
        await page.click("#speak")
        await page.locator("#reading .now").wait_for()
        assert await page.evaluate(SHOWN) == text
        assert await page.evaluate("() => document.querySelectorAll('#reading span').length") < 2.1 * 2_000
        changes = await page.evaluate(
            """async () => {
                const seen = [], all = { childList: true, characterData: true, attributes: true, subtree: true };
                new MutationObserver((each) => seen.push(...each)).observe(document.getElementById('reading'), all);
                await new Promise((resolve) => setTimeout(resolve, 2000));
                return seen.map((each) => each.type);
            }"""
        )
        assert set(changes) <= {"attributes"}
        assert len(changes) < 60
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
        told = page.locator("#failure-text")
        await page.fill("#text", " ")
        await page.click("#download-wav")
        await expect(told).to_contain_text("no text")
        await page.evaluate("() => { document.getElementById('text').value = '👋'.repeat(100001); }")
        await page.click("#download-opus")
        await expect(told).to_contain_text("100,001 characters")

        async def broken(route: Route) -> None:
            await route.fulfill(body="no RIFF" * 20, content_type="audio/wav")

        await page.route("**/v1/speak", broken)
        await page.fill("#text", "Hello.")
        await page.click("#download-wav")
        await expect(told).to_contain_text("nothing was saved")
        await page.unroute("**/v1/speak")
        cancelled = asyncio.Event()

        async def late(route: Route) -> None:
            await cancelled.wait()
            await route.abort()

        await page.route("**/v1/speak", late)
        await page.click("#download-wav")
        await expect(page.locator("#download-state")).to_contain_text("0.0 MB so far")
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
        setTimeout(() => { window.requestAnimationFrame = real; resolve(asked); }, 500);
    })"""
    async with page_with_fake(browser, tone_server) as page:
        assert await page.evaluate(frames) == 0
        await page.click("#speak")
        await expect(page.locator("#state")).to_have_text("Speaking")
        assert await page.evaluate(frames) > 3
        await page.click("#stop")
        await expect(page.locator("#state")).to_have_text("Ready")
        assert await page.evaluate(frames) == 0
