"""The connection in a worker of a real browser, with Opus: against what the Python client hears of the same text."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from playwright.async_api import Page, Route

import client
from bench._browser import Watched
from deploy.faulty_proxy import DOWN, FaultyProxy
from tests.support.processes import ServerProcess
from tests.web.conftest import OpenPage

SCRIPT = Path(__file__).with_name("worker_page.js")
TEXT = "The first sentence is spoken at once. The second one follows it. "
OPEN = {"max_lead_ms": 4000, "max_buffer_delay_ms": None}
_LOAD = """() => new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.type = "module";
    script.src = "/worker_page.js";
    script.onload = resolve;
    script.onerror = reject;
    document.head.append(script);
})"""
_BREAK = """how => {
    const decode = AudioDecoder.prototype.decode;
    let packets = 0;
    AudioDecoder.prototype.decode = function (chunk) {
        const data = new Uint8Array([255, 255]);
        if (++packets !== 40) decode.call(this, chunk);
        else if (how === "broken") decode.call(this, new EncodedAudioChunk({ type: "key", timestamp: 0, data }));
    };
}"""


async def opened(open_page: OpenPage, http: str) -> Page:
    """A page that can `speak`."""
    watched: Watched = await open_page(f"{http}/empty")

    async def fulfil(route: Route) -> None:
        await route.fulfill(body=SCRIPT.read_text(encoding="utf-8"), headers={"content-type": "text/javascript"})

    await watched.page.route("**/worker_page.js", fulfil)
    await watched.page.evaluate(_LOAD)
    return watched.page


async def speak(
    page: Page, texts: list[str], where: str = "worker", rest: tuple[str, ...] = (), **open: Any
) -> dict[str, Any]:
    """What was told and heard; `rest` is spoken after a failure."""
    given = [{**OPEN, **open}, texts, where, list(rest)]
    result: dict[str, Any] = await page.evaluate("given => speak(...given)", given)
    assert not [each for each in result["told"] if each["type"] == "wrong"]
    return result


async def python_hears(url: str, text: str, **options: Any) -> bytes:
    """The same by the Python client."""
    async with client.connect(url, **options) as session:
        return b"".join([audio.pcm async for audio in session.speak(text)])


def samples(result: dict[str, Any], number: int = 1) -> Any:
    """Those of one utterance, complete."""
    heard = result["heard"][str(number)]
    assert heard["complete"] == len(heard["samples"])
    return np.array(heard["samples"], dtype=float)


def alike(first: Any, pcm: bytes) -> float:
    """Their correlation, without any shift."""
    second = np.frombuffer(pcm, "<i2").astype(float)
    assert len(first) == len(second)
    return float(np.corrcoef(first, second)[0, 1])


@pytest_asyncio.fixture(loop_scope="session")
async def page(open_page: OpenPage, tone_server: ServerProcess) -> Page:
    """Of the tone server."""
    return await opened(open_page, tone_server.http)


async def test_pcm_is_the_same_to_the_bit(page: Page, tone_server: ServerProcess) -> None:
    result = await speak(page, [TEXT, "Another one."])
    for number, text in ((1, TEXT), (2, "Another one.")):
        expected = await python_hears(tone_server.url, text)
        assert samples(result, number).astype("<i2").tobytes() == expected


@pytest.mark.parametrize("rate", [16000, 24000])
async def test_opus_is_what_the_python_client_decodes(page: Page, tone_server: ServerProcess, rate: int) -> None:
    result = await speak(page, [TEXT, "Another one."], format="opus", sample_rate=rate)
    assert not [each for each in result["told"] if each["type"] == "warning"]
    for number, text in ((1, TEXT), (2, "Another one.")):
        assert result["heard"][str(number)]["kinds"] == ["Float32Array"]
        expected = await python_hears(tone_server.url, text, format="opus", sample_rate=rate)
        assert alike(samples(result, number), expected) > (0.999 if rate >= 24000 else 0.98)
    assert [each["id"] for each in result["told"] if each["type"] == "verified"] == [1, 2]


async def test_pcm_that_turns_into_opus_on_a_slow_line(open_page: OpenPage, tone_server: ServerProcess) -> None:
    async with FaultyProxy(tone_server.port) as proxy:
        page = await opened(open_page, f"http://127.0.0.1:{proxy.port}")
        proxy.change(DOWN, rate=32_000, delay_s=0.02)
        text = TEXT * 2
        result = await speak(page, [text], "page", format="auto")  # whose scripts are there already
    heard = result["heard"]["1"]
    assert heard["kinds"] == ["Int16Array", "Float32Array"]
    expected = await python_hears(tone_server.url, text)
    assert alike(samples(result), expected) > 0.9


@pytest.mark.parametrize("how", ["broken", "missing"])
async def test_opus_that_cannot_be_decoded_is_said_and_pcm_is_next(
    page: Page, tone_server: ServerProcess, how: str
) -> None:
    await page.evaluate(_BREAK, how)
    result = await speak(page, [TEXT], "page", ("Another one.",), format="opus")
    (failed,) = [each for each in result["told"] if each["type"] == "state" and each["state"] == "failed"]
    assert (failed["detail"]["code"], failed["detail"]["retryable"]) == ("no_opus", True)
    heard = result["heard"]["1"]
    assert 0 < heard["complete"] == len(heard["samples"]), "what could be decoded is played"
    assert [each["code"] for each in result["told"] if each["type"] == "warning"] == ["no_opus"]
    assert samples(result, 2).astype("<i2").tobytes() == await python_hears(tone_server.url, "Another one.")
