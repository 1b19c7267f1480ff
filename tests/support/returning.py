"""A bare client that comes back: it remembers what it has over all of its connections, and checks that it fits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from protocol import SUBPROTOCOL
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_server, encode
from protocol.frames import AudioFrame, FrameFlag, decode_frame

M = TypeVar("M")
_sockets: list[ClientConnection] = []  # of all clients, also those that were left behind


async def cut_all() -> None:
    """Every connection of every client."""
    for socket in _sockets:
        socket.transport.abort()
        await socket.wait_closed()
    _sockets.clear()


@dataclass
class Returning:
    """One PCM session. `socket` is the connection of now."""

    url: str
    socket: ClientConnection | None = None
    opened: s.Opened | None = None
    token: str = ""
    epoch: int = 0
    generation: int = 1
    seq: int = 0
    place: tuple[int, int] = (0, 0)
    event: int = 0
    pcm: dict[int, bytearray] = field(default_factory=dict)
    messages: list[Any] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    async def connect(self) -> None:
        """A new connection; the one before is left as it is."""
        self.socket = await connect(
            self.url,
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]  # a NewType of str
            compression=None,
            additional_headers=self.headers,
        )
        _sockets.append(self.socket)

    async def open(self, **fields: Any) -> s.Opened:
        """Begin the session."""
        await self.connect()
        await self.send(c.Open(**fields))
        self.opened = await self.until(s.Opened)
        self.token, self.epoch = self.opened.token, self.opened.epoch
        return self.opened

    def asks(self, **changes: Any) -> c.Resume:
        """The `resume` of one who has this much."""
        assert self.opened is not None
        fields: dict[str, Any] = {
            "session": self.opened.session, "token": self.token, "epoch": self.epoch,
            "generation_seen": self.generation, "utterance": self.place[0], "next_sample": self.place[1],
            "events_seen": self.event,
        }  # fmt: skip
        return c.Resume(**{**fields, **changes})

    async def resume(self, **changes: Any) -> s.Resumed | s.ResumeFailed:
        """Come back on a new connection."""
        await self.connect()
        return await self.ask(**changes)

    async def ask(self, **changes: Any) -> s.Resumed | s.ResumeFailed:
        """Ask for the session on the connection of now."""
        await self.send(self.asks(**changes))
        while True:
            answer = await self.receive()
            if isinstance(answer, s.Resumed | s.ResumeFailed):
                return answer

    async def send(self, message: c.ClientMessage) -> None:
        assert self.socket is not None
        await self.socket.send(encode(message))

    async def numbered(self, cls: type[Any], **fields: Any) -> None:
        self.seq += 1
        await self.send(cls(seq=self.seq, **fields))

    async def say(self, utterance: int, text: str) -> None:
        """start, text, end."""
        await self.numbered(c.Start, utterance=utterance)
        await self.numbered(c.Text, text=text)
        await self.numbered(c.End)

    async def receive(self, timeout: float = 5.0) -> Any:
        """The next message or frame."""
        assert self.socket is not None
        async with asyncio.timeout(timeout):
            data = await self.socket.recv()
        item = decode_frame(data) if isinstance(data, bytes) else decode_server(data)
        if isinstance(item, AudioFrame):
            self._audio(item)
            return item
        self.messages.append(item)
        if isinstance(item, s.Resumed):
            self.token, self.generation, self.epoch = item.new_token, item.generation, item.epoch
        elif isinstance(item, s.EVENTS):
            assert item.event == self.event + 1
            self.event = item.event
        return item

    def _audio(self, frame: AudioFrame) -> None:
        assert frame.generation == self.generation
        assert frame.first_sample == (self.place[1] if frame.utterance == self.place[0] else 0)
        silent = frame.flags & FrameFlag.SILENCE_RUN
        self.pcm.setdefault(frame.utterance, bytearray()).extend(bytes(2 * frame.count) if silent else frame.payload)
        self.place = (frame.utterance, frame.end_sample)

    async def ack(self, *, played: bool = True) -> None:
        """Confirm all that is here."""
        await self.send(c.Ack(self.generation, *self.place, self.place[1] if played else 0, event=self.event))

    async def until(self, cls: type[M], *, acks: bool = True) -> M:
        """Receive until one of these comes."""
        while True:
            item = await self.receive()
            if acks and isinstance(item, AudioFrame | s.Done) and self.place[0]:
                await self.ack()
            if isinstance(item, cls):
                return item

    async def samples(self, count: int) -> None:
        """Receive so many more, and ack nothing."""
        end = self.place[1] + count
        while self.place[1] < end:
            await self.receive()

    def vanish(self) -> None:
        """The connection is gone without a word."""
        assert self.socket is not None
        self.socket.transport.abort()

    async def closed(self) -> int | None:
        """Read to the end of the connection: the close code, None for an end without one."""
        with_close: int | None = None
        try:
            while True:
                await self.receive()
        except ConnectionClosed as over:
            with_close = over.rcvd.code if over.rcvd is not None else None
        return with_close


@asynccontextmanager
async def returning(url: str, key: str | None = None, **fields: Any) -> AsyncIterator[Returning]:
    """One whose session is open; its last connection is cut at the end."""
    client = Returning(url, headers={"Authorization": f"Bearer {key}"} if key else {})
    await client.open(**{"max_lead_ms": None, **fields})
    try:
        yield client
    finally:
        client.vanish()
