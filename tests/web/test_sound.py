"""What reaches the playout, in a worker of a real browser: its order, and Opus against the Python client's decoder."""

from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
from playwright.async_api import Route

from client.decode import UtteranceDecoder
from client.items import Audio
from protocol.media.opus import OpusEncoder, samples_per_packet
from tests.support.processes import ServerProcess
from tests.web.conftest import OpenPage

WORKER = Path(__file__).with_name("sound_worker.js")
_RUN = """steps => new Promise((resolve, reject) => {
    const worker = new Worker("/sound_worker.js", { type: "module" });
    worker.onmessage = ({ data }) => resolve(data);
    worker.onerror = (event) => reject(new Error(event.message));
    worker.postMessage(steps);
})"""
OVER = ["post", {"type": "over", "id": 0}]

Step = list[Any]
Signal = npt.NDArray[np.float64]


class Play:
    """Runs steps on a fresh `Sound`."""

    def __init__(self, page: Any) -> None:
        self._page = page

    async def __call__(self, *steps: Step) -> dict[str, Any]:
        result: dict[str, Any] = await self._page.evaluate(_RUN, steps)
        return result


@pytest_asyncio.fixture(loop_scope="session")
async def play(open_page: OpenPage, tone_server: ServerProcess) -> Play:
    """In a page of its own."""
    watched = await open_page(f"{tone_server.http}/empty")

    async def fulfil(route: Route) -> None:
        await route.fulfill(body=WORKER.read_text(encoding="utf-8"), headers={"content-type": "text/javascript"})

    await watched.page.route("**/sound_worker.js", fulfil)
    return Play(watched.page)


def speech(rate: int, seconds: float) -> bytes:
    """A voice, nearly: a gliding fundamental with overtones and pauses; s16le."""
    time = np.arange(round(rate * seconds)) / rate
    phase = 2 * np.pi * np.cumsum(140 + 40 * np.sin(2 * np.pi * 1.3 * time)) / rate
    wave = sum(np.sin(k * phase) / k for k in range(1, 12) if k * 180 < rate / 2)
    level = np.clip(np.sin(2 * np.pi * 2.1 * time) + 0.6, 0, 1)
    return (9000 * level * wave).astype("<i2").tobytes()


def coded(pcm: bytes, rate: int, frame_ms: float = 20, *, per_frame: int = 3) -> tuple[list[Audio], int]:
    """Frames as a server sends them, and the delay."""
    encoder = OpusEncoder(rate, frame_ms, 32_000)
    packets = [*encoder.push(pcm), *encoder.finish()]
    size = samples_per_packet(rate, frame_ms)
    frames = [packets[at : at + per_frame] for at in range(0, len(packets), per_frame)]
    return [
        Audio(1, at * per_frame * size, len(each) * size, b"", tuple(each), at == len(frames) - 1, at == 0)
        for at, each in enumerate(frames)
    ], encoder.pre_skip


def opus(audio: Audio, skip: int = 0, number: int = 1) -> Step:
    """This frame as `Session` gives it."""
    fields = {"codec": "opus", "count": audio.count, "reset": audio.reset, "skip": skip, "last": audio.last}
    return ["audio", number, {**fields, "payload": [b64encode(packet).decode() for packet in audio.packets]}]


def pcm16(first: int, pcm: bytes, number: int = 1) -> Step:
    """PCM as `Session` gives it."""
    return [
        "audio",
        number,
        {"codec": "pcm", "first": first, "count": len(pcm) // 2, "payload": b64encode(pcm).decode()},
    ]


def signal(result: dict[str, Any], number: int = 1) -> Signal:
    """The samples of an utterance, which are without a gap."""
    parts = [each for each in result["posted"] if each["type"] == "audio" and each["id"] == number]
    found = [
        np.frombuffer(b64decode(each["pcm"]), "<f4" if each["kind"] == "Float32Array" else "<i2") for each in parts
    ]
    at = 0
    for part, samples in zip(parts, found, strict=True):
        assert part["first"] == at, "a gap or a repeat"
        at += len(samples)
    scaled = [each.astype(float) / (32768 if each.dtype == np.dtype("<i2") else 1) for each in found]
    return np.concatenate(scaled) if scaled else np.zeros(0)


def alike(first: Signal, second: Signal) -> float:
    """Their correlation, without any shift."""
    return float(np.corrcoef(first, second)[0, 1])


def python_decodes(audios: list[Audio], rate: int, pre_skip: int, samples: int) -> Signal:
    """The same frames by the Python client."""
    decoder = UtteranceDecoder(rate, pre_skip)
    items = [item for audio in audios for item in decoder.decode(audio)] + [*decoder.finish(samples)]
    return np.frombuffer(b"".join(item.pcm for item in items), "<i2").astype(float) / 32768


@pytest.mark.parametrize(
    ("rate", "frame_ms"), [(8000, 20), (12000, 2.5), (16000, 60), (24000, 20), (24000, 5), (48000, 10)]
)
async def test_opus_gives_exactly_the_samples(play: Play, rate: int, frame_ms: float) -> None:
    pcm = speech(rate, 1.7013)
    audios, pre_skip = coded(pcm, rate, frame_ms)
    samples = len(pcm) // 2
    frames = [opus(each, pre_skip if each.reset else 0) for each in audios]
    result = await play(["begin", 1, rate, 3000], *frames, ["complete", 1, samples], OVER)
    assert (result["failures"], result["waitingMs"]) == ([], 0)
    assert result["posted"][0] == {"type": "begin", "id": 1, "rate": rate, "maxPrerollMs": 3000}
    assert result["posted"][-1] == {"type": "complete", "id": 1, "samples": samples}
    heard = signal(result)
    assert len(heard) == samples
    python, plain = python_decodes(audios, rate, pre_skip, samples), np.frombuffer(pcm, "<i2") / 32768
    # Below 24 kHz libopus resamples differently for 48 kHz: less than a sample's time.
    assert alike(heard, python) > (0.999 if rate >= 24000 else 0.99)
    assert alike(heard, plain) > alike(python, plain) - 0.02


async def test_a_new_decoder_in_the_middle_is_warmed_up(play: Play) -> None:
    rate, pcm = 24000, speech(24000, 2.0)
    audios, pre_skip = coded(pcm, rate, per_frame=1)
    samples, whole = len(pcm) // 2, python_decodes(audios, rate, pre_skip, len(pcm) // 2)
    before, warm = audios[:50], 4  # packets that come again for the new decoder
    again = [Audio(1, a.first_sample, a.count, b"", a.packets, a.last, a is audios[46]) for a in audios[46:]]
    steps = [opus(each, pre_skip if each.reset else 0) for each in before]
    steps += [opus(each, each.count if at < warm else 0) for at, each in enumerate(again)]
    result = await play(["begin", 1, rate, 3000], *steps, ["complete", 1, samples], OVER)
    heard = signal(result)
    assert len(heard) == samples
    assert alike(heard, whole) > 0.99


async def test_what_is_behind_opus_waits_for_it(play: Play) -> None:
    rate, pcm = 24000, speech(24000, 1.0)
    audios, pre_skip = coded(pcm, rate)
    frames = [opus(each, pre_skip if each.reset else 0) for each in audios]
    second = ["begin", 2, rate, 3000], pcm16(0, b"\x01\x00" * 100, 2), ["complete", 2, 100]
    result = await play(["begin", 1, rate, 3000], *frames, *second, ["complete", 1, 24000], OVER)
    assert [each["id"] for each in result["posted"][1:-1]] == [1] * 17 + [2] * 3, "2 did not wait for the end of 1"
    assert result["posted"][-1] == {"type": "complete", "id": 1, "samples": 24000}
    assert len(signal(result)) == 24000
    assert len(signal(result, 2)) == 100


async def test_another_session_goes_on_in_the_middle(play: Play) -> None:
    rate, pcm = 24000, speech(24000, 2.0)
    audios, pre_skip = coded(pcm, rate)
    frames = [opus(each, pre_skip if each.reset else 0) for each in audios]
    rest, _ = coded(pcm[40_000:], rate)
    further = [opus(each, pre_skip if each.reset else 0) for each in rest]
    result = await play(
        ["begin", 1, rate, 3000], *frames, ["restart", 1, 20_000], *further, ["complete", 1, 48_000], OVER
    )
    kinds = [each["type"] for each in result["posted"]]
    place = kinds.index("restart")
    assert result["posted"][place]["first"] == 20_000
    after = [
        {**each, "first": each["first"] - 20_000} for each in result["posted"][place + 1 :] if each["type"] == "audio"
    ]
    assert alike(signal({"posted": after}), np.frombuffer(pcm[40_000:], "<i2") / 32768) > 0.9


async def test_what_is_dropped_is_not_heard_and_holds_nothing_up(play: Play) -> None:
    rate = 24000
    audios, pre_skip = coded(speech(rate, 1.0), rate)
    frames = [opus(each, pre_skip if each.reset else 0) for each in audios]
    second = ["begin", 2, rate, 3000], pcm16(0, b"\x01\x00" * 100, 2), ["complete", 2, 100]
    result = await play(["begin", 1, rate, 3000], *frames, *second, ["drop", 1], OVER)
    assert [each["type"] for each in result["posted"] if each["id"] == 1] == ["begin"]
    assert [each["type"] for each in result["posted"] if each["id"] == 2] == ["begin", "audio", "complete"]


async def test_long_silence_comes_in_pieces(play: Play) -> None:
    silence = {"codec": "pcm", "count": 60_000, "silence": True, "payload": ""}
    result = await play(["begin", 1, 24000, 3000], ["audio", 1, silence], ["complete", 1, 60_000], OVER)
    heard = signal(result)
    assert len(heard) == 60_000
    assert not heard.any()
    assert len(result["posted"]) == 5


async def test_broken_opus_is_told(play: Play) -> None:
    audios, pre_skip = coded(speech(24000, 0.5), 24000)
    broken = Audio(1, 0, 480, b"", (b"\xff\xff\xff",), False, True)
    result = await play(["begin", 1, 24000, 3000], opus(audios[0], pre_skip), opus(broken), OVER)
    assert [number for number, _ in result["failures"]] == [1]


async def test_packets_that_give_too_little_are_told(play: Play) -> None:
    audios, pre_skip = coded(speech(24000, 0.5), 24000)
    lying = Audio(1, 0, 4 * audios[0].count, b"", audios[0].packets, True, True)
    result = await play(["begin", 1, 24000, 3000], opus(lying, pre_skip), ["complete", 1, 5000], OVER)
    assert [number for number, _ in result["failures"]] == [1]
