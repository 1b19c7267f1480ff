"""The browser demo in a real, headless Chromium: how soon it speaks, how calmly it plays, how fast it is silent.

`python -m bench.web [--runs N] [--seconds N]`. The server has a process of its own and speaks with the embedded voices;
the page is used as a person uses it. A calm playing of `--seconds` comes last. It needs Debian's `chromium` and the
extra `web`.
"""

import asyncio
import os
import sys
import zlib
from typing import Final

from playwright.async_api import Browser

import client
from bench._browser import Watched, chromium, watched_page
from bench._common import Report, ServerProcess, arguments, percentile, server_process

CLAUSES: Final = (
    "你好，今天天气很好。", "Good morning, how are you?", "没问题，我马上就来。", "Of course, here it is.",
)  # fmt: skip
STORY: Final = (
    "The lighthouse stood where the land gave up. Every evening old Mara climbed its 112 steps, lit the lamp, and read "
    "aloud to the sea. 山脚下有一座小邮局，只有一位邮递员，大家都叫他老周。"
    "他每天早上七点出门，骑车走四十二公里，风雨无阻。\n"
)
CUT_TEXT: Final = "雾还没有散，码头上的灯一盏一盏地亮着。 Nobody had told the captain about the rocks. " * 2
CUTS: Final = 3
CHARACTERS_A_SECOND: Final = 16  # no voice is faster
FIRST_SAMPLE_MS: Final = 150.0
SILENT_MS: Final = 100.0
LONG_TASK_MS: Final = 50.0
WEIGHT_KB: Final = 150.0
SETTLE_S: Final = 0.2
STARTED_S: Final = 1.0  # into the playing, when what its beginning costs is over


async def ready(watched: Watched, url: str) -> None:
    """Open the page and wait until it can speak."""
    await watched.page.goto(url)
    await watched.page.locator("#speak:enabled").wait_for()


async def press(watched: Watched, text: str) -> tuple[int, float]:
    """Write a text and press Speak: the utterance's number, and how long after the click its first sample was in the
    worklet, ms.
    """
    await watched.page.fill("#text", text)
    await asyncio.sleep(SETTLE_S)
    known = len(await watched.events("first"))
    await watched.page.click("#speak")
    await watched.until(f"probe.events.filter((each) => each.kind === 'first').length > {known}")
    first = (await watched.events("first"))[-1]
    return first["id"], first["at"] - await watched.page.evaluate("() => probe.pressed")


async def stop(watched: Watched, number: int) -> float:
    """Press Stop: how long after the click the loudspeaker gave any sound, ms; NaN where there was none before.

    What was rendered and waits for the device is part of it; of the device itself, only what the browser knows.
    """
    await watched.page.evaluate("() => { probe.listen(); }")
    await asyncio.sleep(SETTLE_S)
    await watched.page.click("#stop")
    await watched.event("stopped", number)
    await asyncio.sleep(SETTLE_S)
    heard, after = await watched.page.evaluate("() => [probe.lastSound(0), probe.lastSound(probe.pressed)]")
    return float(after) if heard else float("nan")


async def first_samples(report: Report, browser: Browser, url: str, runs: int) -> None:
    """Speak and Stop, over and over: on one page, then each time on a new one."""
    warm, silent = [], []
    async with watched_page(browser) as watched:
        await ready(watched, url)
        for number in range(-1, runs):
            utterance, taken = await press(watched, CLAUSES[number % len(CLAUSES)])
            await watched.event("audible", utterance)
            quiet = await stop(watched, utterance)
            if number >= 0:  # the first one warms up
                warm.append(taken)
                silent.append(quiet)
        _problems(report, watched)
    cold = []
    for number in range(runs):
        async with watched_page(browser) as watched:
            await ready(watched, url)
            cold.append((await press(watched, CLAUSES[number % len(CLAUSES)]))[1])
            _problems(report, watched)
    report.spread(f"click on Speak to first sample in the worklet, {runs} runs", warm, "ms", FIRST_SAMPLE_MS)
    report.spread("  each on a page that was just opened", cold, "ms")
    report.add(f"click on Stop to silence at the loudspeaker, worst of {runs}", percentile(silent, 1), "ms", SILENT_MS)


async def cuts(report: Report, browser: Browser, server: ServerProcess, url: str) -> None:
    """Cut the connection again and again; compare the samples with those of an undisturbed client."""
    async with watched_page(browser) as watched:
        await ready(watched, url)
        await watched.page.evaluate("() => { document.querySelector('#more').open = true; }")
        await watched.page.select_option("#format", "pcm")
        await watched.page.select_option("#mode", "stream")
        number, _ = await press(watched, CUT_TEXT)
        for cut in range(CUTS):
            played = f"each.kind === 'report' && each.id === {number} && each.played >= {24_000 * (1 + cut)}"
            await watched.until(f"probe.events.some((each) => {played})")
            await watched.page.click("#cut")
        await watched.event("ended", number, 60)
        heard = await watched.report(number)
    async with client.connect(server.url, mode="stream") as session:
        pcm = b"".join([audio.pcm async for audio in session.speak(CUT_TEXT)])
    report.add("connections cut while it speaks", heard["reconnects"], "", least=CUTS)
    report.add("  samples that are missing", abs(len(pcm) // 2 - heard["received"]), "", 0)
    report.add("  samples differ (their CRC-32 does)", float(heard["crc"] != zlib.crc32(pcm)), "", 0)
    report.add("  underruns", heard["stalls"], "", 0)


async def calm(report: Report, browser: Browser, url: str, seconds: float) -> None:
    """Play a long text."""
    async with watched_page(browser) as watched:
        await ready(watched, url)
        number, _ = await press(watched, STORY * (1 + int(seconds * CHARACTERS_A_SECOND) // len(STORY)))
        await watched.event("audible", number)
        await asyncio.sleep(STARTED_S)
        began = await watched.page.evaluate("() => { probe.events.length = 0; return performance.now(); }")
        await asyncio.sleep(seconds)
        heard = await watched.report(number)
        long_tasks = await watched.page.evaluate("began => probe.longTasks.filter(([at]) => at >= began)", began)
        await stop(watched, number)
        _problems(report, watched)
    report.add("calm playing", heard["played"] / heard["rate"], "s", least=0.98 * seconds)
    report.add("  underruns", heard["stalls"], "", 0)
    report.add(f"  tasks over {LONG_TASK_MS:g} ms on the main thread", len(long_tasks), "", 0)
    report.add("  the longest of them", max((length for _, length in long_tasks), default=0.0), "ms")


async def weight(report: Report, browser: Browser, url: str) -> None:
    """What a browser takes over the line until a text was spoken, and what the files are without compression."""
    async with watched_page(browser) as watched:
        await ready(watched, url)
        number, _ = await press(watched, "One.")
        await watched.event("ended", number)
        sizes = await watched.page.evaluate(
            """() => ["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind))
                .map((each) => [each.encodedBodySize, each.decodedBodySize])"""
        )
        _problems(report, watched)
    report.add(f"weight of the page, {len(sizes)} answers", sum(sent for sent, _ in sizes) / 1000, "KB", WEIGHT_KB)
    report.add("  uncompressed, comments and all", sum(plain for _, plain in sizes) / 1000, "KB")


def _problems(report: Report, watched: Watched) -> None:
    for problem in watched.problems:
        report.note(f"on the page: {problem}")


async def measure(report: Report, server: ServerProcess, runs: int, seconds: float) -> None:
    """Everything that needs a browser."""
    url = f"http://127.0.0.1:{server.port}/"
    async with chromium() as browser:
        await first_samples(report, browser, url, runs)
        await cuts(report, browser, server, url)
        await weight(report, browser, url)
        await calm(report, browser, url, seconds)
    report.note(
        f"tasks are long, too, where others want the processors: the load was {os.getloadavg()[0]:.1f} at the end"
    )


def main() -> int:
    """The exit status is 1 when a figure misses what is asked."""
    chosen = arguments(__doc__, runs=(20, "times that Speak is pressed"), seconds=(300, "of calm playing"))
    report = Report("web")
    with server_process("--engine", "embedded") as server:
        asyncio.run(measure(report, server, chosen.runs, chosen.seconds))
    return report.finish(chosen.json)


if __name__ == "__main__":
    sys.exit(main())
