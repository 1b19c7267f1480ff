"""HTTP requests that are no WebSocket: uvicorn's protocol, with the bounds that it leaves to a proxy in front of it."""

import asyncio
import logging
from collections.abc import Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final, cast

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from server.gateway.replies import raw_error
from server.gateway.request_head import MAX_HEAD_BYTES, MAX_HEADERS, HeadError, HeadReader
from server.gateway.transports import AbortTimer, end_with, reset

MAX_BODY_BYTES: Final = 1_048_576
BODY_TIMEOUT_S: Final = 30.0  # from the end of the head until the whole body is there
VOICES_PATH: Final = "/v1/voices"
MAX_UPLOAD_BYTES: Final = 16 * MAX_BODY_BYTES  # of a recording that is sent there: 30 s of any usual WAV
UPLOAD_TIMEOUT_S: Final = 120.0  # likewise: 1.1 Mbit/s
KEEP_ALIVE_S: Final = 5.0  # between an answer and the next request
_NO_CHUNKS: Final = "cosystream.no_chunks"  # in the scope of an HTTP/1.0 request: called when the application is done


def http_config(app: ASGIApp) -> Config:
    """uvicorn's configuration for `app`, an ASGI application: no lifespan, no WebSockets, no logs of its own."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except ClientDisconnect:
            pass  # it left before its request was whole: nothing went wrong here
        finally:
            if _NO_CHUNKS in scope:
                scope[_NO_CHUNKS]()

    config = Config(
        served,
        log_config=None,
        access_log=False,
        lifespan="off",
        http="httptools",
        ws="none",
        interface="asgi3",
        proxy_headers=False,  # a forwarded address must never make a peer look local
        server_header=False,
        timeout_keep_alive=int(KEEP_ALIVE_S),
    )
    config.load()
    # Its warnings are about what clients did; its errors are exceptions of the application, which are ours.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    return config


class _AnyLength(int):
    """In place of a body's length, which uvicorn counts down: whatever is sent is not too long, and then was all."""

    def __lt__(self, _: int) -> bool:
        return False

    def __sub__(self, _: int) -> "_AnyLength":
        return self


class _Refused(Exception):
    """A request breaks a bound; raised inside the parser's callbacks, which end the parsing."""


class HttpConnection(HttpToolsProtocol):
    """One HTTP connection. At its end `on_lost` is called when the transport is gone, or `on_websocket`, with what was
    received, when a further request wants a WebSocket: proxies keep connections and use them for whatever comes next.
    """

    def __init__(
        self,
        config: Config,
        state: ServerState,
        *,
        head_timeout_s: float,
        stall_timeout_s: float,
        on_lost: Callable[[], None],
        on_websocket: Callable[[bytes], None],
    ) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self._head_timeout_s = head_timeout_s
        self._stall_timeout_s = stall_timeout_s
        self._on_lost = on_lost
        self._on_websocket = on_websocket
        self._upcoming: HeadReader | None = None  # the head of a further request, until it is whole
        self._head_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._in_head = False
        self._head_bytes = 0
        self._body_bytes = 0
        self._refusal = (HTTPStatus.BAD_REQUEST, "this is not valid HTTP")
        self._over = False

    # The transport's callbacks

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """See asyncio.Protocol."""
        super().connection_made(transport)
        self._stall = AbortTimer(transport)
        self._closing = AbortTimer(transport)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._over:
            return
        between = not self._in_head and self._body_timer is None
        if between and self._head_timer is None and not self._busy:
            self._head_timer = self.loop.call_later(
                self._head_timeout_s, self._refuse, HTTPStatus.REQUEST_TIMEOUT, "the request head did not come in time"
            )
            if self._answered:
                self._unset_keepalive_if_required()
                self._upcoming = HeadReader()
        if self._upcoming is not None:
            self._read_upcoming(self._upcoming, data)
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head and not self._over:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(*_HEAD_TOO_BIG)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._leave()
        super().connection_lost(exc)
        self._on_lost()

    def pause_writing(self) -> None:
        """The peer takes less than is sent."""
        self._stall.start(self._stall_timeout_s)
        super().pause_writing()

    def resume_writing(self) -> None:
        """The peer took what waited."""
        self._stall.stop()
        super().resume_writing()

    # The parser's callbacks; what they raise reaches `send_400_response`

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._in_head, self._head_bytes, self._body_bytes = True, 0, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS or sum(len(n) + len(v) for n, v in self.headers) > MAX_HEAD_BYTES:
            raise self._refused(*_HEAD_TOO_BIG)
        if name.lower() == b"content-length" and value.isdigit() and int(value[:20]) > self._max_body_bytes:
            raise self._refused(*_body_too_big(self._max_body_bytes))

    def on_headers_complete(self) -> None:
        """The head is there: the application starts."""
        self._in_head = False
        self._cancel_timers()
        self._body_timer = self.loop.call_later(self._body_timeout_s, self._body_is_late)
        self.server_state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0":
            # It knows no chunks (RFC 9112, section 6.1): a body without a length ends with the connection, and one that
            # breaks off with a reset, or it would pass for a whole one.
            self.cycle.keep_alive = False
            self.cycle.chunked_encoding = False
            self.cycle.expected_content_length = _AnyLength()
            cast(dict[str, Any], self.scope)[_NO_CHUNKS] = self._break_off_unless_whole
        if self.parser.should_upgrade():
            # To something else than WebSocket, h2c for one: answered as a plain request. The parser takes nothing after
            # it, so the connection ends with the answer.
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._body_bytes += len(body)
        if self._body_bytes > self._max_body_bytes:
            raise self._refused(*_body_too_big(self._max_body_bytes))
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._cancel_timers()
        super().on_message_complete()

    # What uvicorn calls

    def on_response_complete(self) -> None:
        """An answer is written. Where that ends the connection, the peer has some seconds to take it."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._closing.start(self._stall_timeout_s)

    def timeout_keep_alive_handler(self) -> None:
        """No further request came."""
        super().timeout_keep_alive_handler()
        self._closing.start(self._stall_timeout_s)

    def send_400_response(self, msg: str) -> None:
        """The parser gave up; `msg` says less than what we know."""
        self._refuse(*self._refusal)

    # Our own

    @property
    def _is_upload(self) -> bool:
        """Whether the request, whose first line was read, sends a recording."""
        path: bytes = self.url.partition(b"?")[0]
        return path == VOICES_PATH.encode() and self.parser.get_method() == b"POST"

    @property
    def _max_body_bytes(self) -> int:
        return MAX_UPLOAD_BYTES if self._is_upload else MAX_BODY_BYTES

    @property
    def _body_timeout_s(self) -> float:
        return UPLOAD_TIMEOUT_S if self._is_upload else BODY_TIMEOUT_S

    def _break_off_unless_whole(self) -> None:
        """Nothing more is sent."""
        if self.cycle.response_started and not self.cycle.response_complete:
            reset(self.transport)

    def _read_upcoming(self, reader: HeadReader, data: bytes) -> None:
        """The next bytes of a further request."""
        try:
            head = reader.feed(data)
        except HeadError as problem:
            self._refuse(problem.status, problem.message)
            return
        if head is None:
            return
        self._upcoming = None
        if head.is_websocket:
            self._over = True
            self._leave()
            self.connections.discard(self)
            self._on_websocket(reader.data)
        else:
            self._take(reader.data)

    @property
    def _answered(self) -> bool:
        """Whether there was a request before, and its answer is complete."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and cycle.response_complete

    @property
    def _busy(self) -> bool:
        """Whether a request's answer is not complete."""
        cycle: RequestResponseCycle | None = (
            self.cycle
        )  # None before the first request, which uvicorn's types leave out
        return cycle is not None and not cycle.response_complete

    def _refused(self, status: HTTPStatus, message: str) -> _Refused:
        self._refusal = (status, message)
        return _Refused(message)

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer with an error and end the connection. Where other answers are due or on their way, end it only."""
        if self._over or self.transport.is_closing():
            return
        self._over = True
        busy = self._busy
        if busy and not self.cycle.more_body:
            self.cycle.keep_alive = False  # a later request is at fault: those before it get their answers
            return
        if busy and (self.cycle.response_started or self.pipeline):
            self.transport.abort()
            return
        self._leave()
        if busy:  # the application waits for a body that it will not get
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.connections.discard(self)
        self._unset_keepalive_if_required()
        end_with(self.transport, raw_error(status, message), self._on_lost)

    def _body_is_late(self) -> None:
        self._body_timer = None
        if self.flow.read_paused:  # the application does not read: not the client's fault
            self._body_timer = self.loop.call_later(self._body_timeout_s, self._body_is_late)
        else:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, "the request body did not come in time")

    def _cancel_timers(self) -> None:
        for timer in (self._head_timer, self._body_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._body_timer = None

    def _leave(self) -> None:
        self._cancel_timers()
        self._stall.stop()
        self._closing.stop()


_HEAD_TOO_BIG: Final = (
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    f"the request head is longer than {MAX_HEAD_BYTES} bytes or has more than {MAX_HEADERS} headers",
)


def _body_too_big(most: int) -> tuple[HTTPStatus, str]:
    return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the request body is longer than {most} bytes"
