"""One attack: bytes that no proper client sends, and what came back. A seed and a number name it: it can be repeated.

An attack is malformed HTTP, a malformed handshake, malformed frames, or malformed messages in well-formed frames.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal, cast

import orjson

from protocol import STREAM_PATH
from protocol.errors import CloseCode, ErrorCode

HANDSHAKE: Final = (
    f"GET {STREAM_PATH} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
).encode()
PATIENCE_S: Final = 0.25  # how long most attackers wait for the server to end the connection
ANSWER_BYTES: Final = 1_048_576  # of what comes back, at most
_OURS: Final = (ErrorCode.INTERNAL, ErrorCode.ENGINE_FAILED)

Leave = Literal["reset", "fin"]


@dataclass(frozen=True, slots=True)
class Attack:
    """What is sent, piece by piece with a pause between, and how its sender leaves after `patience_s`.

    `upgraded`: a good handshake goes before, and its answer is awaited. `half_close`: nothing more is sent after the
    pieces, and the server is told so.
    """

    name: str
    pieces: tuple[bytes, ...]
    upgraded: bool = False
    pause_s: float = 0.0
    half_close: bool = False
    patience_s: float = PATIENCE_S
    leave: Leave = "reset"


Make = Callable[[Random], Attack]


@dataclass(slots=True)
class Outcome:
    """What came of an attack. `fault`: why it counts as a fault of the server; empty where it is none."""

    statuses: list[int] = field(default_factory=list)
    close_code: int | None = None
    errors: list[str] = field(default_factory=list)  # codes of `error` messages
    ended: bool = False  # by the server, before the attacker left
    fault: str = ""

    @property
    def kind(self) -> str:
        """In a word."""
        if self.close_code is not None:
            return f"closed {self.close_code}"
        refused = [status for status in self.statuses if status != 101]
        if refused:
            return f"HTTP {refused[-1]}"
        return "cut off" if self.ended else "left"


async def perform(port: int, attack: Attack, *, timeout_s: float = 30.0) -> Outcome:
    """Attack the server on this port of this machine. Never raises because of what the server does."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            _, attacker = await loop.create_connection(lambda: _Attacker(), "127.0.0.1", port)
            try:
                await attacker.run(attack)
            finally:
                attacker.leave(attack.leave)
    except TimeoutError:
        return Outcome(fault="no end in sight")
    except OSError as error:
        return Outcome(fault=f"cannot connect: {error}")
    return read_outcome(attack, bytes(attacker.answer), ended=attacker.ended.done())


class _Attacker(asyncio.Protocol):
    """A connection that says what it is told to and keeps what comes back."""

    def __init__(self) -> None:
        self.answer = bytearray()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answered = asyncio.Event()
        self._left = False
        self._transport: asyncio.Transport

    async def run(self, attack: Attack) -> None:
        """Everything up to leaving."""
        if attack.upgraded:
            self._transport.write(HANDSHAKE)
            await self._answered.wait()
        for piece in attack.pieces:
            if self.ended.done() or self._transport.is_closing():
                break
            self._transport.write(piece)
            if attack.pause_s:
                await asyncio.wait((self.ended,), timeout=attack.pause_s)
        if attack.half_close and not self._transport.is_closing():
            self._transport.write_eof()
        await asyncio.wait((self.ended,), timeout=attack.patience_s)

    def leave(self, how: Leave) -> None:
        """Be gone."""
        self._left = True
        if how == "reset":
            sock = self._transport.get_extra_info("socket")
            if sock is not None:
                with suppress(OSError):  # it may be closed already
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if len(self.answer) < ANSWER_BYTES:
            self.answer += data
        self._answered.set()

    def eof_received(self) -> bool:
        """The server said all; the attacker decides when to go."""
        self._end()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._end()

    def _end(self) -> None:
        self._answered.set()
        if not self._left and not self.ended.done():
            self.ended.set_result(None)


def read_outcome(attack: Attack, answer: bytes, *, ended: bool) -> Outcome:
    """What an answer says."""
    outcome = Outcome(ended=ended)
    rest = answer
    while rest.startswith(b"HTTP/1.1 "):
        outcome.statuses.append(int(rest[9:12]))
        _, _, rest = rest.partition(b"\r\n\r\n")
        if outcome.statuses[-1] == 101:
            _read_frames(rest, outcome)
            break
        rest = rest[rest.find(b"HTTP/1.1 ") :] if b"HTTP/1.1 " in rest else b""
    if any(status >= 500 and status not in (501, 503, 505) for status in outcome.statuses):
        outcome.fault = f"HTTP {outcome.statuses[-1]}"
    elif outcome.close_code == CloseCode.INTERNAL or set(outcome.errors) & set(_OURS):
        outcome.fault = f"closed {outcome.close_code}, {outcome.errors}"
    elif attack.upgraded and outcome.statuses[:1] != [101] and not ended:
        outcome.fault = f"the handshake was answered with {answer[:40]!r}"
    return outcome


def _read_frames(data: bytes, outcome: Outcome) -> None:
    at = 0
    while at + 2 <= len(data):
        size, start = data[at + 1], at + 2
        if size >= 126:
            wide = 2 if size == 126 else 8
            size, start = int.from_bytes(data[start : start + wide], "big"), start + wide
        opcode, payload = data[at] & 0x0F, data[start : start + size]
        if opcode == 8:
            outcome.close_code = int.from_bytes(payload[:2], "big")
        elif opcode == 1 and b'"error"' in payload[:40]:
            outcome.errors.append(str(orjson.loads(payload)["code"]))
        at = start + size
