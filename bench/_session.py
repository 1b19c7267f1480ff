"""A thin session over a socket: what arrives is timed before anything else is done with it."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from protocol import SUBPROTOCOL
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_server, encode
from protocol.frames import AudioFrame, FrameFlag, decode_frame
from protocol.media.opus import timeline_sample
from server.engines.embedded.counting import MAX_TOKENS, count_tokens
from server.text.segmenter import Segmenter, SegmentLimits


@dataclass(slots=True)
class Heard:
    """An utterance as it came: audio frames with the moment their bytes were there (perf_counter), and its events."""

    frames: list[tuple[float, AudioFrame]] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)

    @property
    def first_audio(self) -> float:
        """When the first audio came."""
        return self.frames[0][0]


@dataclass(slots=True)
class Session:
    """Speaks one utterance after the other."""

    socket: ClientConnection
    pre_skip: int
    _seq: int = 0
    _utterance: int = 0

    async def send(self, kind: Callable[..., Any], **fields: Any) -> float:
        """A numbered message; returns the moment just before it went out."""
        self._seq += 1
        data = encode(kind(seq=self._seq, **fields))
        moment = time.perf_counter()
        await self.socket.send(data)
        return moment

    async def start(self) -> None:
        """The next utterance."""
        self._utterance += 1
        await self.send(c.Start, utterance=self._utterance)

    async def hear(self) -> Heard:
        """Everything up to `done`, acked as received and played; the last frame with `done`, which has its length."""
        heard = Heard()
        while True:
            data = await self.socket.recv()
            moment = time.perf_counter()
            if isinstance(data, bytes):
                frame = decode_frame(data)
                heard.frames.append((moment, frame))
                if not frame.flags & FrameFlag.LAST:
                    await self._ack(frame, timeline_sample(frame.end_sample, self.pre_skip))
                continue
            message = decode_server(data)
            if isinstance(message, s.Error):
                raise RuntimeError(f"{message.code}: {message.message}")
            if isinstance(message, s.EVENTS):
                heard.events.append(message)
            if isinstance(message, s.Done):
                if heard.frames:
                    await self._ack(heard.frames[-1][1], message.samples)
                return heard

    async def _ack(self, frame: AudioFrame, played: int) -> None:
        await self.socket.send(encode(c.Ack(1, frame.utterance, frame.end_sample, played)))


@asynccontextmanager
async def open_session(url: str, **options: Any) -> AsyncIterator[Session]:
    """A session that takes audio as fast as it comes; options are those of `open`."""
    async with connect(url, subprotocols=[Subprotocol(SUBPROTOCOL)], compression=None) as socket:
        await socket.send(encode(c.Open(**{"max_lead_ms": None, "max_buffer_delay_ms": None, **options})))
        answer = decode_server(await socket.recv())
        if not isinstance(answer, s.Opened):
            raise RuntimeError(f"the server did not open a session: {answer}")
        yield Session(socket, answer.pre_skip)


def deciding_positions(text: str) -> list[tuple[int, int]]:
    """For each cut of a text that ends without a flush: where it ends, and how many characters made it certain."""
    segmenter = Segmenter(limits=SegmentLimits(max_tokens=MAX_TOKENS, count_tokens=count_tokens))
    found = []
    for position, character in enumerate(text, 1):
        segmenter.feed(character)
        while (cut := segmenter.next()) is not None:
            found.append((cut.end, position))
    segmenter.end()
    while (cut := segmenter.next()) is not None:
        found.append((cut.end, len(text)))
    return found


def deciding_position(text: str) -> int | None:
    """How many characters of `text` make the first cut certain; None: only a flush or the end does."""
    end, position = deciding_positions(text + "\0")[0]
    return position if end <= len(text) and position <= len(text) else None
