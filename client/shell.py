"""An open session: the shell that gives `SessionState` its sockets, its clock and its consumers."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from time import monotonic  # uvloop's own clock only counts milliseconds
from types import TracebackType
from typing import Any, Final, Self

from client.effects import Adopt, Connect, Deliver, Drop, Effect, Failed, Finished, Notice, RoomGrew, Send, SendOn
from client.errors import ClientError, ServerLost
from client.handshake import CLOSE_TIMEOUT_S
from client.items import Audio
from client.line import LineStatistics
from client.saved import SavedSession, Sent
from client.session import SessionState
from client.speaking import spoken
from client.tracking import REMEMBERED
from client.utterance import Utterance
from client.wire import Socket
from client.wires import Wires
from protocol.client_messages import Start
from protocol.server_messages import Event, Resumed

UNACKED_MESSAGES: Final = 16_384  # not confirmed by the server before writers wait, during an outage too


class Session:
    """An open session. Utterances are spoken one after the other; several may be started ahead."""

    def __init__(
        self,
        socket: Socket,
        state: SessionState,
        decode: bool,
        reopen: Callable[[], Awaitable[Socket]],
        on_notice: Callable[[str], None] | None,
        *,
        confirms: bool = False,
    ) -> None:
        self._state = state
        self._decode = decode
        self.confirms = confirms  # consumers say what is safe; else what they took counts as that
        self._on_notice = on_notice
        self._loop = asyncio.get_running_loop()
        self._utterances: dict[int, Utterance] = {}  # unfinished
        self._over: deque[Utterance] = deque(maxlen=REMEMBERED)  # finished; the last of them may still be playing
        self._changed = asyncio.Event()  # room, outbox, finished utterances or failure
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._writing = asyncio.Lock()
        self._newest = 0
        self._closed = False
        self._wires = Wires(state, socket, reopen, self._do, self._changed.set)

    @property
    def config(self) -> Mapping[str, Any]:
        """What the server accepted."""
        return self._state.opened.config

    @property
    def limits(self) -> Mapping[str, Any]:
        """The server's bounds."""
        return self._state.opened.limits

    @property
    def sample_rate(self) -> int:
        """Hz, of every sample number of this session."""
        return self._state.sample_rate

    @property
    def pre_skip(self) -> int:
        """Coded samples before the timeline's first one (Opus)."""
        return self._state.pre_skip

    @property
    def credentials(self) -> tuple[str, str, int, int]:
        """Its name, the token, epoch and generation: what another process needs to come back to it."""
        return self._state.credentials

    @property
    def next_seq(self) -> int:
        """The number of the next message that has one."""
        return self._state.window.seq + 1

    @property
    def line(self) -> LineStatistics:
        """Measurements of its connections: resumes, outages, modes."""
        return self._state.line

    @property
    def failure(self) -> ClientError | None:
        """Why the session is over; None while it lives."""
        return self._state.failure

    async def start(
        self,
        *,
        voice: str | None = None,
        speed: float | None = None,
        pitch: float | None = None,
        volume: float | None = None,
        seed: int = 0,
        instruct: str = "",
        lexicon: Mapping[str, str] | None = None,
    ) -> Utterance:
        """Begins an utterance; None keeps the session's value. Waits while the server's queue is full.

        Raises RuntimeError when the one before was neither ended nor cancelled.
        """
        message = Start(0, 1, voice, speed, pitch, volume, seed, instruct, lexicon)
        async with self._writing:
            before = self._utterances.get(self._newest)
            if before is not None and not before._closed:
                raise RuntimeError(f"utterance {before.number} takes text: end or cancel it first")
            await self._until(lambda: self._state.unfinished < self._state.max_queued)
            effects = self._state.start(message, monotonic())
            number = self._newest = self._state.newest
            statistics = self._state.statistics(number)
            assert statistics is not None
            utterance = self._utterances[number] = Utterance(self, number, statistics, self._decode)
            self._do(effects)
            return utterance

    def come_back(self, saved: SavedSession, message: Resumed) -> tuple[Utterance, Sent]:
        """The utterance that another process began, and what the server has of its text.

        Raises ServerMisbehaved, SessionGone.
        """
        effects = self._state.come_back(saved, message, monotonic())
        statistics = self._state.statistics(saved.utterance)
        sent = saved.blocks.with_server(message.seq)
        assert statistics is not None
        assert sent is not None
        utterance = Utterance(self, saved.utterance, statistics, self._decode)
        utterance._closed = sent.ended
        self._newest, self._utterances[saved.utterance] = saved.utterance, utterance
        self._do(effects)
        return utterance, sent

    async def speak(
        self,
        text: str | Iterable[str] | AsyncIterable[str],
        *,
        on_event: Callable[[Event], None] | None = None,
        **overrides: Any,
    ) -> AsyncGenerator[Audio, None]:
        """Speaks a text, or pieces of text as they come, and yields the audio. `overrides` are those of `start`.

        Leaving the iteration early cancels the utterance.
        """
        async with aclosing(spoken(await self.start(**overrides), text, on_event)) as sound:
            async for audio in sound:
                yield audio

    async def cancel(self) -> None:
        """Stops every utterance that is unfinished, or not yet heard to its end."""
        for utterance in [*self._over, *self._utterances.values()]:
            utterance.cancel_now()

    async def pause(self) -> None:
        """The server sends no audio until `unpause`."""
        self._do(self._state.pause(True, monotonic()))

    async def unpause(self) -> None:
        """The server goes on sending."""
        self._do(self._state.pause(False, monotonic()))

    async def close(self) -> None:
        """Ends the session. What is not finished is dropped, on the server too. During an outage nobody is asked."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._state.failure is None:
            await self._drain()
            self._state.close()
            self._tell_everyone()
        await self._wires.close(CLOSE_TIMEOUT_S)

    # What utterances call

    async def _write(self, utterance: Utterance, text: str) -> None:
        at = 0
        async with self._writing:
            while at < len(text):
                await self._until_room(utterance, 1)
                if not self._takes_text(utterance):
                    return
                size = min(len(text) - at, self._state.room, self._state.max_text_chars)
                self._do(self._state.text(text[at : at + size], monotonic()))
                at += size

    async def _write_whole(self, utterance: Utterance, text: str) -> None:
        async with self._writing:
            await self._until_room(utterance, len(text))
            if self._takes_text(utterance):
                self._do(self._state.text(text, monotonic(), more=True))

    async def _number(self, utterance: Utterance, make: Callable[[float], list[Effect]], room: int = 0) -> None:
        """A numbered message of the utterance that takes `room` characters of the window."""
        async with self._writing:
            await self._until_room(utterance, room)
            if self._takes_text(utterance):
                self._do(make(monotonic()))

    def _cancel(self, utterance: Utterance, played_sample: int | None) -> bool:
        """Whether there was something to stop."""
        if self._state.failure is not None:
            return not utterance._over
        effects = self._state.cancel(utterance.number, played_sample, monotonic())
        if effects is not None:
            self._utterances[utterance.number] = utterance  # the server confirms, also what was complete already
            self._do(effects)
            self._changed.set()
        return effects is not None

    def _consumed(self, number: int, end_sample: int, cost: int) -> None:
        if effects := self._state.consumed(number, end_sample, cost, monotonic()):
            self._do(effects)

    def _played(self, number: int, sample: int, buffered_ms: int, stalls: int) -> None:
        self._do(self._state.played(number, sample, buffered_ms, stalls, monotonic()))

    def _takes_text(self, utterance: Utterance) -> bool:
        """False: it was cancelled, so that its text is of no use. Raises RuntimeError when it was ended."""
        if utterance._cancelled or utterance._over:
            return False
        if utterance._closed:
            raise RuntimeError(f"utterance {utterance.number} has ended: start another one")
        return True

    async def _until_room(self, utterance: Utterance, room: int) -> None:
        """Until so many characters may be sent and few messages wait, or the utterance was cancelled."""
        state = self._state

        def may_send() -> bool:
            return (
                state.room >= room and len(state.window.unacked) < UNACKED_MESSAGES and not self._wires.is_full
            ) or utterance._cancelled

        await self._until(may_send)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while True:
            if (error := self._state.failure) is not None:
                raise error
            if condition():
                return
            self._changed.clear()
            await self._changed.wait()

    # Effects

    def _do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Deliver(number, item, cost):
                    self._utterances[number]._put(item, cost)
                case Send() | SendOn() | Connect() | Adopt() | Drop():
                    self._wires.execute(effect)
                case Notice(text):
                    if self._on_notice is not None:
                        self._on_notice(text)
                case Finished(number):
                    utterance = self._utterances.pop(number)
                    utterance._close()
                    self._over.append(utterance)
                    self._changed.set()
                case RoomGrew():
                    self._changed.set()
                case Failed(error):
                    self._wires.drop(but_carrier=not isinstance(error, ServerLost))
                    self._tell_everyone()
        self._arm()

    def _tell_everyone(self) -> None:
        """The session is over: readers and writers look at `failure`."""
        for utterance in self._utterances.values():
            utterance._wake()
        self._changed.set()

    # Time

    def _arm(self) -> None:
        due = self._state.deadline()
        if due is None or self._closed or (self._timer is not None and self._timer_due <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_later(max(0.0, due - monotonic()), self._tick, due)

    def _tick(self, due: float) -> None:
        self._timer = None
        if (wire := self._wires.carrier) is not None:
            self._state.heard(wire.heard_at)
        self._do(self._state.tick(monotonic(), due))

    async def _drain(self) -> None:
        """Gives what was asked for (a cancel, the last ack) a moment to be sent."""
        wire = self._wires.carrier
        if wire is None or self._state.is_out:
            return
        with suppress(TimeoutError, ClientError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._until(lambda: wire.outbox.is_empty or self._state.is_out)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
