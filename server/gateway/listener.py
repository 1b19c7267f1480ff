"""The one port: WebSocket upgrades go to a session handler, all other HTTP goes to an ASGI application.

Every connection is bounded in time and memory whatever its peer does, and closing the listener ends them all.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, Final, Protocol, cast

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage
from websockets.server import ServerProtocol

from protocol import CloseCode
from protocol.errors import close_reason
from protocol.limits import MAX_MESSAGE_BYTES
from server.gateway.accepting import SharedAcceptor
from server.gateway.auth import Principals
from server.gateway.binding import Address, ListenError, open_sockets
from server.gateway.connection import CLOSE_TIMEOUT_S, ClientFaultFilter, GatewayConnection, ListenerState, Stage
from server.gateway.handshake import SUBPROTOCOLS, judge_handshake, select_subprotocol, shape_refusal
from server.gateway.http_connection import http_config
from server.gateway.origins import Origins
from server.gateway.tls import tls_context
from server.observe.metrics import Metrics
from server.open_files import max_connections
from server.settings import Settings

__all__ = ["Address", "GatewayConnection", "ListenError", "Listener", "start_listener"]

MAX_QUEUE: Final = 16  # frames received and not yet taken by the handler
PING_INTERVAL_S: Final = 20.0
PING_TIMEOUT_S: Final = 20.0
_BOUNDS: Final[dict[str, Any]] = {
    "ping_interval": PING_INTERVAL_S,
    "ping_timeout": PING_TIMEOUT_S,
    "close_timeout": CLOSE_TIMEOUT_S,
    "max_queue": MAX_QUEUE,
}
_ABORT_WAIT_S: Final = 1.0  # for handlers of aborted connections to return

WebSocketHandler = Callable[[ServerConnection], Awaitable[None]]

logger = logging.getLogger("websockets.cosystream")  # a library's: heard from WARNING up
logger.addFilter(ClientFaultFilter((InvalidHandshake, InvalidMessage, ConnectionClosed, EOFError, OSError)))


class Share(Protocol):
    """What a process knows of others that accept from the same sockets."""

    def patience(self) -> float:
        """For how many seconds the next connection should be left to others; 0.0: it is this one's turn."""

    def on_count(self, connections: int) -> None:
        """So many are open here."""


class Listener:
    """A listener at work. `addresses` and `urls` (http or https) are where it can be reached."""

    def __init__(self, shared: ListenerState, addresses: Sequence[Address], *, secure: bool) -> None:
        self.addresses = tuple(addresses)
        self.urls = tuple(f"{'https' if secure else 'http'}://{address}" for address in addresses)
        self._shared = shared
        self._servers: list[Server] = []
        self._handlers: set[asyncio.Task[Any]] = set()

    @property
    def port(self) -> int:
        """The TCP port."""
        return self.addresses[0].port

    @property
    def connection_count(self) -> int:
        """Connections open now, of any kind."""
        return len(self._shared.open)

    def stop_accepting(self) -> None:
        """Take no new connection; those there go on."""
        for server in self._servers:
            server.close(close_connections=False)

    async def close(
        self, timeout: float, *, code: CloseCode = CloseCode.RESTART, reason: str = "the server stops"
    ) -> None:
        """Stop accepting, end every connection in order, and abort after `timeout` seconds what is left.

        Returns within `timeout` and about two seconds, whatever peers and handlers do.
        """
        self.stop_accepting()
        shared = self._shared
        closing: set[asyncio.Task[None]] = set()
        for transport, connection in list(shared.open.items()):
            if connection.stage is Stage.HEAD:
                transport.abort()
            elif connection.stage is Stage.WEBSOCKET:
                closing.add(asyncio.create_task(connection.close(code, close_reason(reason))))
        for http in list(shared.http_state.connections):
            http.shutdown()
        try:
            async with asyncio.timeout(timeout):
                await shared.empty.wait()
        except TimeoutError:
            for transport in list(shared.open):
                transport.abort()
        await _finish(closing | self._handlers | shared.http_state.tasks)
        await _finish({asyncio.ensure_future(server.wait_closed()) for server in self._servers})

    async def _run(self, handler: WebSocketHandler, connection: ServerConnection) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.add(task)
        try:
            await handler(connection)
        except ConnectionClosed:
            pass  # the peer went away, or was sent away: no fault of the handler
        finally:
            self._handlers.discard(task)


async def _finish(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Give tasks a moment to end by themselves, then cancel them."""
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=_ABORT_WAIT_S)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=_ABORT_WAIT_S)


async def start_listener(
    settings: Settings,
    *,
    app: Callable[..., Awaitable[None]],
    websocket_handler: WebSocketHandler,
    principals: Principals | None = None,
    metrics: Metrics | None = None,
    sockets: Sequence[socket.socket] | None = None,
    share: Share | None = None,
    not_serving: Callable[[], str] = lambda: "",
) -> Listener:
    """Listen on every address of the settings, or on `sockets` that listen already, with TLS where the settings name a
    certificate. With `share`, other processes accept from these sockets, too.

    A WebSocket handshake is refused for a path other than `STREAM_PATH` (404), from a page that may not use the server
    (403, see `Origins`), for a wrong key or token in its header (401, 403), and for subprotocols of which none is ours
    (400). A client that offers no subprotocol is taken as one that speaks ours. Pages cannot read such answers: where
    one offers our subprotocol, or a token as another one, it is let in with `GatewayConnection.refusal`, for
    `websocket_handler` to tell it. While `not_serving` says why nobody is served, a
    handshake that a proxy passes on gets 503, so that the proxy can ask another server.

    Raises ListenError where an address cannot be had and ValueError for a bad certificate, in one line for the user.
    """
    ssl = tls_context(settings.tls_cert, settings.tls_key)
    if sockets is None:
        sockets = await open_sockets(settings.hosts, settings.port)
    shared = ListenerState(
        config=http_config(app),
        max_connections=max_connections(settings),
        head_timeout_s=settings.head_timeout_s,
        stall_timeout_s=settings.stall_timeout_s,
        on_count=share.on_count if share is not None else lambda _: None,
    )
    addresses = [Address(*sock.getsockname()[:2]) for sock in sockets if sock.family != socket.AF_UNIX]
    listener = Listener(shared, addresses, secure=ssl is not None)
    if metrics is not None:
        metrics.connections.set_function(lambda: listener.connection_count)
    judge = partial(judge_handshake, Origins.of(settings), principals or Principals(), not_serving)
    for sock in sockets:
        kind: dict[str, Any] = {"ssl": ssl} if ssl is not None else {}
        if ssl is not None:
            kind["ssl_handshake_timeout"] = settings.head_timeout_s
        if sock.family == socket.AF_UNIX:
            kind["unix"] = True
        server = serve(
            partial(listener._run, websocket_handler),
            sock=sock,
            backlog=1024,
            # A subclass with one argument filled in; websockets only calls it.
            create_connection=cast(type[ServerConnection], partial(GatewayConnection, shared)),
            compression=None,  # makes Opus bigger, costs CPU, and lets small messages swell
            subprotocols=SUBPROTOCOLS,
            select_subprotocol=select_subprotocol,
            process_request=judge,
            process_response=shape_refusal,
            server_header=None,
            open_timeout=settings.head_timeout_s,
            max_size=MAX_MESSAGE_BYTES,
            logger=logger,
            **_BOUNDS,
            **kind,
        )
        if share is not None:
            _share_socket(shared, server, sock, share, kind)
        listener._servers.append(await server)
    return listener


def _share_socket(
    shared: ListenerState, serving: Any, sock: socket.socket, share: Share, options: dict[str, Any]
) -> None:
    """Have `serving`, what `serve` gave, accept in turns with other processes."""
    if isinstance(serving, Server):
        serving.create_server = partial(_accept_in_turns, shared, serving, sock, share, options)
    else:  # older versions of websockets: an object of its own has the server, and made already what it will wait for
        serving.create_server.close()
        serving.create_server = _accept_in_turns(shared, serving.server, sock, share, options)


async def _accept_in_turns(
    shared: ListenerState, server: Server, sock: socket.socket, share: Share, options: dict[str, Any]
) -> asyncio.Server:
    """What websockets makes of `loop.create_server`, for a socket that is shared."""

    def factory() -> GatewayConnection:
        protocol = ServerProtocol(
            subprotocols=SUBPROTOCOLS,
            select_subprotocol=select_subprotocol,
            max_size=MAX_MESSAGE_BYTES,
            logger=logger,
        )
        return GatewayConnection(shared, protocol, server, **_BOUNDS)

    # websockets asks nothing of it that other servers of asyncio have not.
    return cast(asyncio.Server, SharedAcceptor(sock, factory, share.patience, **options))
