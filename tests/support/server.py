"""A real server inside the test's event loop, and a bare client that speaks the protocol message by message."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection, connect

from protocol import SUBPROTOCOL
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_server, encode
from protocol.frames import AudioFrame, FrameFlag, decode_frame
from protocol.media.opus import timeline_sample
from server.app import Server
from server.settings import Settings

M = TypeVar("M")


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Server]:
    """A started server on a free loopback port. Settings as in `server.settings`; the engine is `tone` by default, no
    other one stands behind it, and audio cache and dead letters are off.
    """
    defaults = {
        "port": 0, "engine": "tone", "fallback_engine": "none", "drain_timeout_s": 0.2, "dead_letters": "off",
        "audio_cache_mb": 0,
    }  # fmt: skip
    server = Server(Settings(**{**defaults, **settings}))
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def running_server(**settings: Any) -> AsyncIterator[str]:
    """As `running`, but gives the WebSocket URL."""
    async with running(**settings) as server:
        yield url_of(server)


def url_of(server: Server) -> str:
    """ws://127.0.0.1:PORT/v1/stream"""
    assert server.listener is not None
    return f"ws://127.0.0.1:{server.listener.port}/v1/stream"


def http_of(server: Server) -> str:
    """http://127.0.0.1:PORT"""
    assert server.listener is not None
    return f"http://127.0.0.1:{server.listener.port}"


@dataclass
class BareClient:
    """Sends and receives single messages; acks only when told to."""

    socket: ClientConnection
    seq: int = 0
    messages: list[Any] = field(default_factory=list)
    frames: list[AudioFrame] = field(default_factory=list)

    async def send(self, message: c.ClientMessage) -> None:
        await self.socket.send(encode(message))

    async def numbered(self, cls: type[Any], **fields: Any) -> None:
        self.seq += 1
        await self.send(cls(seq=self.seq, **fields))

    async def say(self, utterance: int, text: str) -> None:
        await self.numbered(c.Start, utterance=utterance)
        await self.numbered(c.Text, text=text)
        await self.numbered(c.End)

    async def receive(self, timeout: float = 10.0) -> Any:
        """The next message or frame."""
        async with asyncio.timeout(timeout):
            data = await self.socket.recv()
        item = decode_frame(data) if isinstance(data, bytes) else decode_server(data)
        if isinstance(item, AudioFrame):
            self.frames.append(item)
        else:
            self.messages.append(item)
        return item

    async def until(self, cls: type[M], *, acks: bool = True, timeout: float = 10.0) -> M:
        """Receive until a message of this type comes, acking audio as received and played.

        The last frame is acked with `done`, which tells how much of it is audio.
        """
        while True:
            item = await self.receive(timeout)
            if acks and isinstance(item, AudioFrame | s.Done):
                await self._ack(item)
            if isinstance(item, cls):
                return item

    async def _ack(self, item: AudioFrame | s.Done) -> None:
        pre_skip = next((message.pre_skip for message in self.messages if isinstance(message, s.Opened)), 0)
        if isinstance(item, s.Done):
            ends = [frame.end_sample for frame in self.frames if frame.utterance == item.utterance]
            if ends:
                await self.send(c.Ack(1, item.utterance, ends[-1], item.samples))
        elif not item.flags & FrameFlag.LAST:
            await self.send(c.Ack(1, item.utterance, item.end_sample, timeline_sample(item.end_sample, pre_skip)))

    def pcm(self, utterance: int) -> bytes:
        """The utterance's samples so far."""
        parts = []
        at = 0
        for frame in self.frames:
            if frame.utterance == utterance:
                assert frame.first_sample == at, "a gap or a repeat"
                at = frame.end_sample
                parts.append(bytes(2 * frame.count) if frame.flags & FrameFlag.SILENCE_RUN else bytes(frame.payload))
        return b"".join(parts)


@asynccontextmanager
async def bare_client(url: str, *, open: c.Open | None = None, **options: Any) -> AsyncIterator[BareClient]:
    """A connected client; with `open` it has sent that and received `opened`."""
    async with connect(url, subprotocols=[SUBPROTOCOL], compression=None, **options) as socket:  # type: ignore[list-item]  # a NewType of str
        client = BareClient(socket)
        if open is not None:
            await client.send(open)
            assert isinstance(await client.receive(), s.Opened)
        yield client
