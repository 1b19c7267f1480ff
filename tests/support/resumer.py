"""A bare client that comes back by hand: every `resume` says exactly what the test wants it to say."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from websockets.asyncio.client import connect

from protocol import SUBPROTOCOL
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.frames import AudioFrame, FrameFlag
from tests.support.server import BareClient

M = TypeVar("M")
EVERYTHING = c.Open(max_lead_ms=None, max_buffer_delay_ms=None)


@dataclass
class Resumer:
    """One session over any number of connections. It keeps PCM and checks that it has neither gap nor repeat."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)  # of websockets' connect
    subprotocols: tuple[str, ...] = ()  # offered beside ours
    client: BareClient = field(init=False)
    state: c.Resume = field(default_factory=lambda: c.Resume("", "", 0, 0, 0, 0, 0))
    pcm: bytearray = field(default_factory=bytearray)  # of the utterance that is spoken
    events: list[s.Event] = field(default_factory=list)
    seq: int = 0
    acks: bool = True  # every frame, as received; without, the server soon waits

    async def dial(self) -> BareClient:
        """A further connection that has said nothing yet."""
        socket = await connect(
            self.url, subprotocols=[SUBPROTOCOL, *self.subprotocols], compression=None, **self.options  # type: ignore[list-item]  # a NewType of str
        )  # fmt: skip
        self.client = BareClient(socket, self.seq)
        return self.client

    async def open(self, message: c.Open = EVERYTHING) -> s.Opened:
        """A new session."""
        await self.dial()
        await self.client.send(message)
        opened = await self.client.receive()
        assert isinstance(opened, s.Opened)
        self.state = c.Resume(opened.session, opened.token, opened.epoch, opened.generation, 0, 0, 0)
        return opened

    async def say(self, utterance: int, text: str) -> None:
        """A whole utterance."""
        await self.client.say(utterance, text)
        self.seq = self.client.seq

    async def receive(self, timeout: float = 5.0) -> Any:
        """The next message or frame, taken into account."""
        item = await self.client.receive(timeout)
        if isinstance(item, AudioFrame):
            if item.utterance != self.state.utterance:
                self.pcm.clear()
                self.state = replace(self.state, utterance=item.utterance, next_sample=0)
            assert item.generation == self.state.generation_seen
            assert item.first_sample == self.state.next_sample, "a gap or a repeat"
            silent = item.flags & FrameFlag.SILENCE_RUN
            self.pcm += bytes(2 * item.count) if silent else bytes(item.payload)
            self.state = replace(self.state, next_sample=item.end_sample)
            if self.acks:
                await self.ack()
        elif isinstance(item, s.EVENTS):
            assert item.event == self.state.events_seen + 1, "an event is missing or came twice"
            self.events.append(item)
            self.state = replace(self.state, events_seen=item.event)
        return item

    async def until(self, cls: type[M], timeout: float = 5.0) -> M:
        """Receive until such a message comes."""
        while True:
            item = await self.receive(timeout)
            if isinstance(item, cls):
                return item

    async def until_bytes(self, count: int) -> None:
        """Receive until so many bytes of audio are here."""
        while len(self.pcm) < count:
            await self.receive()

    async def ack(self, **changes: Any) -> None:
        """What arrived."""
        state = self.state
        ack = c.Ack(state.generation_seen, state.utterance, state.next_sample, event=state.events_seen)
        await self.client.send(replace(ack, **changes))

    def abort(self) -> None:
        """The connection dies."""
        self.client.socket.transport.abort()

    async def ask(self, **changes: Any) -> s.Resumed | s.ResumeFailed:
        """A further connection that asks for the session; the answer. What it asks is not what the test has."""
        await self.dial()
        return await self.ask_here(**changes)

    async def ask_here(self, **changes: Any) -> s.Resumed | s.ResumeFailed:
        """The same on the connection that is there."""
        await self.client.send(replace(self.state, **changes))
        answer = await self.client.receive()
        assert isinstance(answer, s.Resumed | s.ResumeFailed)
        return answer

    async def resume(self, **changes: Any) -> s.Resumed:
        """Come back."""
        resumed = await self.ask(**changes)
        assert isinstance(resumed, s.Resumed), resumed
        self.accept(resumed)
        return resumed

    def accept(self, resumed: s.Resumed) -> None:
        """From here on the session goes by this answer."""
        self.state = replace(
            self.state, token=resumed.new_token, epoch=resumed.epoch, generation_seen=resumed.generation
        )

    async def refused(self, **changes: Any) -> s.ResumeFailed:
        """A further connection that must not get the session; it is closed again."""
        client, seq = self.client, self.seq
        failed = await self.ask(**changes)
        assert isinstance(failed, s.ResumeFailed), failed
        await self.client.socket.close()
        self.client, self.seq = client, seq
        return failed

    async def close(self) -> None:
        """Give the session up."""
        await self.client.socket.close()


@asynccontextmanager
async def resumer(url: str, open_: c.Open = EVERYTHING, **options: Any) -> AsyncIterator[Resumer]:
    """An open session, given up in the end."""
    found = Resumer(url, options)
    await found.open(open_)
    try:
        yield found
    finally:
        await found.close()
