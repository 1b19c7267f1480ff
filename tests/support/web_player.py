"""The page's `Player` in a page that has nothing else, and what the Python client hears of the same text."""

import zlib
from typing import Any

from playwright.async_api import Page, Route

import client
from bench._browser import Watched

EMPTY_PAGE = (
    """<!doctype html><html lang="en"><title>Player</title><link rel="icon" href="data:,"><button>Speak</button>"""
)
POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'; worker-src 'self'; img-src data:"

_MAKE = """async options => {
    const { Player } = await import(new URL("/web/player.js", location.href).href);
    window.results = {};
    window.player = new Player(options);
}"""
_SPEAK = """text => {
    const utterance = player.speak(text);
    utterance.finished.then(
        (result) => { results[utterance.id] = { id: utterance.id, ...result }; },
        (error) => { results[utterance.id] = { id: utterance.id, error: error.code, message: error.message }; },
    );
    return utterance.id;
}"""


async def reference(url: str, text: str, **options: Any) -> bytes:
    """The samples of this text as the Python client hears them, s16le."""
    async with client.connect(url, **options) as session:
        return b"".join([audio.pcm async for audio in session.speak(text)])


def checksum(pcm: bytes) -> tuple[int, int]:
    """Samples and their CRC-32, as a report of the playout has them."""
    return len(pcm) // 2, zlib.crc32(pcm)


async def serve_empty_page(page: Page, policy: str = POLICY) -> None:
    """Let this page find an empty page at `/empty`."""

    async def fulfil(route: Route) -> None:
        headers = {"content-type": "text/html; charset=utf-8", "content-security-policy": policy}
        await route.fulfill(body=EMPTY_PAGE, headers=headers)

    await page.route("**/empty", fulfil)


class PlayerPage:
    """What a test does with the player; utterances are told apart by their number, from 1."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.page = watched.page

    async def make(self, **options: Any) -> None:
        """A new player with these options."""
        await self.page.evaluate(_MAKE, options)

    async def speak(self, text: str) -> int:
        """Begin an utterance; its number."""
        return int(await self.page.evaluate(_SPEAK, text))

    async def result(self, number: int, timeout_s: float = 20.0) -> dict[str, Any]:
        """What its `finished` came to: {heardAll, samples, verified} or {error, message}."""
        await self.watched.until(f"results[{number}]", timeout_s)
        result: dict[str, Any] = await self.page.evaluate(f"() => results[{number}]")
        return result

    async def heard(self, text: str, timeout_s: float = 20.0) -> dict[str, Any]:
        """Speak it and wait for its end; the last report about it. AssertionError unless all of it was heard."""
        number = await self.speak(text)
        result = await self.result(number, timeout_s)
        assert result.get("heardAll"), result
        assert result["verified"], "the server's digests"
        report = await self.watched.report(number)
        assert (report["received"], report["state"]) == (result["samples"], "idle")
        return report

    async def complete(self, number: int, pcm: bytes, timeout_s: float = 20.0) -> dict[str, Any]:
        """Wait until so many samples are there, heard or not; the last report about them. AssertionError unless they
        are these.
        """
        samples, crc = checksum(pcm)
        there = f"each.kind === 'report' && each.id === {number} && each.received >= {samples}"
        await self.watched.until(f"probe.events.some((each) => {there})", timeout_s)
        report = await self.watched.report(number)
        assert (report["received"], report["crc"]) == (samples, crc)
        return report

    async def reached(self, id: int, samples: int) -> None:
        """Wait until so much of it was played."""
        await self.watched.until(
            f"probe.events.some(e => e.kind === 'report' && e.id === {id} && e.played >= {samples})"
        )
