"""A small server for the client's tests: it speaks the protocol honestly, or breaks it in the one way a test asks for.

Each character of text becomes `SAMPLES_PER_CHARACTER` samples whose values depend on their position; a segment ends at
each full stop. It keeps to the acks: never more than `unacked_bytes` on the way, never past `max_lead_ms`. With
`resume_ttl_ms` a session outlives its connection, and `resume` repeats what the client does not have.
"""

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import numpy as np
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from protocol import SUBPROTOCOL, AudioFrame, Codec, FrameFlag, decode_client, encode, limits
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.frames import pack_packets
from protocol.media.opus import OpusEncoder

SAMPLES_PER_CHARACTER = 1_200  # 50 ms at 24 kHz
FRAME_SAMPLES = 960
VOICES = {
    "default": "fake",
    "voices": [
        {"id": "fake", "languages": ["zh", "en"], "sample_rate": 24_000, "license": "MIT", "notice": "Not for sale."}
    ],
}


def speech_of(position: int, text: str) -> bytes:
    """The samples of a stretch of text that begins at this position of the utterance."""
    n = np.arange(SAMPLES_PER_CHARACTER)
    sign = np.where(n % 2, 1, -1)
    values = [(ord(character) * 31 + index * 7) % 8_000 for index, character in enumerate(text, position)]
    return b"".join(((value + n % 97) * sign).astype("<i2").tobytes() for value in values)


@dataclass
class Behaviour:
    """What the server does wrong, or differently."""

    fail_after: int | None = None  # frames of an utterance before it fails; once resumed, again after as many
    how: Callable[["FakeSession"], Awaitable[None]] | None = None  # what failing means
    first_answer: s.ServerMessage | None = None  # instead of `opened`
    api_key: str | None = None
    frame_delay_s: float = 0.0
    silent_at_end: bool = False  # hangs instead of `done`
    no_heartbeat: bool = False
    ignore_cancel: bool = False
    window: int = limits.TEXT_WINDOW_CHARS
    unacked_bytes: int = limits.MAX_UNACKED_BYTES
    resume_ttl_ms: int = 0
    resume_answer: s.ServerMessage | None = None  # instead of `resumed`
    utterance_chars: int = limits.MAX_UTTERANCE_CHARS
    refuses: bool = False  # new connections, with HTTP 503
    http_answer: Response | None = None  # to every request, instead of anything else
    hangs: bool = False  # takes new connections, and says nothing on them
    queued: int = limits.MAX_QUEUED_UTTERANCES
    change_frame: Callable[[AudioFrame], AudioFrame] = lambda frame: frame
    change_event: Callable[[s.Event], s.Event] = lambda event: event


@dataclass
class FakeServer:
    """A running server, and what its clients sent."""

    url: str
    behaviour: Behaviour
    messages: list[c.ClientMessage] = field(default_factory=list)
    sessions: list["FakeSession"] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)  # some utterance was
    connections: int = 0

    def forget(self) -> None:
        """What a restart without a store does to the sessions."""
        for session in self.sessions:
            session.end()

    def of(self, kind: type[c.ClientMessage]) -> list[Any]:
        """The messages of one type."""
        return [message for message in self.messages if isinstance(message, kind)]


@dataclass
class _Utterance:
    number: int
    text: str = ""
    spoken: int = 0
    samples: int = 0
    segments: int = 0
    ended: bool = False
    cancelled: bool = False
    done: bool = False
    pieces: list[Any] = field(default_factory=list)
    digests: Any = field(default_factory=hashlib.sha256)
    wire: Any = field(default_factory=hashlib.sha256)
    frames: int = 0
    coded: int = 0


class FakeSession:
    """One client."""

    def __init__(self, server: FakeServer, socket: ServerConnection, name: str) -> None:
        self.server = server
        self.name = name
        self.generation = 1
        self.log: list[s.Event | AudioFrame] = []  # all that was made, in order
        self.muted = False  # nothing of what is sent arrives
        self.cursor = 0  # what of it was sent on the present connection
        self.known = c.Resume(name, "token", 0, 1, 0, 0, 0)  # what the client had before that
        self.sending = asyncio.Lock()
        self.alive = True
        self.tasks: list[asyncio.Task[None]] = []
        self.failures = 0
        self.behaviour = server.behaviour
        self.socket = socket
        self.utterances: list[_Utterance] = []
        self.event = 0
        self.config = c.Open()
        self.seq = 0
        self.unspoken = 0
        self.sent: list[tuple[tuple[int, int], int]] = []
        self.peak_unacked = 0
        self.played = (0, 0)
        self.peak_lead = 0
        self.changed = asyncio.Event()
        self.encoder: Any = None

    async def open(self, first: c.Open) -> None:
        """Serves until the client goes."""
        self.config = first
        if self.behaviour.first_answer is not None:
            await self.send(self.behaviour.first_answer)
            await self.socket.close()
            return
        pre_skip = 0
        if first.format == "opus":
            self.encoder = OpusEncoder(first.sample_rate, 20, first.bitrate or limits.DEFAULT_BITRATE)
            pre_skip = self.encoder.pre_skip
        bounds = {
            "text_window_chars": self.behaviour.window,
            "queued_utterances": self.behaviour.queued,
            "unacked_bytes": self.behaviour.unacked_bytes,
            "utterance_chars": self.behaviour.utterance_chars,
            "idle_timeout_ms": 60_000,
            "resume_ttl_ms": self.behaviour.resume_ttl_ms,
        }
        config = {
            "voice": first.voice or "fake",
            "format": first.format,
            "sample_rate": first.sample_rate,
            "max_lead_ms": first.max_lead_ms,
        }
        await self.send(s.Opened(self.name, "token", 0, 1, config, bounds, pre_skip))
        self.tasks = [asyncio.create_task(self.speak()), asyncio.create_task(self.beat())]
        await self.read(self.socket)

    async def resume(self, socket: ServerConnection, ask: c.Resume) -> None:
        """Goes on with another connection."""
        assert ask.generation_seen <= self.generation
        self.socket.transport.abort()
        async with self.sending:
            self.generation += 1
            self.socket = socket
            self.muted = False
            self.sent.clear()
            self.cursor, self.known = 0, ask
            for utterance in self.utterances:
                utterance.wire = hashlib.sha256()
            room = self.behaviour.window - self.unspoken
            await self.send(
                s.Resumed(self.generation, 0, ask.utterance, ask.next_sample, 0, "token", "stream", self.seq, room)
            )
        self.changed.set()
        await self.catch_up()
        await self.read(socket)

    async def catch_up(self) -> None:
        """Sends what was made and not yet sent on this connection."""
        async with self.sending:
            while self.cursor < len(self.log):
                item = self.log[self.cursor]
                self.cursor += 1
                if isinstance(item, AudioFrame):
                    if (item.utterance, item.end_sample) > (self.known.utterance, self.known.next_sample):
                        self.of(item.utterance).wire.update(item.payload)
                        await self.write(self.behaviour.change_frame(item).encode(self.generation))
                elif item.event > self.known.events_seen:
                    if isinstance(item, s.Done):
                        item = dataclasses.replace(item, wire_digest=self.of(item.utterance).wire.hexdigest())
                    await self.send(self.behaviour.change_event(item))

    async def read(self, socket: ServerConnection) -> None:
        """Takes what the client says, until its connection ends."""
        try:
            async for data in socket:
                await self.take(decode_client(data))
        finally:
            if not self.behaviour.resume_ttl_ms:
                self.end()

    def end(self) -> None:
        """The session is gone."""
        self.alive = False
        for task in self.tasks:
            task.cancel()

    def of(self, number: int) -> _Utterance:
        return next(utterance for utterance in self.utterances if utterance.number == number)

    async def take(self, message: c.ClientMessage) -> None:
        self.server.messages.append(message)
        if isinstance(message, c.Ack):
            self.sent = [item for item in self.sent if item[0] > (message.utterance, message.next_sample)]
            self.played = max(self.played, (message.utterance, message.played_sample))
            self.changed.set()
            return
        if not isinstance(message, c.NUMBERED):
            return
        if message.seq <= self.seq:
            return
        assert message.seq == self.seq + 1
        self.seq = message.seq
        unheard: list[_Utterance] = []
        match message:
            case c.Start():
                self.utterances.append(_Utterance(message.utterance))
                self.server.started.set()
            case c.Text():
                self.unspoken += len(message.text)
                assert self.unspoken <= self.behaviour.window, "the client overran the window"
                self.utterances[-1].text += message.text
                assert len(self.utterances[-1].text) <= self.behaviour.utterance_chars, "the utterance is too long"
            case c.Flush():
                self.utterances[-1].pieces.append(len(self.utterances[-1].text))
            case c.Silence():
                self.unspoken += 1  # a silence takes one character of the window
                assert self.unspoken <= self.behaviour.window, "the client overran the window"
                self.utterances[-1].pieces += [len(self.utterances[-1].text), ("silence", message.ms)]
            case c.End():
                self.utterances[-1].ended = True
            case c.Cancel() if not self.behaviour.ignore_cancel:
                for utterance in self.utterances:
                    if message.utterance in (None, utterance.number) and not utterance.cancelled:
                        unheard.extend([utterance] if utterance.done and not self.heard(utterance) else [])
                        utterance.cancelled = True
            case _:
                pass
        self.changed.set()
        await self.ack()
        for utterance in unheard:  # complete, but still being played
            text_end = (message.played_sample or 0) // SAMPLES_PER_CHARACTER  # type: ignore[union-attr]  # a cancel
            await self.emit(s.Cancelled(1, utterance.number, utterance.samples, text_end))

    def heard(self, utterance: _Utterance) -> bool:
        """Whether a finished utterance needs no cancelling any more."""
        return self.config.max_lead_ms is None or self.played >= (utterance.number, utterance.samples)

    async def ack(self) -> None:
        await self.send(s.SeqAck(self.seq, self.behaviour.window - self.unspoken))

    async def speak(self) -> None:
        number = 0
        while True:
            while number >= len(self.utterances):
                await self.wait()
            await self.say(self.utterances[number])
            number += 1

    async def say(self, utterance: _Utterance) -> None:
        while not utterance.cancelled:
            while utterance.pieces and isinstance(utterance.pieces[0], int) and utterance.pieces[0] <= utterance.spoken:
                utterance.pieces.pop(0)
            if utterance.pieces and isinstance(utterance.pieces[0], tuple):
                await self.silence(utterance, utterance.pieces.pop(0)[1])
            elif (end := self.next_cut(utterance)) is not None:
                await self.segment(utterance, end)
            elif utterance.ended:
                break
            else:
                await self.wait()
        if utterance.cancelled:
            await self.emit(s.Cancelled(1, utterance.number, utterance.samples, utterance.spoken))
            return
        if self.behaviour.silent_at_end:
            return
        if self.encoder is not None:
            await self.packets(utterance, self.encoder.finish(), FrameFlag.LAST)
        utterance.done = True
        await self.emit(
            s.Done(
                1, utterance.number, utterance.samples, utterance.digests.hexdigest(), utterance.wire.hexdigest(),
                {"segments": utterance.segments},
            )
        )  # fmt: skip
        if self.encoder is not None:
            self.encoder = OpusEncoder(self.config.sample_rate, 20, self.config.bitrate or limits.DEFAULT_BITRATE)

    def next_cut(self, utterance: _Utterance) -> int | None:
        rest = utterance.text[utterance.spoken :]
        for index, character in enumerate(rest):
            if character in "。.":
                return utterance.spoken + index + 1
        if utterance.pieces and isinstance(utterance.pieces[0], int):
            return int(utterance.pieces.pop(0))
        return len(utterance.text) if rest and utterance.ended else None

    async def segment(self, utterance: _Utterance, end: int) -> None:
        start, first = utterance.spoken, utterance.samples
        text = utterance.text[start:end]
        utterance.segments += 1
        pcm = speech_of(start, text)
        await self.emit(s.SegmentBegin(1, utterance.number, utterance.segments, start, end, first, "punctuation"))
        words = tuple(
            s.Word(
                x, start + i, start + i + 1, first + i * SAMPLES_PER_CHARACTER, first + (i + 1) * SAMPLES_PER_CHARACTER
            )
            for i, x in enumerate(text)
            if x.isalnum()
        )
        await self.emit(s.Timing(1, utterance.number, utterance.segments, words))
        await self.audio(utterance, pcm)
        digest = hashlib.sha256(pcm)
        utterance.digests.update(digest.digest())
        await self.emit(s.SegmentEnd(1, utterance.number, utterance.segments, len(pcm) // 2, digest.hexdigest()))
        utterance.spoken = end
        self.unspoken -= end - start
        await self.ack()

    async def silence(self, utterance: _Utterance, ms: int) -> None:
        count = ms * self.config.sample_rate // 1_000
        utterance.segments += 1
        first, at = utterance.samples, utterance.spoken
        await self.emit(s.SegmentBegin(1, utterance.number, utterance.segments, at, at, first, "flush", "silence"))
        if self.encoder is None:
            await self.frame(
                utterance, AudioFrame(Codec.PCM, utterance.number, first, count, b"", FrameFlag.SILENCE_RUN)
            )
            utterance.samples += count
        else:
            await self.audio(utterance, bytes(2 * count))
        digest = hashlib.sha256(bytes(2 * count))
        utterance.digests.update(digest.digest())
        await self.emit(s.SegmentEnd(1, utterance.number, utterance.segments, count, digest.hexdigest()))
        self.unspoken -= 1
        await self.ack()

    async def audio(self, utterance: _Utterance, pcm: bytes) -> None:
        for at in range(0, len(pcm), 2 * FRAME_SAMPLES):
            if utterance.cancelled:
                return
            part = pcm[at : at + 2 * FRAME_SAMPLES]
            if self.encoder is not None:
                utterance.samples += len(part) // 2
                await self.packets(utterance, self.encoder.push(part), FrameFlag.NONE)
                continue
            await self.frame(
                utterance, AudioFrame(Codec.PCM, utterance.number, utterance.samples, len(part) // 2, part)
            )
            utterance.samples += len(part) // 2

    async def packets(self, utterance: _Utterance, packets: list[bytes], flags: FrameFlag) -> None:
        if packets:
            count = len(packets) * self.encoder.samples_per_packet
            payload = pack_packets(packets)
            await self.frame(
                utterance, AudioFrame(Codec.OPUS, utterance.number, utterance.coded, count, payload, flags)
            )
            utterance.coded += count

    async def frame(self, utterance: _Utterance, frame: AudioFrame) -> None:
        behaviour = self.behaviour
        due = behaviour.fail_after is not None and utterance.frames >= behaviour.fail_after * (self.failures + 1)
        if due and behaviour.how is not None:
            self.failures += 1
            generation = self.generation
            await behaviour.how(self)
            while self.generation == generation:
                await self.wait()
        if behaviour.frame_delay_s:
            await asyncio.sleep(behaviour.frame_delay_s)
        while not utterance.cancelled and not self.may_send(utterance, frame):
            await self.wait()
        if utterance.cancelled:
            return
        utterance.frames += 1
        self.sent.append(((utterance.number, frame.end_sample), len(frame.payload)))
        self.peak_unacked = max(self.peak_unacked, sum(size for _, size in self.sent))
        self.log.append(frame)
        await self.catch_up()

    def may_send(self, utterance: _Utterance, frame: AudioFrame) -> bool:
        if self.sent and sum(size for _, size in self.sent) + len(frame.payload) > self.behaviour.unacked_bytes:
            return False
        if self.config.max_lead_ms is None:
            return True
        lead = frame.end_sample - (self.played[1] if self.played[0] == utterance.number else 0)
        if lead > self.config.max_lead_ms * self.config.sample_rate // 1_000:
            return False
        self.peak_lead = max(self.peak_lead, lead)
        return True

    async def emit(self, event: Any) -> None:
        self.event += 1
        self.log.append(dataclasses.replace(event, event=self.event))
        await self.catch_up()

    async def send(self, message: s.ServerMessage) -> None:
        await self.write(encode(message))

    async def write(self, data: str | bytes) -> None:
        try:
            if not self.muted:
                await self.socket.send(data)
        except ConnectionClosed:
            if not self.behaviour.resume_ttl_ms:
                raise

    async def beat(self) -> None:
        while not self.behaviour.no_heartbeat:
            await asyncio.sleep(limits.HEARTBEAT_S)
            await self.send(s.Heartbeat(self.event))

    async def wait(self) -> None:
        self.changed.clear()
        await self.changed.wait()


@asynccontextmanager
async def fake_server(behaviour: Behaviour | None = None) -> AsyncIterator[FakeServer]:
    """A server on a free port of this machine."""
    server = FakeServer("", behaviour or Behaviour())

    async def handle(socket: ServerConnection) -> None:
        server.connections += 1
        try:
            while True:
                first = decode_client(await socket.recv(decode=True))
                server.messages.append(first)
                if server.behaviour.hangs:
                    await socket.wait_closed()
                    return None
                if isinstance(first, c.Open):
                    session = FakeSession(server, socket, f"fake-{len(server.sessions)}")
                    server.sessions.append(session)
                    return await session.open(first)
                assert isinstance(first, c.Resume)
                kept = next((x for x in server.sessions if x.name == first.session and x.alive), None)
                answer = server.behaviour.resume_answer
                if kept is not None and answer is None:
                    return await kept.resume(socket, first)
                await socket.send(encode(answer or s.ResumeFailed("unknown")))
        except ConnectionClosed:
            return None

    def answer_http(_: ServerConnection, request: Request) -> Response | None:
        if server.behaviour.http_answer is not None:
            return server.behaviour.http_answer
        key = server.behaviour.api_key
        if key is not None and request.headers.get("Authorization") != f"Bearer {key}":
            return _response(HTTPStatus.UNAUTHORIZED, b"who are you?")
        if server.behaviour.refuses:
            return _response(HTTPStatus.SERVICE_UNAVAILABLE, b"full")
        if request.path == "/v1/voices":
            return _response(HTTPStatus.OK, json.dumps(VOICES).encode())
        if request.path != "/v1/stream":
            return _response(HTTPStatus.NOT_FOUND, b"no")
        return None

    async with serve(
        handle,
        "127.0.0.1",
        0,
        subprotocols=[Subprotocol(SUBPROTOCOL)],
        compression=None,
        process_request=answer_http,
    ) as listener:
        port = next(iter(listener.sockets)).getsockname()[1]
        server.url = f"ws://127.0.0.1:{port}"
        try:
            yield server
        finally:
            server.forget()


def _response(status: HTTPStatus, body: bytes) -> Response:
    headers = Headers({"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close"})
    return Response(status.value, status.phrase, headers, body)
