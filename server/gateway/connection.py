"""One accepted connection: reads the first request's head, then is a WebSocket or hands over to HTTP."""

import asyncio
import logging
from collections.abc import Callable
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final, cast

from uvicorn.config import Config
from uvicorn.server import ServerState
from websockets.asyncio.server import Server, ServerConnection
from websockets.frames import Frame, Opcode
from websockets.protocol import CONNECTING, Event
from websockets.server import ServerProtocol

from protocol.errors import CloseCode
from server.gateway.auth import Principal
from server.gateway.http_connection import HttpConnection
from server.gateway.replies import raw_error
from server.gateway.request_head import HeadError, HeadReader, RequestHead
from server.gateway.transports import AbortTimer, end_with

CLOSE_TIMEOUT_S: Final = 2.0  # from our close frame until the peer's
MAX_FRAGMENTS: Final = 1_024  # frames of one message; no honest client cuts 256 KiB any finer
CONTROL_BURST: Final = 100  # pings, pongs and closes at once ...
CONTROL_RATE: Final = 20.0  # ... and per second after that
MAX_REPLY_BYTES: Final = 1_048_576  # pongs and the like that wait for a peer that sends and does not read
MAX_DISCARD_BYTES: Final = 1_048_576  # read from a peer after its connection failed, so that it can read why
MAX_EARLY_BYTES: Final = 65_536  # sent before the handshake is answered
_FEED_BYTES: Final = 4_096  # parsed at a time, so that a flood is seen before much of it is parsed
_CONTROL: Final = frozenset({Opcode.CLOSE, Opcode.PING, Opcode.PONG})


class ListenerState:
    """What the connections of one listener share."""

    def __init__(
        self,
        *,
        config: Config,
        max_connections: int,
        head_timeout_s: float,
        stall_timeout_s: float,
        on_count: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_count` is told how many connections are open, whenever that changes."""
        self.config = config
        self.http_state = ServerState()
        self.max_connections = max_connections
        self.head_timeout_s = head_timeout_s
        self.stall_timeout_s = stall_timeout_s
        self.open: dict[asyncio.Transport, GatewayConnection] = {}
        self.empty = asyncio.Event()
        self.empty.set()
        self._on_count = on_count

    def enter(self, connection: "GatewayConnection", transport: asyncio.Transport) -> None:
        """Count a connection."""
        self.open[transport] = connection
        self.empty.clear()
        self._on_count(len(self.open))

    def leave(self, transport: asyncio.Transport) -> None:
        """A connection is gone."""
        self.open.pop(transport, None)
        if not self.open:
            self.empty.set()
        self._on_count(len(self.open))


class Stage(Enum):
    """What a connection is about."""

    HEAD = auto()  # the first request's head is not complete
    WEBSOCKET = auto()
    HANDED_OVER = auto()  # another protocol object has the transport: HTTP, or the end of a refused connection


class GatewayConnection(ServerConnection):
    """A `ServerConnection` that reads the request head itself, with limits, before it decides what to be.

    Beyond what websockets bounds: fragments and control frames are counted, a peer that stops reading is aborted after
    `stall_timeout_s`, and every close ends within seconds.
    """

    def __init__(self, shared: ListenerState, protocol: ServerProtocol, server: Server, **options: Any) -> None:
        super().__init__(protocol, server, **options)
        self.stage = Stage.HEAD
        self.principal: Principal | None = None  # whom a token in the handshake stands for
        self.refusal = ""  # why the client is to be sent away, where it cannot be told in the answer to its handshake
        self._shared = shared
        self._accepted = self.loop.time()  # with TLS, the handshake comes between this and connection_made
        self._head = HeadReader()
        self._head_timer: asyncio.TimerHandle | None = None
        self._fragments = 0
        self._control = float(CONTROL_BURST)
        self._control_at = self._accepted
        self._failed = False
        self._discarded = 0
        self._early = bytearray()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self.transport = cast(asyncio.Transport, transport)
        self._stall = AbortTimer(self.transport)
        self._closing = AbortTimer(self.transport)
        shared = self._shared
        shared.enter(self, self.transport)
        over = len(shared.open) - shared.max_connections
        if over > _refused_at_once(shared.max_connections):
            self.transport.abort()
        elif over > 0:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections", [("Retry-After", "1")])
        else:
            left = max(0.0, self._accepted + shared.head_timeout_s - self.loop.time())
            self._head_timer = self.loop.call_later(left, self._head_is_late)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self.stage is Stage.WEBSOCKET:
            if self.protocol.state is CONNECTING:
                self._early += data
                if len(self._early) > MAX_EARLY_BYTES:
                    self.transport.abort()
            else:
                self._feed(data)
        elif self.stage is Stage.HEAD:
            try:
                head = self._head.feed(data)
            except HeadError as problem:
                self._refuse(problem.status, problem.message)
            else:
                if head is not None:
                    self._decide(head)

    def eof_received(self) -> None:
        """See asyncio.Protocol."""
        if self.stage is Stage.WEBSOCKET:
            super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._cancel_timers()
        self._shared.leave(self.transport)
        if self.stage is Stage.WEBSOCKET:
            super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The peer takes less than is sent."""
        self._stall.start(self._shared.stall_timeout_s)
        super().pause_writing()

    def resume_writing(self) -> None:
        """The peer took what waited."""
        self._stall.stop()
        super().resume_writing()

    # ServerConnection

    async def close(self, code: int = CloseCode.NORMAL, reason: str = "") -> None:
        """Close as websockets does, but abort a peer that takes nothing or does not answer."""
        self._closing.start(CLOSE_TIMEOUT_S)
        await super().close(code, reason)

    async def handshake(self, *arguments: Any, **options: Any) -> None:
        """Answer the handshake, then take what the client sent without waiting for the answer.

        websockets would take it at once, and put pongs and errors before the answer.
        """
        await super().handshake(*arguments, **options)
        early, self._early = bytes(self._early), bytearray()
        if early and self.protocol.state is not CONNECTING:
            self._feed(early)

    def process_event(self, event: Event) -> None:
        """Take the request, then frames."""
        if isinstance(event, Frame) and not self._allowed(event):
            return
        super().process_event(event)

    # Our own

    def abort(self) -> None:
        """End the connection now, without a close frame. Its handler sees ConnectionClosed."""
        self.transport.abort()

    def _decide(self, head: RequestHead) -> None:
        if head.is_websocket:
            if head.has_body:
                self._refuse(HTTPStatus.BAD_REQUEST, "a WebSocket handshake has no body")
                return
            self._cancel_timers()
            self.stage = Stage.WEBSOCKET
            super().connection_made(self.transport)
            super().data_received(self._head.head)
            self._early += self._head.rest
            return
        self._cancel_timers()
        self.stage = Stage.HANDED_OVER
        shared = self._shared
        http = HttpConnection(
            shared.config,
            shared.http_state,
            head_timeout_s=shared.head_timeout_s,
            stall_timeout_s=shared.stall_timeout_s,
            on_lost=self._forget(),
            on_websocket=self._take_back,
        )
        self.transport.set_protocol(http)
        http.connection_made(self.transport)
        http.data_received(self._head.data)

    def _take_back(self, data: bytes) -> None:
        """After other requests, one that begins with this wants a WebSocket."""
        self.transport.set_protocol(self)
        self.stage, self._head = Stage.HEAD, HeadReader()
        self.data_received(data)

    def _feed(self, data: bytes) -> None:
        for start in range(0, len(data), _FEED_BYTES):
            if self.transport.is_closing():
                return
            super().data_received(data[start : start + _FEED_BYTES])
        if self.protocol.close_expected():
            self._closing.start(CLOSE_TIMEOUT_S)
            self._discarded += len(data)
            if self._discarded > MAX_DISCARD_BYTES:
                self.transport.abort()
        elif self.transport.get_write_buffer_size() > MAX_REPLY_BYTES:
            self.transport.abort()

    def _allowed(self, frame: Frame) -> bool:
        if self._failed:
            return False
        if frame.opcode in _CONTROL:
            now = self.loop.time()
            self._control = min(CONTROL_BURST, self._control + (now - self._control_at) * CONTROL_RATE) - 1
            self._control_at = now
            if self._control < 0:
                self._fail(CloseCode.POLICY, "too many control frames")
                return False
            return True
        self._fragments = 0 if frame.fin else self._fragments + 1
        if self._fragments > MAX_FRAGMENTS:
            self._fail(CloseCode.POLICY, f"a message of more than {MAX_FRAGMENTS} fragments")
            return False
        return True

    def _fail(self, code: CloseCode, reason: str) -> None:
        self._failed = True
        self.protocol.fail(code, reason)
        self.send_data()
        self._closing.start(CLOSE_TIMEOUT_S)

    def _head_is_late(self) -> None:
        self._head_timer = None
        self._refuse(HTTPStatus.REQUEST_TIMEOUT, "the request head did not come in time")

    def _refuse(self, status: HTTPStatus, message: str, headers: list[tuple[str, str]] | None = None) -> None:
        self._cancel_timers()
        self.stage = Stage.HANDED_OVER
        end_with(self.transport, raw_error(status, message, headers or ()), self._forget())

    def _forget(self) -> Callable[[], None]:
        shared, transport = self._shared, self.transport
        return lambda: shared.leave(transport)

    def _cancel_timers(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        self._stall.stop()
        self._closing.stop()


def _refused_at_once(max_connections: int) -> int:
    """How many connections over the limit still get an answer; more are cut without one."""
    return max(16, max_connections // 8)


class ClientFaultFilter(logging.Filter):
    """Keeps what a client did wrong out of the log: only the server's own faults deserve a stack trace."""

    def __init__(self, faults: tuple[type[BaseException], ...]) -> None:
        super().__init__()
        self._faults = faults

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log `record`."""
        cause = record.exc_info[1] if record.exc_info else None
        return not isinstance(cause, self._faults)
