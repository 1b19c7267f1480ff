"""Drives a session machine without I/O: a script of messages in, the messages and frames it sends out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_client, decode_server, encode
from protocol.errors import ErrorCode, ProtocolError
from protocol.frames import AudioFrame, FrameFlag, decode_frame
from protocol.media.opus import timeline_sample
from server.audio.wire import WireCoder
from server.engines.base import Capabilities, WordTiming
from server.engines.rendering import RenderedChunk, SegmentRequest
from server.engines.tone import ToneEngine
from server.session import Policy, Session, SpeakSegment, SpeakSilence, Work

M = TypeVar("M")
SAMPLES_PER_CHARACTER = 2_400  # 100 ms at 24 kHz


def capabilities() -> Capabilities:
    """The tone engine's."""
    return ToneEngine().capabilities


def render(request: SegmentRequest) -> RenderedChunk:
    """A stand-in for an engine: every character is a constant level that depends on it; words are characters."""
    pcm = b"".join((ord(ch) % 30_000).to_bytes(2, "little") * SAMPLES_PER_CHARACTER for ch in request.cut.text)
    words = tuple(
        WordTiming(ch, request.cut.start + i, request.cut.start + i + 1, i * SAMPLES_PER_CHARACTER,
                   (i + 1) * SAMPLES_PER_CHARACTER)
        for i, ch in enumerate(request.cut.text)
    )  # fmt: skip
    return RenderedChunk(pcm, words)


@dataclass
class Driver:
    """A session and what it sent. `now` only moves when told to."""

    policy: Policy = field(default_factory=lambda: Policy("tone-low"))
    now: float = 100.0
    messages: list[Any] = field(default_factory=list)  # ServerMessage, in order of sending
    frames: list[AudioFrame] = field(default_factory=list)
    order: list[Any] = field(default_factory=list)  # both, in order
    seq: int = 0
    render: Callable[[SegmentRequest], RenderedChunk] = render
    session_id: str = "s"
    token: str = "t"
    coder: WireCoder | None = None
    coder_of: int = 0

    def __post_init__(self) -> None:
        self.session = Session(self.policy, capabilities(), session_id=self.session_id, token=self.token, now=self.now)

    def send(self, message: c.ClientMessage) -> None:
        """Through the codec, as from the wire."""
        self.session.receive(decode_client(encode(message)), self.now)

    def numbered(self, cls: type[Any], **fields: Any) -> None:
        """Send the next numbered message."""
        self.seq += 1
        self.send(cls(seq=self.seq, **fields))

    def open(self, **fields: Any) -> None:
        self.send(c.Open(**fields))

    def say(self, utterance: int, text: str) -> None:
        """start, text, end."""
        self.numbered(c.Start, utterance=utterance)
        self.numbered(c.Text, text=text)
        self.numbered(c.End)

    def take_work(self) -> Work | None:
        return self.session.next_work(self.now)

    def do(self, work: Work, chunk_samples: int = 2400) -> None:
        """Render one piece of work in chunks. Where there are codes, each chunk has one, and is told of the next one's
        along with its own, unless the request has them.
        """
        config = self.session.config
        assert config is not None
        if self.coder is None or self.coder_of != work.utterance:
            self.coder = self.session.coder(work)
            self.coder_of = work.utterance
        if isinstance(work, SpeakSegment):
            whole = self.render(work.request)
            told = len(work.request.codes)
            for at in range(0, len(whole.pcm), 2 * chunk_samples):
                pcm = whole.pcm[at : at + 2 * chunk_samples]
                ahead = at // (2 * chunk_samples) + 2
                codes, told = whole.codes[told:ahead], max(told, ahead)
                chunk = RenderedChunk(pcm, whole.words if at == 0 else (), codes=codes)
                self.session.place(work, chunk, self.coder.push(self.session.fresh(work, pcm)), self.now)
            self.session.complete(work, [], self.now)
        elif isinstance(work, SpeakSilence):
            pcm = bytes(2 * work.samples)
            coded = self.coder.silence(len(self.session.fresh(work, pcm)) // 2)
            self.session.place(work, RenderedChunk(pcm), coded, self.now)
            self.session.complete(work, [], self.now)
        else:
            self.session.complete(work, self.coder.finish(), self.now)

    def drain(self) -> None:
        """Take everything the session may send now."""
        while self.take():
            pass

    def take(self) -> bool:
        """Take one message. Whether there was one."""
        data = self.session.next_outgoing(self.now)
        if data is None:
            return False
        item = decode_server(data) if isinstance(data, str) else decode_frame(data)
        if isinstance(item, AudioFrame):
            self.frames.append(item)
        else:
            self.messages.append(item)
        self.order.append(item)
        return True

    def run(self, acks: bool = True) -> None:
        """Render and send until nothing more happens, acking (as received and played) all that came."""
        while True:
            before = len(self.order)
            work = self.take_work()
            if work is not None:
                self.do(work)
            self.drain()
            if acks and self.frames and len(self.order) > before:
                last = self.frames[-1]
                self.ack(last.utterance, last.end_sample, self.played_by(last))
            if work is None and len(self.order) == before:
                return

    def played_by(self, frame: AudioFrame) -> int:
        """Where a listener is who has heard all of a frame, in timeline samples."""
        assert self.session.config is not None
        samples = next((done.samples for done in self.of(s.Done) if done.utterance == frame.utterance), None)
        return timeline_sample(frame.end_sample, self.session.config.pre_skip, samples)

    def ack(self, utterance: int, next_sample: int, played_sample: int = 0, **fields: Any) -> None:
        self.send(c.Ack(self.session.generation, utterance, next_sample, played_sample, **fields))

    def of(self, cls: type[M]) -> list[M]:
        return [message for message in self.messages if isinstance(message, cls)]

    def pcm(self, utterance: int) -> bytes:
        """The utterance's samples as a client would put them together."""
        parts = []
        at = 0
        for frame in self.frames:
            if frame.utterance == utterance:
                assert frame.first_sample == at
                at = frame.end_sample
                silent = frame.flags & FrameFlag.SILENCE_RUN
                parts.append(bytes(2 * frame.count) if silent else bytes(frame.payload))
        return b"".join(parts)


TEXT = "你好，世界。今天天气很好，我们去公园散步吧。"


@contextmanager
def fails(_: Driver, code: ErrorCode, field: str | None = None) -> Iterator[None]:
    """Expects the session to end with this error, naming this field."""
    with pytest.raises(ProtocolError) as raised:
        yield
    assert raised.value.code is code
    assert field is None or raised.value.field == field


def opened(**fields: Any) -> Driver:
    """A driver whose session is open."""
    driver = Driver()
    driver.open(**fields)
    driver.drain()
    return driver


def advance(driver: Driver, seconds: float) -> None:
    """Lets time pass, doing all that becomes due."""
    limit = driver.now + seconds
    while driver.session.deadline() <= limit:
        driver.now = max(driver.now, driver.session.deadline())
        driver.session.on_time(driver.now)
        driver.run()
    driver.now = limit
