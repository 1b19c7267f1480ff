"""Opus and format auto through whole sessions with the real libopus: drops and restarts anywhere, decoded by the
client's own parts. Lengths are exact; the wave is that of the undisturbed run.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from client.decode import UtteranceDecoder
from client.items import Audio, audio_item
from client.timeline import Timeline
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_server
from protocol.frames import AudioFrame, Codec, FrameFlag, decode_frame, unpack_packets
from protocol.media.opus import timeline_sample
from server.audio.wire import CodedAudio, WireCoder
from server.engines.base import WordTiming
from server.engines.rendering import RenderedChunk, SegmentRequest
from server.session import Policy, Session
from server.session.restore import restore
from tests.support.session_driver import SAMPLES_PER_CHARACTER, TEXT, Driver, capabilities

POLICY = Policy("tone-low")
RATE = 24_000
CLEAR_DB = 8.0  # how near the decoded wave is to what was rendered, at 64 kbit/s


def hum(request: SegmentRequest) -> RenderedChunk:
    """Every character is a hum of its own pitch."""
    t = np.arange(SAMPLES_PER_CHARACTER) / RATE
    fade = np.minimum(1, np.minimum(t, t[::-1]) * 200)
    parts = []
    for character in request.cut.text:
        pitch = 110 + ord(character) % 90
        wave = sum(np.sin(2 * np.pi * pitch * k * t + k) / k for k in range(1, 7))
        parts.append((5_000 * fade * wave).astype("<i2").tobytes())
    start = request.cut.start
    words = tuple(
        WordTiming(ch, start + i, start + i + 1, i * SAMPLES_PER_CHARACTER, (i + 1) * SAMPLES_PER_CHARACTER)
        for i, ch in enumerate(request.cut.text)
    )
    return RenderedChunk(b"".join(parts), words)


@dataclass
class Heard:
    """One utterance at the client."""

    timeline: Timeline
    decoder: UtteranceDecoder
    pcm: bytearray = field(default_factory=bytearray)
    packets: list[bytes] = field(default_factory=list)
    warming: list[Audio] = field(default_factory=list)
    seams: list[int] = field(default_factory=list)  # timeline samples where a decoder began anew
    begun: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)
    done: s.Done | None = None

    def hear(self, audios: Iterator[Audio]) -> None:
        for audio in audios:
            assert audio.first_sample == len(self.pcm) // 2, "a hole, or something twice"
            self.pcm += audio.pcm


@dataclass
class Listener:
    """What a client has, over all connections and processes."""

    driver: Driver
    pre_skip: int = 0
    place: tuple[int, int] = (0, 0)
    event: int = 0
    token: str = "t"
    generation: int = 1
    promised: tuple[int, int] | None = None  # where the first frame after `resumed` begins
    heard: dict[int, Heard] = field(default_factory=dict)

    def take(self, data: str | bytes) -> None:
        if isinstance(data, bytes):
            self._audio(decode_frame(data))
            return
        message = decode_server(data)
        if isinstance(message, s.Opened):
            self.pre_skip = message.pre_skip
        elif isinstance(message, s.Resumed):
            self.generation, self.token = message.generation, message.new_token
            self.promised = (message.utterance, message.from_sample)
            assert message.synthesised_end >= message.from_sample
            for heard in self.heard.values():
                heard.timeline.new_generation()
                heard.warming.clear()
        elif isinstance(message, s.EVENTS):
            assert message.event == self.event + 1
            self.event = message.event
            self._event(message)

    def _of(self, number: int) -> Heard:
        if number not in self.heard:
            self.heard[number] = Heard(Timeline(number, self.pre_skip), UtteranceDecoder(RATE, self.pre_skip))
        return self.heard[number]

    def _event(self, event: s.Event) -> None:
        heard = self._of(event.utterance)
        match event:
            case s.SegmentBegin() if event.segment not in heard.begun:
                heard.begun.add(event.segment)
                heard.timeline.begin(event)
            case s.SegmentEnd() if event.segment not in heard.ended:
                heard.ended.add(event.segment)
                heard.timeline.end(event)
            case s.Done() if heard.done is None:
                heard.timeline.done(event)
                heard.done = event
                heard.hear(heard.decoder.finish(event.samples))
                assert len(heard.pcm) == 2 * event.samples
            case _:
                pass

    def _audio(self, frame: AudioFrame) -> None:
        assert frame.generation == self.generation
        if self.promised is not None and frame.utterance == self.promised[0] and frame.count:
            assert frame.first_sample == self.promised[1], "`resumed.from_sample` names the first frame that comes"
            self.promised = None
        heard = self._of(frame.utterance)
        if heard.done is not None:
            return  # it is over: only after a restart something comes again
        before = heard.timeline.next_sample
        skip = heard.timeline.audio(frame)
        opus = frame.codec is Codec.OPUS
        reset = bool(frame.flags & FrameFlag.DECODER_RESET)
        if reset:
            heard.warming.clear()
            heard.seams.append(max(0, before - self.pre_skip))
        if skip >= frame.count:
            if opus and (reset or heard.warming):
                heard.warming.append(audio_item(frame, 0))
            return
        item = audio_item(frame, skip)
        if heard.warming:
            whole = audio_item(frame, 0)
            first = heard.warming[0].first_sample
            assert heard.warming[-1].end_sample == whole.first_sample
            packets = tuple(packet for audio in heard.warming for packet in audio.packets) + whole.packets
            count = whole.end_sample - first
            item = Audio(frame.utterance, first, count, b"", packets, whole.last, reset=True)
            heard.warming.clear()
        if opus:
            per_packet = frame.count // len(unpack_packets(frame.payload))
            heard.packets += unpack_packets(frame.payload)[skip // per_packet :]
        self.place = (frame.utterance, frame.end_sample)
        heard.hear(heard.decoder.decode(item))

    def resume(self, chance: random.Random) -> None:
        """Come back; the decoder may be gone."""
        session = self.driver.session
        session.detach(self.driver.now)
        message = c.Resume(
            "s", self.token, session.epoch, self.generation, *self.place, self.event, have_decoder=chance.random() < 0.5
        )
        assert session.accepts(self.token)
        session.resume(message, f"t{session.generation + 1}", self.driver.now)

    def ack(self) -> None:
        played = timeline_sample(self.place[1], self.pre_skip)
        self.driver.send(c.Ack(self.generation, *self.place, min(played, self.place[1]), event=self.event))


class Falling:
    """A coder that is told to become Opus at some time."""

    cheap = True

    def __init__(self, coder: WireCoder, falls: float, chance: random.Random) -> None:
        self._coder, self._falls, self._chance = coder, falls, chance

    def adapt(self, bitrate: int, *, opus: bool) -> None:
        raise AssertionError("the test does this")

    def _adapt(self) -> WireCoder:
        self._coder.adapt(64_000, opus=self._chance.random() < self._falls)
        return self._coder

    def push(self, pcm: bytes | memoryview) -> list[CodedAudio]:
        return self._adapt().push(pcm)

    def silence(self, samples: int) -> list[CodedAudio]:
        return self._adapt().silence(samples)

    def finish(self) -> list[CodedAudio]:
        return self._adapt().finish()


class Line:
    """A session, its journal, and a client; connections break and processes die."""

    def __init__(self, seed: int, *, drops: float = 0.0, kills: float = 0.0, falls: float = 0.1, **open_: Any) -> None:
        self.chance = random.Random(seed)
        self.drops, self.kills, self.falls = drops, kills, falls
        self.lines: list[bytes] = []
        self.epoch = 0
        self.driver = Driver(render=hum)
        self.driver.session = Session(
            POLICY, capabilities(), session_id="s", token="t", now=100.0, recorded=True, principal="ann"
        )
        self.listener = Listener(self.driver)
        self.driver.open(bitrate=64_000, **{"max_lead_ms": None, **open_})
        self._watch()
        self.write()
        opened = self.driver.session.next_outgoing(self.driver.now)  # who misses this cannot come back
        assert opened is not None
        self.listener.take(opened)

    def _watch(self) -> None:
        session = self.driver.session
        make = session.coder

        def coder(work: Any) -> WireCoder:
            return Falling(make(work), self.falls, self.chance)

        session.coder = coder  # type: ignore[method-assign]
        self.driver.coder = None

    def write(self) -> None:
        log = self.driver.session.journal
        lines, made = log.take()
        self.lines += lines
        log.written = made

    def kill(self) -> None:
        self.epoch += 1
        self.driver.session = restore(self.lines, POLICY, capabilities(), epoch=self.epoch, now=self.driver.now)
        self.driver.seq = self.driver.session._seq
        self._watch()
        self.listener.resume(self.chance)

    def _step(self) -> bool:
        driver, chance = self.driver, self.chance
        if chance.random() < 0.5:
            self.write()
        data = driver.session.next_outgoing(driver.now)
        if data is not None:
            if chance.random() < self.drops:
                self.listener.resume(chance)
                return True
            self.listener.take(data)
            if chance.random() < 0.3:
                driver.now += 0.3
                self.listener.ack()
            return True
        work = driver.take_work()
        if work is not None:
            driver.do(work)
            return True
        waits = driver.session.journal.waits
        self.write()
        return waits

    def finish(self) -> dict[int, Heard]:
        """Until nothing more happens."""
        idle = 0
        while idle < 3:
            if self.kills and self.chance.random() < self.kills:
                self.kill()
            if self._step():
                idle = 0
            else:
                idle += 1
                self.listener.ack()
        for heard in self.listener.heard.values():
            assert heard.done is not None
        return self.listener.heard


def say_all(driver: Driver) -> None:
    driver.say(1, TEXT)
    driver.say(2, "")
    driver.numbered(c.Start, utterance=3)
    driver.numbered(c.Text, text="再见。你好")
    driver.numbered(c.Flush)
    driver.numbered(c.Silence, ms=700)
    driver.numbered(c.Text, text="世界")
    driver.numbered(c.End)


def original() -> dict[int, bytes]:
    """What was rendered."""
    driver = Driver(render=hum)
    driver.open(max_lead_ms=None)
    say_all(driver)
    driver.run()
    return {number: driver.pcm(number) for number in (1, 3)}


RENDERED = original()


def spoken(seed: int, **options: Any) -> dict[int, Heard]:
    line = Line(seed, **options)
    say_all(line.driver)
    line.write()
    return line.finish()


def near(number: int, heard: Heard) -> float:
    a = np.frombuffer(RENDERED[number], "<i2").astype(float)
    b = np.frombuffer(bytes(heard.pcm), "<i2").astype(float)
    noise = float(np.sum((a - b) ** 2))
    return 99.0 if not noise else 10 * float(np.log10(np.sum(a**2) / noise))


@pytest.fixture(scope="module")
def undisturbed() -> dict[int, Heard]:
    """Opus without any trouble."""
    return spoken(0, format="opus")


@pytest.mark.parametrize("seed", range(25))
def test_drops_lose_no_packet_of_opus(seed: int, undisturbed: dict[int, Heard]) -> None:
    """The client has exactly the packets of the undisturbed run, and hears the same but for a decoder's warming up."""
    heard = spoken(seed, drops=0.1 if seed % 2 else 0.02, format="opus")
    for number in (1, 3):
        one, whole = heard[number], undisturbed[number]
        assert one.packets == whole.packets
        assert one.done is not None
        assert whole.done is not None
        assert one.done.digest == whole.done.digest
        assert near(number, one) > CLEAR_DB
        differs = np.nonzero(np.frombuffer(one.pcm, "<i2") != np.frombuffer(whole.pcm, "<i2"))[0]
        for sample in differs[:: max(1, len(differs) // 200)]:  # a decoder that began late needs a while
            assert any(0 <= sample - seam < RATE for seam in one.seams)


@pytest.mark.parametrize("seed", range(25))
def test_kills_with_opus_keep_length_and_wave(seed: int) -> None:
    heard = spoken(seed, kills=0.03, drops=0.02, format="opus")
    for number in (1, 3):
        assert len(heard[number].pcm) == len(RENDERED[number])
        assert near(number, heard[number]) > CLEAR_DB


@pytest.mark.parametrize("seed", range(40))
def test_kills_and_drops_with_format_auto(seed: int) -> None:
    """What came as PCM is exact, whatever came after it."""
    chance = random.Random(seed)
    heard = spoken(
        seed, kills=chance.choice((0.0, 0.03)), drops=chance.choice((0.0, 0.05)), falls=chance.choice((0.05, 0.3)),
        format="auto",
    )  # fmt: skip
    for number in (1, 3):
        one = heard[number]
        assert len(one.pcm) == len(RENDERED[number])
        end = len(one.pcm) // 2 if one.timeline._pcm_end is None else one.timeline._pcm_end
        if not one.timeline.is_coded:
            assert bytes(one.pcm) == RENDERED[number]
        assert bytes(one.pcm)[: 2 * end] == RENDERED[number][: 2 * end]
        assert near(number, one) > CLEAR_DB


def test_all_ways_were_gone(undisturbed: dict[int, Heard]) -> None:
    """The schedules above do what they are there for."""
    falls = [spoken(seed, falls=0.2, format="auto")[1].timeline._pcm_end for seed in range(6)]
    assert any(end for end in falls if end)
    assert undisturbed[1].timeline.is_coded
    assert all(bytes(undisturbed[n].pcm) != RENDERED[n] for n in (1, 3))


def test_a_decoder_of_before_a_restart_is_of_no_use_after_it() -> None:
    """The new process's first packets are lost with their connection: the next one begins with a new decoder, too."""
    line = Line(3, format="opus")
    say_all(line.driver)
    line.write()
    while line.listener.place < (1, 9_600):
        line._step()
    line.write()
    place = line.listener.place
    line.kill()
    driver, frames = line.driver, []
    for has in (True, True):
        for _ in range(3):
            if (work := driver.take_work()) is not None:
                driver.do(work)
            line.write()
            while (data := driver.session.next_outgoing(driver.now)) is not None:
                if isinstance(data, bytes):
                    frames.append(decode_frame(data))
        opus = frames[0]
        assert opus.flags & FrameFlag.DECODER_RESET
        assert (1, opus.first_sample) < place
        frames.clear()
        session = driver.session
        session.detach(driver.now)
        message = c.Resume("s", line.listener.token, 1, 1, *place, line.listener.event, have_decoder=has)
        session.resume(message, "t9", driver.now)
