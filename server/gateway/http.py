"""The HTTP side: probes, metrics, and errors in one JSON shape. Other routes are passed in."""

from collections.abc import AsyncGenerator, Awaitable, Callable, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Protocol

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Match, Route

from protocol import STREAM_PATH, SUBPROTOCOL
from server.engines.base import Capabilities
from server.gateway.auth import WRONG_KEY, Principal, Principals, bearer_key, bearer_token
from server.gateway.origins import CheckOrigin, Origins
from server.gateway.replies import error_body
from server.gateway.tokens import TOKEN_CHALLENGE, TokenError, Use
from server.observe.metrics import CONTENT_TYPE, Metrics
from server.session import Policy

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HttpState(Protocol):
    """What the HTTP side asks of the server."""

    @property
    def name(self) -> str:
        """Among several gateways; empty for the only one."""

    @property
    def not_ready_reason(self) -> str:
        """Why the server cannot speak now; empty when it can."""

    @property
    def capabilities(self) -> Capabilities | None:
        """The engine's, once it is loaded."""

    @property
    def policy(self) -> Policy | None:
        """What sessions go by, once the engine is loaded."""

    @property
    def principals(self) -> Principals: ...

    @property
    def metrics(self) -> Metrics: ...

    async def scrape(self) -> bytes:
        """The metrics as Prometheus reads them."""


class ApiError(HTTPException):
    """An error answer whose `code` and `field` say more than its status."""

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        code: str | None = None,
        field: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.code = code
        self.field = field


async def warm_up() -> None:
    """Stream an answer to nobody: what Starlette streams with is loaded only then, which takes the event loop 20 ms."""

    async def nothing() -> AsyncGenerator[bytes]:
        yield b""

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    async def send(_: MutableMapping[str, Any]) -> None:
        pass

    await StreamingResponse(nothing())({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)


def json_response(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(orjson.dumps(content), status, headers, "application/json")


def error_response(
    status: int, code: str | None, message: str, field: str | None = None, headers: dict[str, str] | None = None
) -> Response:
    """An error answer; without a `code` the status names it."""
    return Response(error_body(status, message, code=code, field=field), status, headers, "application/json")


def require_principal(state: HttpState, request: Request, *uses: Use) -> Principal:
    """Who sent `request`. A token must be for one of `uses`; without any only a key will do. Raises ApiError 401, and
    403 where a token is good, but not for this.
    """
    given = request.headers.getlist("authorization")
    if len(given) > 1:
        raise ApiError(HTTPStatus.BAD_REQUEST, "there is more than one header Authorization")
    header = given[0] if given else None
    token = bearer_token(header)
    if token is not None:
        return _of_token(state, request, token, uses)
    principal = state.principals.authenticate(header)
    if principal is None:
        message = "an API key is needed: header `Authorization: Bearer KEY`"
        if header is not None and bearer_key(header) is not None:
            message = WRONG_KEY
        raise ApiError(HTTPStatus.UNAUTHORIZED, message, headers={"WWW-Authenticate": "Bearer"})
    return principal


def _of_token(state: HttpState, request: Request, token: str, uses: Sequence[Use]) -> Principal:
    if not uses:
        raise ApiError(HTTPStatus.FORBIDDEN, "this needs an API key: a token will not do")
    origins, hosts = request.headers.getlist("origin"), request.headers.getlist("host")
    try:
        return state.principals.of_token(token, uses, origins, hosts)
    except TokenError as error:
        if error.forbidden:
            raise ApiError(HTTPStatus.FORBIDDEN, str(error)) from None
        challenge = {"WWW-Authenticate": TOKEN_CHALLENGE}
        raise ApiError(HTTPStatus.UNAUTHORIZED, str(error), headers=challenge) from None


def require_ready(state: HttpState) -> tuple[Capabilities, Policy]:
    """The engine's capabilities and the policy. Raises ApiError 503 until the server can speak."""
    capabilities, policy = state.capabilities, state.policy
    if state.not_ready_reason or capabilities is None or policy is None:
        reason = state.not_ready_reason or "not ready"
        raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}", headers={"Retry-After": "1"})
    return capabilities, policy


def build_app(state: HttpState, routes: Sequence[BaseRoute] = (), origins: Origins | None = None) -> Starlette:
    """The ASGI application. `routes` are served beside its own; pages of `origins` may use it."""
    origins = origins or Origins()

    async def healthz(_: Request) -> Response:
        return json_response({"status": "ok", "gateway": state.name} if state.name else {"status": "ok"})

    async def readyz(_: Request) -> Response:
        reason = state.not_ready_reason
        if reason:
            return json_response({"ready": False, "reason": reason}, 503, {"Retry-After": "1"})
        return json_response({"ready": True})

    async def metrics(_: Request) -> Response:
        return Response(await state.scrape(), media_type=CONTENT_TYPE)

    async def stream(_: Request) -> Response:
        message = f"this path speaks WebSocket: connect to it with ws:// or wss://, subprotocol {SUBPROTOCOL}"
        raise ApiError(
            HTTPStatus.UPGRADE_REQUIRED, message, headers={"Upgrade": "websocket", "Connection": "Upgrade, close"}
        )

    app = Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
            Route(STREAM_PATH, stream),
            *routes,
        ],
        exception_handlers={
            HTTPException: _http_error,
            ClientDisconnect: _gone,
            Exception: _internal_error,
        },
    )
    app.router.redirect_slashes = False
    app.add_middleware(CheckOrigin, origins=origins)
    if origins.allowed:  # so that those pages may also read the answers
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(origins.allowed),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type"],  # no cookies: keys and tokens are sent by name
            expose_headers=["Location", "Retry-After", "WWW-Authenticate"],
            allow_private_network=True,  # browsers ask where a public page wants a server on a private address
        )
    app.add_middleware(_CountRequests, metrics=state.metrics, routes=app.router.routes)
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code == HTTPStatus.NOT_FOUND and message == HTTPStatus.NOT_FOUND.phrase:
        message = "nothing is at this path"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        message = f"{request.method} is not possible at this path"
    code, field = (error.code, error.field) if isinstance(error, ApiError) else (None, None)
    return error_response(error.status_code, code, message, field, dict(error.headers or {}))


async def _gone(_: Request, __: Exception) -> Response:
    """The client left before its request was whole: nobody reads this, but nothing went wrong here."""
    return Response(status_code=400)


async def _internal_error(_: Request, __: Exception) -> Response:
    """The cause goes to the log (Starlette raises it again), not to the client."""
    return error_response(500, None, "the server failed; its log has the cause")


class _CountRequests:
    """Counts answers by method, route and status; what peers invent counts as `other`, so that labels stay few."""

    def __init__(
        self, app: Callable[[Scope, Receive, Send], Awaitable[None]], metrics: Metrics, routes: list[BaseRoute]
    ):
        self._app = app
        self._metrics = metrics
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                method = scope["method"] if scope["method"] in _METHODS else "other"
                self._metrics.http_requests.labels(method, self._route(scope), str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counted if scope["type"] == "http" else send)

    def _route(self, scope: Scope) -> str:
        for route in self._routes:
            if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
                return route.path
        return "other"
