"""A resume that arrives at a gateway which has not the session: find who has it, and pass all that is said on.

The owner listens on a unix socket with the same listener as on the port. We connect to it like any client, send the
`resume`, and move messages both ways without looking into them. Each way one message is on its way at a time, so a
reader that stops makes its writer wait, through us. How one end closes, the other end hears; what breaks, breaks both.
"""

import asyncio
from http import HTTPStatus
from typing import Final

import structlog
from prometheus_client import Gauge
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.asyncio.connection import Connection
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Subprotocol

from protocol import STREAM_PATH, SUBPROTOCOL, TOKEN_SUBPROTOCOL, CloseCode
from protocol import client_messages as c
from protocol.codec import encode
from protocol.errors import ErrorCode, ProtocolError, close_reason
from server.gateway.tokens import offered_tokens
from server.gateway.turns import Turns
from server.gateways.siblings import Siblings, Unsure

RELAY_TIMEOUT_S: Final = 2.0  # until the owner has answered our handshake
RETRY_MS: Final = 500
CLIENT_HEADER: Final = "X-Cosystream-Client"  # what the client's address is, to the owner
CLOSE_TIMEOUT_S: Final = 2.0
MAX_QUEUE: Final = 4  # frames that came from the owner and are not passed on
_BROKEN: Final = 1006  # no close frame came ...
_NOT_SENDABLE: Final = frozenset({_BROKEN, 1005})  # ... or one without a code (RFC 6455, section 7.4.1)

log = structlog.get_logger(__name__)


def client_address(connection: ServerConnection) -> tuple[str]:
    """The address of the client, also where another gateway passes it on: only gateways reach the unix socket."""
    address = connection.remote_address
    if isinstance(address, tuple):
        return (str(address[0]),)
    return (connection.request.headers.get(CLIENT_HEADER, "") if connection.request is not None else "",)


class TryAgain(Exception):
    """Who has the session does not answer now. It may soon, or its end will be known."""

    retry_after_ms = RETRY_MS


class Elsewhere:
    """Finds the gateway that has a session. `relays` False: for those who come from another gateway. They are not
    passed on again, so that no chain can form.
    """

    def __init__(self, siblings: Siblings, gauge: Gauge, *, relays: bool) -> None:
        """`gauge` counts connections that are passed on."""
        self._siblings = siblings
        self._gauge = gauge
        self._relays = relays

    async def before_claim(self, message: c.Resume, client: ServerConnection) -> "Relay | None":
        """The way to the gateway that made the session. None where it has ended, or never was: a claim is the way to go
        on. Raises TryAgain, and ProtocolError where the key is refused there.
        """
        owner = self._siblings.owner_of(message.session)
        return None if owner is None else await self._reach(owner, message, client)

    async def before_unknown(self, message: c.Resume, client: ServerConnection) -> "Relay | None":
        """The way to the gateway that has the session although it did not make it: it has claimed it before. None where
        nobody has it. Raises TryAgain, and ProtocolError where the key is refused there.
        """
        if not self._relays:
            return None
        try:
            holder = await self._siblings.holder_of(message.session)
        except Unsure:
            raise TryAgain from None
        if holder is None:
            return None
        relay = await self._reach(holder, message, client)
        if relay is None:  # it has just ended: the next attempt may claim
            raise TryAgain
        return relay

    async def _reach(self, owner: str, message: c.Resume, client: ServerConnection) -> "Relay | None":
        """None where the owner turns out to have ended."""
        if not self._relays:
            raise TryAgain
        headers = {CLIENT_HEADER: client_address(client)[0]}
        subprotocols = [SUBPROTOCOL]
        if client.request is not None:
            given = client.request.headers
            headers |= {name: given[name] for name in ("Authorization", "Origin") if name in given}
            offered = offered_tokens(given.get_all("Sec-WebSocket-Protocol"))
            subprotocols += [TOKEN_SUBPROTOCOL + token for token in offered]
        try:
            async with asyncio.timeout(RELAY_TIMEOUT_S):
                connection = await unix_connect(
                    str(self._siblings.socket_of(owner)),
                    f"ws://localhost{STREAM_PATH}",
                    subprotocols=[Subprotocol(each) for each in subprotocols],
                    compression=None,
                    additional_headers=headers,
                    user_agent_header=None,
                    proxy=None,
                    open_timeout=None,
                    close_timeout=CLOSE_TIMEOUT_S,
                    max_size=None,  # we know who sends
                    max_queue=MAX_QUEUE,
                )
            try:
                await connection.send(encode(message))
            except BaseException:
                connection.transport.abort()
                raise
        except (TimeoutError, InvalidStatus) as problem:
            if isinstance(problem, InvalidStatus) and problem.response.status_code == HTTPStatus.UNAUTHORIZED:
                # The keys have changed, and one of us has the old ones: to try again would not help.
                raise ProtocolError(
                    ErrorCode.UNAUTHORIZED, "the gateway that has the session refuses this key"
                ) from None
            log.warning("the gateway that has a session does not answer", owner=owner, reason=str(problem) or "late")
            raise TryAgain from None
        except (OSError, EOFError, InvalidHandshake, ConnectionClosed):
            if await self._siblings.has_ended(owner):  # it was about to
                return None
            raise TryAgain from None
        return Relay(client, connection, self._gauge)


class Relay:
    """One connection of a client, passed on. `run` returns when both ends are closed."""

    def __init__(self, client: ServerConnection, owner: ClientConnection, gauge: Gauge) -> None:
        self._gauge = gauge
        self._client = client
        self._owner = owner
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Move messages until either end closes."""
        works = [
            asyncio.ensure_future(work(source, target))
            for source, target in ((self._client, self._owner), (self._owner, self._client))
            for work in (_move, _break)
        ]
        try:
            with self._gauge.track_inprogress():
                await asyncio.gather(*works)
        finally:
            for work in works:
                work.cancel()
            await asyncio.gather(*works, return_exceptions=True)
            self.abort()
            self._over.set()

    @property
    def over(self) -> bool:
        """Whether `run` has come to its end."""
        return self._over.is_set()

    def abort(self) -> None:
        """End the connection to the owner, which keeps the session. Harmless where it is closed."""
        self._owner.transport.abort()

    async def stop(self, deadline_ms: int) -> None:
        """This gateway stops. The session is another one's: its client may go on until the deadline, then it has to
        come back.
        """
        try:
            async with asyncio.timeout(deadline_ms / 1000):
                await self._over.wait()
        except TimeoutError:
            await _close(self._client, CloseCode.RESTART, "the server is stopping")
            await self._over.wait()


async def _move(source: Connection, target: Connection) -> None:
    """From one end to the other until either closes; then `target` hears how `source` closed."""
    turns = Turns()
    try:
        while True:
            try:
                data = await source.recv()
            except ConnectionClosed as closed:
                await _mirror(closed, target)
                return
            await target.send(data)
            await turns.step(len(data))
    except ConnectionClosed:
        return  # the other way tells `source`, after what is still to come from there


async def _break(source: Connection, target: Connection) -> None:
    """Where `source` breaks, nothing more is waited for: `target` may be one that takes nothing."""
    await source.wait_closed()
    if source.close_code == _BROKEN:
        target.transport.abort()


async def _mirror(closed: ConnectionClosed, target: Connection) -> None:
    """Close as the other end was closed, by its peer or by us because of its peer; without a close frame break it."""
    close = closed.rcvd or closed.sent
    if close is None or close.code in _NOT_SENDABLE:
        target.transport.abort()
    else:
        await _close(target, close.code, close.reason)


async def _close(connection: Connection, code: int, reason: str) -> None:
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await connection.close(code, close_reason(reason))
    except TimeoutError:
        connection.transport.abort()
