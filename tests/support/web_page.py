"""The browser demo's page as a person uses it."""

from pathlib import Path
from typing import Any

from playwright.async_api import Download

from bench._browser import Watched
from tests.support.processes import ROOT

AXE = ROOT / "tests/web/node_modules/axe-core/axe.min.js"
SERIOUS = ("serious", "critical")


class DemoPage:
    """Presses what a person presses, and reads what it says."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.page = watched.page

    async def ready(self) -> None:
        """Wait until it can speak."""
        await self.page.locator("#speak:enabled").wait_for()

    async def speak(self, text: str) -> int:
        """Write this and press Speak; the utterance's number."""
        await self.page.fill("#text", text)
        return await self.press_speak()

    async def press_speak(self) -> int:
        """Press it; the utterance's number, as soon as its audio comes."""
        known = await self.page.evaluate("() => probe.events.filter((each) => each.kind === 'first').length")
        await self.page.click("#speak")
        await self.watched.until(f"probe.events.filter((each) => each.kind === 'first').length > {known}")
        return int((await self.watched.events("first"))[-1]["id"])

    async def over(self, number: int, timeout_s: float = 20.0) -> dict[str, Any]:
        """Wait for its end; the last report about it."""
        await self.watched.event("ended", number, timeout_s)
        return await self.watched.report(number)

    async def reached(self, number: int, samples: int) -> None:
        """Wait until so much of it was played."""
        played = f"each.kind === 'report' && each.id === {number} && each.played >= {samples}"
        await self.watched.until(f"probe.events.some((each) => {played})")

    async def says(self, selector: str) -> str:
        """The text there, with its white space as it is shown."""
        return (await self.page.locator(selector).inner_text()).strip()

    async def download(self, button: str, folder: Path) -> Path:
        """Press a button and keep the file that comes."""
        async with self.page.expect_download() as coming:
            await self.page.click(button)
        download: Download = await coming.value
        path = folder / download.suggested_filename
        await download.save_as(path)
        return path

    async def complaints(self) -> list[str]:
        """What axe-core finds serious in the page as it is, one a line."""
        if not await self.page.evaluate("() => 'axe' in window"):
            await self.page.evaluate(AXE.read_text(encoding="utf-8"))
        found = await self.page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")
        return [
            f"{each['id']} ({each['impact']}): {node['html'][:200]} {node.get('failureSummary', '')}"
            for each in found["violations"]
            if each["impact"] in SERIOUS
            for node in each["nodes"]
        ]
