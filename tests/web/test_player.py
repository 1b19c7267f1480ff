"""The player in a real browser: what reaches the sound hardware's side is what the server made, at every rate."""

import pytest

from tests.support.processes import ServerProcess
from tests.support.web_player import checksum, reference
from tests.web.conftest import OpenPlayer

TEXT = "One two three four. 五六七八，九十。"
FIRST_SAMPLE_MS = 1000  # what a loaded machine may take; the figure is bench.web's


@pytest.mark.parametrize("mode", ["stream", "block"])
async def test_speech_arrives_whole(open_player: OpenPlayer, voice_server: ServerProcess, mode: str) -> None:
    text = "Good morning. 今天天气很好。"
    page = await open_player(voice_server.http, player={"format": "pcm", "mode": mode})
    report = await page.heard(text)
    assert (report["received"], report["crc"]) == checksum(await reference(voice_server.url, text, mode=mode))
    assert report["stalls"] == 0
    assert (await page.watched.event("first", 1))["ms"] < FIRST_SAMPLE_MS
    words = await page.watched.events("word", 1)
    assert [text[word["start"] : word["end"]] for word in words][:2] == ["Good", "morning"]


@pytest.mark.parametrize("rate", [44_100, 48_000])
async def test_samples_and_speed_at_the_hardwares_rate(
    open_player: OpenPlayer, tone_server: ServerProcess, rate: int
) -> None:
    page = await open_player(tone_server.http, player={"format": "pcm"}, sample_rate=rate)
    await page.page.evaluate("() => player.unlock()")
    assert await page.page.evaluate("() => player.context.sampleRate") == rate
    report = await page.heard(TEXT)
    assert (report["received"], report["crc"]) == checksum(await reference(tone_server.url, TEXT))
    reports = [each for each in await page.watched.events("report", 1) if each["state"] == "playing"]
    first, last = reports[0], reports[-1]
    played_s = (last["played"] - first["played"]) / 24_000
    assert played_s > 1
    assert last["time"] - first["time"] == pytest.approx(played_s, abs=0.03)


async def test_two_texts_one_after_the_other(open_player: OpenPlayer, tone_server: ServerProcess) -> None:
    page = await open_player(tone_server.http, player={"format": "pcm"})
    for text in ("One two three.", "四五六。"):
        report = await page.heard(text)
        assert (report["received"], report["crc"]) == checksum(await reference(tone_server.url, text))


async def test_opus(open_player: OpenPlayer, tone_server: ServerProcess) -> None:
    page = await open_player(tone_server.http, player={"format": "opus"})
    report = await page.heard(TEXT)
    assert report["received"] == len(await reference(tone_server.url, TEXT)) // 2
    assert report["codec"] == "opus"
    assert not await page.watched.events("warning")


async def test_what_it_chooses_itself_is_opus(open_player: OpenPlayer, tone_server: ServerProcess) -> None:
    page = await open_player(tone_server.http)
    assert (await page.heard("One two three."))["codec"] == "opus"


async def test_written_in_pieces(open_player: OpenPlayer, tone_server: ServerProcess) -> None:
    page = await open_player(tone_server.http, player={"format": "pcm"})
    await page.page.evaluate(
        """async text => {
        const utterance = player.speak();
        utterance.finished.then((result) => { results[utterance.id] = result; });
        for (const character of text) {
            utterance.write(character);
            await new Promise((resolve) => setTimeout(resolve, 20));
        }
        utterance.end();
    }""",
        TEXT,
    )
    assert (await page.result(1))["heardAll"]
    report = await page.watched.report(1)
    assert (report["received"], report["crc"]) == checksum(await reference(tone_server.url, TEXT))


async def test_without_a_secure_context(open_player: OpenPlayer, tone_server: ServerProcess) -> None:
    page = await open_player(tone_server.http.replace("127.0.0.1", "demo.test"))
    support = await page.page.evaluate("() => player.support")
    assert (support["secure"], support["worklet"], support["opus"]) == (False, False, False)
    assert "insecure_context" in support["reasons"]
    await page.page.evaluate("() => { probe.listen(); }")
    report = await page.heard(TEXT)
    assert (report["received"], report["crc"]) == checksum(await reference(tone_server.url, TEXT))
    assert await page.page.evaluate("() => probe.lastSound(0)") > 0
