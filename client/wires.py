"""The WebSockets of a session, by the numbers that `SessionState` gave them. One of them carries the session."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic  # uvloop's own clock only counts milliseconds
from typing import Final

from client.effects import Adopt, Connect, Drop, Effect, Send, SendOn
from client.errors import ClientError
from client.session import SessionState
from client.wire import Socket, Wire
from protocol import ProtocolError, decode_server
from protocol.frames import decode_frame

OUTBOX_MESSAGES: Final = 256  # waiting to be sent before writers wait


class Wires:
    """What comes in goes to `state`, what that wants to `do`. `drained` is called when writers may go on."""

    def __init__(
        self,
        state: SessionState,
        socket: Socket,
        reopen: Callable[[], Awaitable[Socket]],
        do: Callable[[list[Effect]], None],
        drained: Callable[[], None],
    ) -> None:
        self._state = state
        self._reopen = reopen
        self._do = do
        self._drained = drained
        self._wires: dict[int, Wire] = {}
        self._carrier = 0
        self._tasks: set[asyncio.Task[None]] = set()

        async def opened() -> Socket:
            return socket

        self._add(0, opened)

    @property
    def carrier(self) -> Wire | None:
        """The one that carries the session; None while that is gone."""
        return self._wires.get(self._carrier)

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be sent that writers should wait too. Never during an outage."""
        carrier = self.carrier
        return not self._state.is_out and carrier is not None and carrier.outbox.messages >= OUTBOX_MESSAGES

    def execute(self, effect: Send | SendOn | Connect | Adopt | Drop) -> None:
        """Does what the state wants of its connections."""
        match effect:
            case Send(message):
                if (carrier := self.carrier) is not None:
                    carrier.post(message)
            case SendOn(number, message):
                self._wires[number].post(message)
            case Connect(number):
                self._add(number, self._reopen)
            case Adopt(number):
                self._carrier = number
            case Drop(number):
                if (wire := self._wires.pop(number, None)) is not None:
                    wire.abort()

    def drop(self, *, but_carrier: bool) -> None:
        """Aborts all; the carrier is kept where its peer still answers a close frame."""
        for number in list(self._wires):
            if number != self._carrier or not but_carrier:
                self._wires.pop(number).abort()

    async def close(self, patience_s: float) -> None:
        """Says goodbye on the carrier, unless it does not work, and ends all of them."""
        carrier = self.carrier
        if carrier is not None and not self._state.is_out:
            with suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await carrier.close()
        self.drop(but_carrier=False)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What a wire tells

    def wire_opened(self, wire: Wire) -> None:
        """The WebSocket is open."""
        if wire.number != 0:
            self._do(self._state.connected(wire.number, monotonic()))

    def wire_refused(self, wire: Wire, error: ClientError) -> None:
        """It could not be opened."""
        self._wires.pop(wire.number, None)
        self._do(self._state.refused(wire.number, error, monotonic()))

    def wire_received(self, wire: Wire, data: str | bytes) -> None:
        """A message came."""
        try:
            if isinstance(data, bytes):
                self._do(self._state.feed_frame(decode_frame(data), monotonic(), wire.number))
            else:
                self._do(self._state.feed_message(decode_server(data), monotonic(), wire.number))
        except ProtocolError as error:
            self._do(self._state.bad_message(error, monotonic(), wire.number))

    def wire_closed(self, wire: Wire, code: int | None, reason: str) -> None:
        """It was closed."""
        self._wires.pop(wire.number, None)
        self._do(self._state.lost(code, reason, monotonic(), wire.number))
        self._drained()

    def wire_sent(self, wire: Wire) -> None:
        """Less waits than before."""
        if wire.outbox.messages in (0, OUTBOX_MESSAGES - 1):
            self._drained()

    def _add(self, number: int, opening: Callable[[], Awaitable[Socket]]) -> None:
        wire = self._wires[number] = Wire(number, opening, self)
        self._tasks.add(wire.task)
        wire.task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error is not None:
            self._do(self._state.broken(error))
