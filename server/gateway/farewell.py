"""The last words on a connection: why either side closes it. Bounded also where the peer does not read."""

import asyncio
from typing import Final

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from protocol import server_messages as s
from protocol.codec import encode
from protocol.errors import CloseCode, ProtocolError, close_reason
from server.scheduler.admission import Refusal

SEND_TIMEOUT_S: Final = 1.0  # a peer that does not read cannot be told why it is closed
CLOSE_TIMEOUT_S: Final = 2.0
LEFT: Final = (CloseCode.NORMAL, CloseCode.GOING_AWAY)  # closes with which a client gives its session up
FAULTS: Final = (  # closes with which the WebSocket layer ends a client that broke its rules: no `error` goes before
    CloseCode.PROTOCOL_ERROR,
    CloseCode.INVALID_DATA,
    CloseCode.POLICY,
    CloseCode.TOO_BIG,
)


async def say_busy(connection: ServerConnection, refusal: Refusal) -> None:
    """Turn a client away for now, and close."""
    if await say(connection, s.Busy(refusal.retry_after_ms, refusal.reason, refusal.message)):
        await close(connection, CloseCode.TRY_AGAIN, f"{refusal.message}; retry after {refusal.retry_after_ms} ms")
    else:
        connection.transport.abort()


async def say_error(connection: ServerConnection, error: ProtocolError) -> None:
    """Say what was wrong, and close."""
    await say(connection, s.Error(error.code, error.message[:4_000], error.field, error.retryable))
    await close(connection, error.kind.close, error.message)


async def say(connection: ServerConnection, message: s.ServerMessage) -> bool:
    """Send a message for which nothing is waited long. Whether it went out."""
    try:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await connection.send(encode(message))
    except (ConnectionClosed, TimeoutError):
        return False  # it left, or does not read
    return True


async def close(connection: ServerConnection, code: CloseCode, reason: str) -> None:
    """Close in order, or after a while without."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await connection.close(code, close_reason(reason))
    except TimeoutError:
        connection.transport.abort()


def gave_up(closed: ConnectionClosed) -> bool:
    """Whether the client gave its session up, or broke the rules, instead of losing its connection."""
    if closed.rcvd is not None and closed.rcvd.code in LEFT:
        return True
    return closed.sent is not None and closed.sent.code in FAULTS
