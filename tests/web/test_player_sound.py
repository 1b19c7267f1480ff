"""The player's sound in a real browser, in the worklet and without one: gaps, clicks, stopping, contexts that fail.

What is to be played comes from `tone_worker.js`, so that its times are the test's.
"""

import json
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from playwright.async_api import Route

from tests.support.processes import ServerProcess
from tests.support.web_player import POLICY, PlayerPage
from tests.web.conftest import OpenPage

HERE = Path(__file__).parent
WORKER = HERE / "tone_worker.js"
PROBE = HERE / "sound_probe.js"
QUIET_MS = 100
FADE_MS = 5
LEVEL = 0.25
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:153.0) Gecko/20100101 Firefox/153.0"

Signal = npt.NDArray[np.float64]
OpenSound = Callable[..., Awaitable[PlayerPage]]


@pytest.fixture
def open_sound(open_page: OpenPage, tone_server: ServerProcess) -> OpenSound:
    """`await open_sound(scheduled=False, fake=False, player={}, **options)`: a page whose player plays tones."""

    async def open_it(
        *, scheduled: bool = False, fake: bool = False, player: dict[str, Any] | None = None, **options: Any
    ) -> PlayerPage:
        policy = POLICY.replace("script-src 'self'", "script-src 'self' blob:")  # the recorder
        watched = await open_page(f"{tone_server.http}/empty", policy=policy, **options)
        page = watched.page

        async def fulfil(route: Route) -> None:
            headers = {"content-type": "text/javascript"}
            await route.fulfill(body=WORKER.read_text(encoding="utf-8"), headers=headers)

        await page.route("**/tone_worker.js", fulfil)
        choice = json.dumps({"scheduled": scheduled, "fake": fake})
        await page.add_init_script(f"const soundProbe = {choice};\n{PROBE.read_text(encoding='utf-8')}")
        await page.reload()
        sound = PlayerPage(watched)
        await sound.make(workerUrl="/tone_worker.js", **(player or {}))
        return sound

    return open_it


def tones(**script: Any) -> str:
    """A text for `tone_worker.js`."""
    return json.dumps(script)


async def recorded(sound: PlayerPage) -> Signal:
    """What was recorded from the first sound to the last."""
    signal = np.array(await sound.page.evaluate("() => recorded"))
    loud = np.flatnonzero(np.abs(signal) > 1e-6)
    return signal[loud[0] : loud[-1] + 1]


def longest_silence_s(signal: Signal, rate: int) -> float:
    """The longest run of zeros."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], (np.abs(signal) < 1e-6).astype(int), [0]))))
    runs = edges[1::2] - edges[::2]
    return float(runs.max()) / rate if len(runs) else 0.0


def frequency(signal: Signal, rate: int) -> float:
    """Of a tone, in Hz."""
    spectrum = np.abs(np.fft.rfft(signal * np.hanning(len(signal))))
    return float(spectrum.argmax()) * rate / len(signal)


@pytest.mark.parametrize("scheduled", [False, True], ids=["worklet", "scheduled"])
@pytest.mark.parametrize("rate", [44_100, 48_000])
async def test_a_tone_in_pieces_at_random_times_is_one_tone(open_sound: OpenSound, scheduled: bool, rate: int) -> None:
    sound = await open_sound(scheduled=scheduled, player={"prerollMs": 600}, sample_rate=rate)
    await sound.page.evaluate("async () => { await player.unlock(); await record(); }")
    report = await sound.heard(tones(pieces=40, ms=50, apart=[20, 80]))
    assert (report["received"], report["played"], report["stalls"]) == (48_000, 48_000, 0)
    await sound.page.wait_for_timeout(100)
    signal = await recorded(sound)
    assert len(signal) / rate == pytest.approx(2.0, abs=0.005)
    assert longest_silence_s(signal, rate) < 0.005
    assert frequency(signal, rate) == pytest.approx(440, rel=0.002)
    steepest = LEVEL * 2 * np.pi * 440 / rate
    inside = signal[rate // 50 : -rate // 50]  # a tone that begins at once is a click
    assert np.abs(np.diff(inside)).max() < 1.02 * steepest, "a click"


async def test_buffers_lie_one_directly_after_the_other(open_sound: OpenSound) -> None:
    sound = await open_sound(scheduled=True, player={"prerollMs": 300})
    await sound.heard(tones(pieces=40, ms=50, apart=[20, 80]))
    starts = await sound.page.evaluate("() => starts")
    assert len(starts) >= 20
    for before, start in pairwise(starts):
        planned = before["when"] + before["frames"] / before["rate"]
        assert start["when"] is not None
        assert start["rate"] == start["context"]
        assert start["when"] == pytest.approx(planned, abs=1 / start["rate"]) or start["now"] > planned


@pytest.mark.parametrize("scheduled", [False, True], ids=["worklet", "scheduled"])
async def test_utterances_follow_without_a_gap(open_sound: OpenSound, scheduled: bool) -> None:
    sound = await open_sound(scheduled=scheduled, player={"prerollMs": 200})
    await sound.page.evaluate("async () => { await player.unlock(); await record(); }")
    first = await sound.speak(tones(pieces=10, ms=40, apart=[10, 20]))
    second = await sound.speak(tones(pieces=10, ms=40, apart=[10, 20]))
    assert [(await sound.result(number))["samples"] for number in (first, second)] == [9_600, 9_600]
    await sound.page.wait_for_timeout(100)
    rate = await sound.page.evaluate("() => player.context.sampleRate")
    assert longest_silence_s(await recorded(sound), rate) < 0.005
    ended = [each["id"] for each in await sound.watched.events("ended")]
    assert ended == [first, second]


@pytest.mark.parametrize("scheduled", [False, True], ids=["worklet", "scheduled"])
async def test_stop_is_silence(open_sound: OpenSound, scheduled: bool) -> None:
    sound = await open_sound(scheduled=scheduled)
    await sound.page.evaluate("() => { probe.listen(); }")
    number = await sound.speak(tones(pieces=100, ms=50, apart=[10, 30]))
    await sound.watched.event("audible", number)
    await sound.page.wait_for_timeout(500)
    told = await sound.page.evaluate("""async () => {
        const before = performance.now();
        const stopped = await player.stop();
        const took = performance.now() - before;
        await new Promise((resolve) => setTimeout(resolve, 700));
        return { ...stopped, took, heard: probe.lastSound(0), sound: probe.lastSound(before) };
    }""")
    assert told["id"] == number
    assert max(told["took"], told["sound"]) <= QUIET_MS < told["heard"]
    assert told["sound"] >= FADE_MS, "the probe does not see all that the loudspeaker gives"
    assert told["heardTextEnd"] == told["played"] // 1_200
    (cancel,) = [
        json.loads(each["message"]) for each in await sound.watched.events("warning") if each["code"] == "cancel"
    ]
    assert cancel == {"type": "cancel", "id": number, "played": told["played"]}
    assert await sound.result(number) == {
        "id": number, "heardAll": False, "samples": told["played"], "verified": False,
    }  # fmt: skip


@pytest.mark.parametrize("scheduled", [False, True], ids=["worklet", "scheduled"])
async def test_stop_before_the_first_sound(open_sound: OpenSound, scheduled: bool) -> None:
    """What comes late of it is not heard; the next text is."""
    sound = await open_sound(scheduled=scheduled)
    await sound.page.evaluate("() => { probe.listen(); }")
    first = await sound.speak(tones(pieces=40, ms=50, hold=100))
    stopped = await sound.page.evaluate("() => player.stop()")
    assert stopped == {"id": first, "played": 0, "heardTextEnd": 0}
    await sound.page.wait_for_timeout(400)
    assert await sound.page.evaluate("() => probe.lastSound(0)") == 0
    report = await sound.heard(tones(pieces=10, ms=50))
    assert report["played"] == 12_000
    assert not await sound.watched.events("audible", first)


async def test_stop_twice_stops_once(open_sound: OpenSound) -> None:
    sound = await open_sound()
    assert await sound.page.evaluate("() => player.stop()") == {"id": 0, "played": 0, "heardTextEnd": 0}
    number = await sound.speak(tones(pieces=40, ms=50))
    await sound.watched.event("audible", number)
    first, _ = await sound.page.evaluate("() => Promise.all([player.stop(), player.stop()])")
    assert first["id"] == number
    assert len(await sound.watched.events("stopped")) == 1
    cancels = [each for each in await sound.watched.events("warning") if each["code"] == "cancel"]
    assert len(cancels) == 1


@pytest.mark.parametrize("scheduled", [False, True], ids=["worklet", "scheduled"])
async def test_words_are_told_when_they_are_heard(open_sound: OpenSound, scheduled: bool) -> None:
    sound = await open_sound(scheduled=scheduled)
    await sound.heard(tones(pieces=20, ms=100))
    words = await sound.watched.events("word", 1)
    assert [word["start"] for word in words] == list(range(20))
    late = [word["at"] - words[0]["at"] - 100 * word["start"] for word in words]
    assert sorted(map(abs, late))[len(late) // 2] < 30
    assert max(map(abs, late)) < 150


@pytest.mark.parametrize(("agent", "asked"), [(None, True), (FIREFOX, False)], ids=["chromium", "firefox"])
async def test_firefox_for_linux_is_not_asked_for_its_latency(
    open_sound: OpenSound, agent: str | None, asked: bool
) -> None:
    """It would hang for ever."""
    sound = await open_sound(**({"user_agent": agent} if agent else {}))
    await sound.page.evaluate("""() => {
        window.asked = 0;
        Object.defineProperty(AudioContext.prototype, "outputLatency", { get() { return asked++, 0; } });
    }""")
    await sound.heard(tones(pieces=5, ms=100))
    assert len(await sound.watched.events("word", 1)) == 5
    assert (await sound.page.evaluate("() => asked") > 0) is asked


@pytest.mark.parametrize("scheduled", [False, True], ids=["worklet", "scheduled"])
async def test_a_clock_that_stands_still_gets_another_context(open_sound: OpenSound, scheduled: bool) -> None:
    """Twice; all of it is played, and its digest is that of all of it."""
    sound = await open_sound(scheduled=scheduled)
    alone = await sound.heard(tones(pieces=30, ms=100, apart=[50, 60]))
    number = await sound.speak(tones(pieces=30, ms=100, apart=[50, 60]))
    for contexts in (2, 3):
        await sound.watched.until("player.clock() && player.clock().sample > 100", 5)
        await sound.page.evaluate("""() => {
            const { context } = player;
            const time = context.currentTime;
            Object.defineProperty(context, "currentTime", { get: () => time });
        }""")
        await sound.watched.until(f"probe.contexts.length === {contexts} && player.context?.state === 'running'", 5)
    result = await sound.result(number)
    report = await sound.watched.report(number)
    assert result == {"id": number, "heardAll": True, "samples": 72_000, "verified": True}
    assert (report["crc"], report["received"]) == (alone["crc"], 72_000)
    states = [each["state"] for each in await sound.watched.events("audio")]
    assert (states.count("frozen"), states[-1]) == (2, "running")


async def test_interrupted_refused_and_frozen_twice(open_sound: OpenSound) -> None:
    """As on a phone: a call comes; the first tap is refused; after the second the clock stands still."""
    sound = await open_sound(scheduled=True, fake=True)
    for nth in (1, 2):
        number = await sound.speak(tones(pieces=40, ms=100))
        await sound.watched.until(f"contexts.length === {nth} && contexts[{nth - 1}].starts.length > 0", 5)
        await sound.page.wait_for_timeout(200)
        await sound.page.evaluate(
            "nth => { contexts[nth - 1].refuse = 1; contexts[nth - 1].turn('interrupted'); }", nth
        )
        await sound.watched.until("probe.events.findLast(each => each.kind === 'audio').needsTap", 2)
        await sound.page.mouse.click(5, 5)
        await sound.watched.until(f"contexts[{nth - 1}].resumes.at(-1) === 'interrupted'", 2)
        await sound.page.wait_for_timeout(200)
        await sound.page.evaluate("nth => { contexts[nth - 1].frozen = true; }", nth)
        await sound.page.mouse.click(5, 5)
        await sound.watched.until(f"contexts.length === {nth + 1} && contexts[{nth}].starts.length > 0", 5)
        starts = await sound.page.evaluate("nth => contexts[nth].starts", nth)
        left = sum(start["duration"] for start in starts)
        assert 3.0 < left < 3.99, "what was not played, and no more"
        result = await sound.result(number)
        assert (result["heardAll"], result["samples"]) == (True, 96_000)


async def test_suspended_before_anything_sounds_it_asks_for_a_tap(open_sound: OpenSound) -> None:
    sound = await open_sound(scheduled=True, fake=True)
    await sound.page.evaluate("""() => {
        const { resume } = AudioContext.prototype;
        let allowed = false;
        AudioContext.prototype.resume = function () { return allowed ? resume.call(this) : new Promise(() => {}); };
        document.addEventListener("keydown", () => { allowed = true; }, { capture: true });
    }""")
    number = await sound.speak(tones(pieces=5, ms=100))
    await sound.watched.until("probe.events.some(each => each.kind === 'audio' && each.needsTap)", 2)
    assert not await sound.watched.events("ended")
    await sound.page.keyboard.press("a")
    assert (await sound.result(number))["heardAll"]


async def test_without_the_worklet_module_it_plays_all_the_same(open_sound: OpenSound) -> None:
    sound = await open_sound()
    await sound.page.evaluate("() => { Worklet.prototype.addModule = () => Promise.reject(new Error('refused')); }")
    assert (await sound.heard(tones(pieces=10, ms=50)))["played"] == 12_000
    assert await sound.page.evaluate("() => starts.length") > 0


@pytest.mark.parametrize("break_it", ["delete window.Worker", "window.Worker = class { constructor() { throw 1; } }"])
async def test_without_workers_the_page_does_it(open_page: OpenPage, tone_server: ServerProcess, break_it: str) -> None:
    watched = await open_page(f"{tone_server.http}/empty")
    await watched.page.evaluate(f"() => {{ {break_it} }}")
    sound = PlayerPage(watched)
    await sound.make(format="pcm")
    assert await watched.page.evaluate("() => player.support.reasons") == ["no_worker"]
    await sound.heard("One two three.")


async def test_a_worker_that_does_not_load_is_replaced(open_page: OpenPage, tone_server: ServerProcess) -> None:
    watched = await open_page(f"{tone_server.http}/empty", expected=("nowhere", "404"))
    sound = PlayerPage(watched)
    await sound.make(format="pcm", workerUrl="/web/nowhere.js")
    await sound.heard("One two three.")
    assert await watched.page.evaluate("() => player.support.worker") is False
