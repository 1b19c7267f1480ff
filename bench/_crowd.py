"""Many sessions, as light as can be: idle ones, and ones that play a stream in real time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from bench._light_socket import BINARY, LightSocket
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.codec import decode_server, encode
from protocol.frames import HEADER
from protocol.limits import ACK_INTERVAL_S, ACK_TIMER_S

RATE: Final = 24_000
AT_ONCE: Final = 50  # sessions opened side by side
PATIENCE_S: Final = 60.0
UTTERANCE: Final = "在这条安静的街道上，每天早晨都能听见鸟叫。" * 80  # 200 s: more than is played


@dataclass(slots=True)
class Heard:
    """What players of a crowd have heard so far."""

    streams: int = 0  # that play
    audio_s: float = 0.0
    underruns: int = 0
    silence_s: float = 0.0  # all of them
    failed: list[str] = field(default_factory=list)


class Member:
    """One session. `opened` is done when it is open."""

    def __init__(self) -> None:
        self.opened: asyncio.Future[s.Opened] = asyncio.get_running_loop().create_future()
        self.socket: LightSocket
        self.event = 0  # the last that came
        self.failure = ""

    async def open(self, port: int, **options: Any) -> None:
        """Options are those of `open`. Raises OSError or RuntimeError where there is no session."""
        self.socket = await LightSocket.connect(port, self._take)
        self.socket.send(encode(c.Open(**options)))
        await asyncio.wait((self.opened, self.socket.ended), return_when=asyncio.FIRST_COMPLETED)
        if not self.opened.done():
            raise RuntimeError(f"the server did not open a session: {self.failure or self.socket.ended.result()}")

    def _take(self, opcode: int, payload: bytes) -> None:
        if opcode == BINARY:
            self._audio(payload)
            return
        message = decode_server(payload)
        self.event = max(self.event, getattr(message, "event", 0))
        match message:
            case s.Opened() as opened:
                self.opened.set_result(opened)
            case s.Error() as error:
                self.failure = f"{error.code}: {error.message}"
            case s.Busy():
                self.failure = "busy"

    def _audio(self, payload: bytes) -> None:
        raise AssertionError("nobody asked for audio")

    def end(self) -> None:
        """Leave in order."""
        self.socket.close()


class Player(Member):
    """Plays one long utterance from the moment its first audio came, without a buffer before that, and acks as often as
    the client library does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.underruns = 0
        self.silence_s = 0.0
        self.received = 0  # samples
        self._loop = asyncio.get_running_loop()
        self._played_at: float | None = None  # when sample 0 would have been played, had there been no gap
        self._acked_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def play(self, port: int, text: str, **options: Any) -> None:
        """Open, and begin to speak."""
        await self.open(port, **options)
        self.socket.send(encode(c.Start(1, 1)))
        for seq, at in enumerate(range(0, len(text), 8_000), 2):
            self.socket.send(encode(c.Text(seq, text[at : at + 8_000])))
        self._acked_at = self._loop.time()
        self._tick()

    def _audio(self, payload: bytes) -> None:
        now = self._loop.time()
        _, _, _, _, _, first, count, _ = HEADER.unpack_from(payload)
        if first != self.received:
            self.failure = f"sample {first} came after {self.received}"
        if self._played_at is None:
            self._played_at = now
        late = now - (self._played_at + self.received / RATE)
        if late > 0:
            self.underruns += 1
            self.silence_s += late
            self._played_at += late
        self.received = first + count
        if now - self._acked_at >= ACK_INTERVAL_S:
            self._ack(now)

    def _tick(self) -> None:
        now = self._loop.time()
        if now - self._acked_at >= ACK_TIMER_S:
            self._ack(now)
        if not self.socket.ended.done():
            self._timer = self._loop.call_at(self._acked_at + ACK_TIMER_S, self._tick)

    def _ack(self, now: float) -> None:
        self._acked_at = now
        if self._played_at is not None:
            played = min(self.received, int((now - self._played_at) * RATE))
            buffered_ms = (self.received - played) * 1_000 // RATE
            self.socket.send(encode(c.Ack(1, 1, self.received, played, buffered_ms, event=self.event)))

    def end(self) -> None:
        """Leave in order."""
        if self._timer is not None:
            self._timer.cancel()
        super().end()


class Crowd:
    """What can be asked of the process (see `bench._helper`)."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.players: list[Player] = []

    async def idle(self, port: int, count: int) -> int:
        """Open sessions that say nothing more; how many there are."""
        members = [Member() for _ in range(count)]
        await _each(members, lambda member: member.open(port))
        self.members += members
        return len(self.members)

    async def play(self, port: int, count: int, spread_s: float, options: dict[str, Any]) -> int:
        """Open streams, spread over a while as independent ones are."""
        for _ in range(count):
            player = Player()
            await player.play(port, UTTERANCE, **options)
            self.players.append(player)
            await asyncio.sleep(spread_s / count)
        return len(self.players)

    async def heard(self) -> Heard:
        """What the players have heard."""
        return Heard(
            streams=sum(not each.socket.ended.done() for each in self.players),
            audio_s=sum(each.received for each in self.players) / RATE,
            underruns=sum(each.underruns for each in self.players),
            silence_s=sum(each.silence_s for each in self.players),
            failed=[each.failure for each in self.players if each.failure],
        )

    async def leave(self) -> int:
        """All of them leave in order; how many sessions had ended before."""
        everyone = [*self.members, *self.players]
        lost = sum(each.socket.ended.done() for each in everyone)
        for each in everyone:
            each.end()
        if everyone:
            await asyncio.wait([each.socket.ended for each in everyone], timeout=PATIENCE_S)
        self.members, self.players = [], []
        return lost


async def _each(members: list[Member], work: Callable[[Member], Any]) -> None:
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(member: Member) -> None:
        async with limit:
            await work(member)

    await asyncio.gather(*map(one, members))
