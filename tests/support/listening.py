"""A listener with a small application and a WebSocket that echoes, inside the test's event loop."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from websockets.asyncio.server import ServerConnection

from server.gateway.auth import Principals
from server.gateway.listener import Listener, start_listener
from server.settings import Settings
from tests.support.raw_http import TLS


async def echo(connection: ServerConnection) -> None:
    """Send every message back."""
    async for message in connection:
        await connection.send(message)


async def body_length(request: Request) -> Response:
    """How many bytes came."""
    return JSONResponse(
        {"length": len(await request.body()), "client": request.client.host if request.client else None}
    )


async def events(_: Request) -> Response:
    """Three server-sent events."""

    async def each() -> AsyncIterator[str]:
        for number in range(3):
            yield f"data: {number}\n\n"
            await asyncio.sleep(0)

    return StreamingResponse(each(), media_type="text/event-stream")


async def endless(_: Request) -> Response:
    """More than any buffer holds."""

    async def each() -> AsyncIterator[bytes]:
        while True:
            yield bytes(65_536)
            await asyncio.sleep(0)  # sending to a peer that is gone does not wait

    return StreamingResponse(each())


async def broken(_: Request) -> Response:
    """Fails."""
    raise RuntimeError("a fault of the server")


def small_app() -> Starlette:
    """The application."""
    return Starlette(
        routes=[
            Route("/", body_length, methods=["GET", "POST"]),
            Route("/events", events),
            Route("/endless", endless),
            Route("/broken", broken),
        ]
    )


@asynccontextmanager
async def listening(
    handler: Callable[[ServerConnection], Awaitable[None]] = echo,
    *,
    app: Any = None,
    principals: Principals | None = None,
    secure: bool = False,
    **settings: Any,
) -> AsyncIterator[Listener]:
    """A listener on a free loopback port, closed in the end. Fails where it leaves a connection behind."""
    if secure:
        settings |= {"tls_cert": TLS / "certificate.pem", "tls_key": TLS / "key.pem"}
    listener = await start_listener(
        Settings(**{"port": 0, **settings}),
        app=app or small_app(),
        websocket_handler=handler,
        principals=principals,
    )
    try:
        yield listener
    finally:
        await listener.close(0.5)
        assert listener.connection_count == 0
