"""One session of the load generator: writes like a language model, listens in real time, and keeps what a user notices.

It speaks the protocol by hand, because two cores carry server and load: text that it does not need is not parsed, audio
is counted and not looked at (what arrives is checked by the tests, not here).
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from bench._light_socket import BINARY, LightSocket
from bench._load_player import Player, Underrun
from protocol import client_messages as c
from protocol.codec import encode
from protocol.frames import HEADER
from protocol.limits import ACK_BYTES, ACK_INTERVAL_S, ACK_TIMER_S

RATE: Final = 24_000
PATIENCE_S: Final = 30.0  # nothing came for so long: the session is taken for dead
TEXT_MARGIN_S: Final = 0.1  # what the server may take from the deciding token to sound, as in bench.live_text


class Refused(Exception):
    """The server was busy; it said so at `moment`."""

    def __init__(self, retry_after_s: float, moment: float) -> None:
        super().__init__(f"busy, retry after {retry_after_s:g} s")
        self.retry_after_s = retry_after_s
        self.moment = moment


@dataclass(frozen=True, slots=True)
class Script:
    """A text to speak and how it is written.

    `tokens` go out `at` seconds after the first; `cuts`: for each segment, where it ends and which token made that
    certain (the last one stands for the end of the text, too).
    """

    text: str
    tokens: tuple[str, ...]
    at: tuple[float, ...]
    cuts: tuple[tuple[int, int], ...]

    @property
    def decides(self) -> int:
        """The token that made the first cut certain."""
        return self.cuts[0][1]


@dataclass(slots=True)
class Spoken:
    """One utterance as its listener had it. NaN: it was not heard."""

    script: int
    at_s: float  # since the load began
    first_ms: float = float("nan")  # first audio, from the token that made the first cut certain
    from_start_ms: float = float("nan")  # ... from the first token
    waited_ms: float = 0.0  # it was not heard yet when the load ended: from the deciding token until then
    audio_s: float = 0.0
    holes: list[float] = field(default_factory=list)  # underruns, seconds: text was ready, its sound was not
    waits: list[float] = field(default_factory=list)  # the same while the writer was late
    complete: bool = False


@dataclass(slots=True)
class _Turn:
    """What is known about the utterance in hand."""

    script: Script
    spoken: Spoken
    player: Player
    sent: list[float] = field(default_factory=list)  # when each token went out
    segments: list[tuple[int, int]] = field(default_factory=list)  # first sample, end of the text
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def finish(self, now: float) -> None:
        """Sort the underruns by who was late."""
        self.player.stop(now)
        spoken = self.spoken
        spoken.audio_s = self.player.received / RATE
        if self.sent and spoken.first_ms != spoken.first_ms and len(self.sent) > self.script.decides:
            spoken.waited_ms = 1000 * (now - self.sent[self.script.decides])
        for hole in self.player.underruns:
            (spoken.waits if self._writer_was_late(hole) else spoken.holes).append(hole.length_s)

    def _writer_was_late(self, hole: Underrun) -> bool:
        """Whether what came after the hole was only certain when it began."""
        ends = [end for first, end in self.segments if first == hole.sample]
        if not ends:
            segment_open = any(first > hole.sample for first, _ in self.segments)
            return not segment_open and len(self.sent) < len(self.script.tokens)
        token = next((token for end, token in self.script.cuts if end == ends[-1]), 0)
        return token >= len(self.sent) or self.sent[token] > hole.moment - TEXT_MARGIN_S


class Talker:
    """A session with our server. `plays`: it listens in real time; else it collects audio as fast as it comes."""

    def __init__(self, begun: float, *, plays: bool, options: Mapping[str, Any]) -> None:
        self.begun = begun
        self.samples = 0  # of all utterances
        self.failure = ""
        self._plays = plays
        self._options = options
        self._opened = asyncio.get_running_loop().create_future()
        self._socket: LightSocket | None = None
        self._seq = self._utterance = self._event = 0
        self._turn: _Turn | None = None
        self._acked_at = 0.0
        self._unacked = 0
        self._timer: asyncio.TimerHandle | None = None
        self._gone = False
        self._refused: Refused | None = None

    async def open(self, port: int) -> None:
        """Raises Refused or OSError."""
        self._socket = await LightSocket.connect(port, self._take)
        self._socket.ended.add_done_callback(lambda _: self._lost())
        options = {} if self._plays else {"max_lead_ms": None}
        self._socket.send(encode(c.Open(**{**options, "max_buffer_delay_ms": None, **self._options})))
        async with asyncio.timeout(PATIENCE_S):
            await self._opened

    def begin(self, script: Script, number: int) -> Spoken:
        """The next utterance; what is returned fills while it is spoken."""
        self._turn = _Turn(script, Spoken(number, time.perf_counter() - self.begun), Player(RATE))
        self._utterance += 1
        self._send(c.Start, utterance=self._utterance)
        return self._turn.spoken

    async def speak(self, leave_after_s: float | None = None) -> None:
        """Write it, and listen until it was played (or, for a collector, has arrived).

        `leave_after_s`: the listener interrupts so long after the first audio. Raises Refused, OSError, TimeoutError.
        """
        turn = self._turn
        assert turn is not None
        try:
            self._tick()
            if leave_after_s is None:
                await self._write(turn)
                async with asyncio.timeout(PATIENCE_S + len(turn.script.text)):
                    await self._listen(turn)
            else:
                await self._interrupt(turn, leave_after_s)
        finally:
            self._turn = None
            if self._timer is not None:
                self._timer.cancel()
            turn.finish(time.perf_counter())

    async def _write(self, turn: _Turn) -> None:
        begun = time.perf_counter()
        for token, at in zip(turn.script.tokens, turn.script.at, strict=True):
            if (wait := begun + at - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            self._check()
            turn.sent.append(time.perf_counter())
            self._send(c.Text, text=token)
        self._send(c.End)

    async def _listen(self, turn: _Turn) -> None:
        await turn.done.wait()
        self._check()
        ends = turn.player.ends()
        if self._plays and ends is not None:
            await asyncio.sleep(max(0.0, ends - time.perf_counter()))
        self._ack(time.perf_counter())

    async def _interrupt(self, turn: _Turn, leave_after_s: float) -> None:
        writing = asyncio.ensure_future(self._write(turn))
        try:
            async with asyncio.timeout(PATIENCE_S):
                await turn.heard.wait()
                await asyncio.sleep(leave_after_s)
                writing.cancel()
                self._check()
                self._send(c.Cancel, utterance=self._utterance, played_sample=turn.player.played(time.perf_counter()))
                await turn.done.wait()
                self._check()
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def heard(self) -> None:
        """Until the first audio of the utterance in hand is there. Raises what ended the session before."""
        assert self._turn is not None
        await self._turn.heard.wait()
        self._check()

    def close(self, *, abort: bool = False) -> None:
        """Leave in order, or without a word."""
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None and not self._gone:
            if abort:
                self._socket.abort()
            else:
                self._socket.close()

    def _send(self, kind: Any, **fields: Any) -> None:
        self._check()
        self._seq += 1
        assert self._socket is not None
        self._socket.send(encode(kind(seq=self._seq, **fields)))

    def _take(self, opcode: int, payload: bytes) -> None:
        now = time.perf_counter()
        if opcode == BINARY:
            self._audio(payload, now)
        elif payload.startswith((b'{"type":"seq_ack"', b'{"type":"timing"', b'{"type":"segment_end"')):
            return
        else:
            self._message(orjson.loads(payload), now)

    def _audio(self, payload: bytes, now: float) -> None:
        _, _, _, _, utterance, first, count, _ = HEADER.unpack_from(payload)
        turn = self._turn
        self.samples += count
        if turn is None or utterance != self._utterance or not count:
            return
        if turn.spoken.first_ms != turn.spoken.first_ms:
            decided = turn.sent[min(turn.script.decides, len(turn.sent) - 1)]
            turn.spoken.first_ms = 1000 * (now - decided)
            turn.spoken.from_start_ms = 1000 * (now - turn.sent[0])
            turn.heard.set()
        turn.player.arrived(now, first + count)
        self._unacked += len(payload)
        if now - self._acked_at >= ACK_INTERVAL_S or self._unacked >= ACK_BYTES:
            self._ack(now)

    def _message(self, message: dict[str, Any], now: float) -> None:
        self._event = max(self._event, message.get("event", 0))
        kind, turn = message["type"], self._turn
        if kind == "opened":
            self._opened.set_result(None)
        elif kind == "segment_begin":
            if turn is not None:
                turn.segments.append((message["first_sample"], message["end"]))
        elif kind in ("done", "cancelled"):
            if turn is not None and message["utterance"] == self._utterance:
                turn.spoken.complete = kind == "done"
                turn.player.completed(now)
                turn.done.set()
        elif kind == "busy":
            self._refused = Refused(message["retry_after_ms"] / 1000, now)
            self._end(self._refused)
        elif kind == "error":
            self.failure = f"{message['code']}: {message['message']}"

    def _lost(self) -> None:
        self._end(ConnectionResetError(self.failure or "the server closed"))

    def _end(self, error: Exception) -> None:
        self._gone = True
        if not self._opened.done():
            self._opened.set_exception(error)
        if self._turn is not None:
            self._turn.heard.set()
            self._turn.done.set()

    def _check(self) -> None:
        """Raises what ended the session, if anything did."""
        if self._refused is not None:
            raise self._refused
        if self._gone:
            raise ConnectionResetError(self.failure or "the server closed")

    def _tick(self) -> None:
        now = time.perf_counter()
        if now - self._acked_at >= ACK_TIMER_S:
            self._ack(now)
        self._timer = asyncio.get_running_loop().call_later(ACK_TIMER_S, self._tick)

    def _ack(self, now: float) -> None:
        turn = self._turn
        if turn is None or not turn.player.received or self._gone:
            return
        player = turn.player
        self._acked_at, self._unacked = now, 0
        played = player.played(now) if self._plays else player.received
        buffered = (player.received - played) * 1000 // RATE
        assert self._socket is not None
        self._socket.send(
            f'{{"type":"ack","generation":1,"utterance":{self._utterance},"next_sample":{player.received},'
            f'"played_sample":{played},"buffered_ms":{buffered},"stalls":{len(player.underruns)},'
            f'"event":{self._event}}}'
        )
