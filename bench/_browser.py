"""A real, headless Chromium and what its page does: for bench.web and the tests of the browser demo."""

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Browser, ConsoleMessage, Error, Page, Request, async_playwright

PROBE: Final = (Path(__file__).parent / "_browser_probe.js").read_text(encoding="utf-8")
ELSEWHERE: Final = "demo.test"  # this machine by a name that browsers do not take for it
_OPTIONS: Final = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1",
    "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests",  # a test's page has no address
)  # fmt: skip
_EVENT_S: Final = 15.0
_LOOK_S: Final = 0.02


@asynccontextmanager
async def chromium(*options: str) -> AsyncIterator[Browser]:
    """The system's Chromium, not one that Playwright brings. Raises FileNotFoundError where there is none."""
    path = shutil.which("chromium")
    if path is None:
        raise FileNotFoundError("there is no chromium")
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=path, args=[*_OPTIONS, *options])
        try:
            yield browser
        finally:
            await browser.close()


@dataclass  # without slots: Playwright keeps its wrappers of the handlers in it
class Watched:
    """A page, what it asked for and what went wrong in it.

    `problems`: errors on the console, exceptions that nobody caught and breaches of the content security policy, one a
    line; those that match an `expected` pattern are left out.
    """

    page: Page
    expected: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _seen: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """What nobody expected."""
        return [each for each in self._seen if not any(re.search(pattern, each) for pattern in self.expected)]

    def on_console(self, message: ConsoleMessage) -> None:
        """Something was written on the console."""
        if message.type == "error":
            self._seen.append(f"console: {message.text} ({message.location.get('url', '')})")

    def on_error(self, error: Error) -> None:
        """Nobody caught an exception."""
        self._seen.append(f"uncaught: {error.message}\n{error.stack}")

    def on_request(self, request: Request) -> None:
        """Something is asked for."""
        self.requests.append(request.url)

    # ---- what the probe saw (see _browser_probe.js) ----

    async def events(self, kind: str, number: int | None = None) -> list[dict[str, Any]]:
        """The details of the player's events of this kind, oldest first; `at`: when, in ms of the page's clock."""
        found: list[dict[str, Any]] = json.loads(
            await self.page.evaluate("kind => JSON.stringify(probe.events.filter(each => each.kind === kind))", kind)
        )
        return [each for each in found if number is None or each.get("id") == number]

    async def until(self, condition: str, timeout_s: float = _EVENT_S) -> None:
        """Wait until this JavaScript expression holds; TimeoutError with the latest events where it does not."""
        # Not Playwright's own waiting, which evaluates strings inside the page: its policy forbids that.
        end = asyncio.get_running_loop().time() + timeout_s
        while not await self.page.evaluate(f"() => Boolean({condition})"):
            if asyncio.get_running_loop().time() > end:
                told = await self.page.evaluate("() => JSON.stringify(probe.events.slice(-12))")
                raise TimeoutError(f"{condition}: not within {timeout_s} s; the latest events: {told}")
            await asyncio.sleep(_LOOK_S)

    async def event(self, kind: str, number: int, timeout_s: float = _EVENT_S) -> dict[str, Any]:
        """The first event of this kind about this utterance, also one that was before."""
        await self.until(f"probe.events.some(each => each.kind === {kind!r} && each.id === {number})", timeout_s)
        return (await self.events(kind, number))[0]

    async def report(self, number: int) -> dict[str, Any]:
        """The latest report about this utterance."""
        return (await self.events("report", number))[-1]


@asynccontextmanager
async def watched_page(browser: Browser, **options: Any) -> AsyncIterator[Watched]:
    """An empty page with the probe, in a browsing context of its own; `options` are Playwright's of `new_context`."""
    rate = options.pop("sample_rate", None)
    context = await browser.new_context(**options)
    try:
        await context.add_init_script(f"const probeSampleRate = {json.dumps(rate)};\n{PROBE}")
        context.set_default_timeout(1000 * _EVENT_S)
        page = await context.new_page()
        watched = Watched(page)
        page.on("console", watched.on_console)
        page.on("pageerror", watched.on_error)
        page.on("request", watched.on_request)
        yield watched
    finally:
        await context.close()
