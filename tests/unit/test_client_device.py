"""Playing on a device that the test holds in its hand."""

import asyncio
import sys
from types import ModuleType
from typing import Any

import pytest

from client.device import DeviceSink, DeviceUnavailable
from client.items import Audio
from protocol.server_messages import ModeChange, SegmentBegin, SegmentEnd

RATE = 8_000
LATENCY_S = 0.05


class FakeStream:
    """Asks for samples when told to, as a device's thread would."""

    opened: "list[FakeStream]" = []  # noqa: RUF012  # emptied by the fixture

    def __init__(self, *, samplerate: int, channels: int, dtype: str, callback: Any) -> None:
        assert (channels, dtype) == (1, "int16")
        self.latency = LATENCY_S
        self.state = "made"
        self._callback = callback
        self.opened.append(self)

    def start(self) -> None:
        self.state = "started"

    def abort(self) -> None:
        self.state = "aborted"

    def close(self) -> None:
        self.state = "closed"

    def pull(self, frames: int) -> bytes:
        out = bytearray(2 * frames)
        self._callback(memoryview(out), frames, None, None)
        return bytes(out)


class FakeError(Exception):
    pass


@pytest.fixture
def sounddevice(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module: Any = ModuleType("sounddevice")
    module.PortAudioError = FakeError
    module.RawOutputStream = FakeStream
    module.query_devices = lambda kind: {"name": "fake"}
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    FakeStream.opened.clear()
    return module  # type: ignore[no-any-return]  # it is one


def audio(first: int, count: int) -> Audio:
    return Audio(1, first, count, b"\x01\x00" * count)


async def test_everything_is_played_and_reported(sounddevice: ModuleType) -> None:
    reports: list[tuple[int, int, int]] = []
    sink = DeviceSink(lambda *report: reports.append(report))
    await sink.begin(RATE, 0)
    (stream,) = FakeStream.opened
    await sink.write(audio(0, 4_000))
    out = stream.pull(1_600)
    await asyncio.sleep(0)
    assert reports == [(1_600 - int(LATENCY_S * RATE), 300, 0)]
    assert sink.played_sample == 1_200
    finishing = asyncio.create_task(sink.finish(4_000))
    await asyncio.sleep(0)
    out += stream.pull(2_000) + stream.pull(800)
    await finishing
    assert out == b"\x01\x00" * 4_000 + bytes(800)
    assert reports[-1] == (4_000, 0, 0)
    assert stream.state == "closed"


async def test_an_interrupt_is_silence_at_once(sounddevice: ModuleType) -> None:
    sink = DeviceSink(lambda *_: None)
    await sink.begin(RATE, 0)
    (stream,) = FakeStream.opened
    await sink.write(audio(0, 4_000))
    stream.pull(1_600)
    sink.silence()
    assert not any(stream.pull(800))
    assert sink.played_sample == 1_200
    await sink.interrupt()
    assert stream.state == "closed"


async def test_a_stall_is_reported(sounddevice: ModuleType) -> None:
    reports: list[tuple[int, int, int]] = []
    sink = DeviceSink(lambda *report: reports.append(report))
    await sink.begin(RATE, 0)
    await sink.write(audio(0, 1_000))
    FakeStream.opened[0].pull(1_600)
    await asyncio.sleep(0)
    assert (reports[-1][2], sink.stalls) == (1, 1)
    await sink.abandon()


async def test_a_pause_of_the_writer_is_no_stall(sounddevice: ModuleType) -> None:
    sink = DeviceSink(lambda *_: None)
    await sink.begin(RATE, 0)
    sink.told(SegmentBegin(1, 1, 0, 0, 5, 0))
    await sink.write(audio(0, 1_000))
    sink.told(SegmentEnd(2, 1, 0, 1_000, "0" * 64))
    sink.told(ModeChange(3, 1, "block", "", 1_000))
    FakeStream.opened[0].pull(1_600)
    await asyncio.sleep(0)
    assert sink.stalls == 0
    sink.told(SegmentBegin(4, 1, 1, 5, 9, 1_000))
    await sink.write(audio(1_000, 1_000))
    FakeStream.opened[0].pull(1_600)
    await asyncio.sleep(0)
    assert sink.stalls == 1
    await sink.abandon()


async def test_an_empty_utterance_needs_no_device_time(sounddevice: ModuleType) -> None:
    sink = DeviceSink(lambda *_: None)
    await sink.begin(RATE, 0)
    finishing = asyncio.create_task(sink.finish(0))
    await asyncio.sleep(0)
    FakeStream.opened[0].pull(100)
    await finishing


async def test_too_much_audio_waits(sounddevice: ModuleType) -> None:
    sink = DeviceSink(lambda *_: None)
    await sink.begin(RATE, 0)
    await sink.write(audio(0, 31 * RATE))
    writing = asyncio.create_task(sink.write(audio(31 * RATE, 10)))
    await asyncio.sleep(0.01)
    assert not writing.done()
    FakeStream.opened[0].pull(2 * RATE)
    await writing
    await sink.abandon()


@pytest.mark.parametrize("what", ["package", "library", "devices", "device"])
async def test_nothing_to_play_on(sounddevice: Any, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*_: object, **__: object) -> None:
        raise FakeError("Error opening RawOutputStream: Invalid sample rate")

    match what:
        case "package":
            monkeypatch.setitem(sys.modules, "sounddevice", None)
        case "library":
            monkeypatch.delitem(sys.modules, "sounddevice")
            finder = type("Finder", (), {"find_spec": staticmethod(_no_portaudio)})
            monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
        case "devices":
            sounddevice.query_devices = no
        case _:
            sounddevice.RawOutputStream = no
    said = {
        "package": "pip install",
        "library": "libportaudio2",
        "devices": "this machine has no sound device",
        "device": "Invalid sample rate",
    }[what]
    with pytest.raises(DeviceUnavailable, match=f"cannot play: .*{said}"):
        await DeviceSink(lambda *_: None).begin(RATE, 0)


def _no_portaudio(name: str, *_: object) -> None:
    if name == "sounddevice":
        raise OSError("PortAudio library not found")
