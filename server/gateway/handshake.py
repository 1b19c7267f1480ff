"""Which WebSocket handshakes are answered with an error, and who comes in to be told why it cannot stay.

A page cannot read how its handshake was refused, so what it may do something about comes as a message instead.
"""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Final

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import NegotiationError
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from protocol import STREAM_PATH, SUBPROTOCOL
from server.gateway.auth import WRONG_KEY, Principals, bearer_key, bearer_token
from server.gateway.connection import GatewayConnection
from server.gateway.origins import Origins
from server.gateway.replies import error_body, handshake_error
from server.gateway.tokens import TOKEN_CHALLENGE, TokenError, offered_tokens

SUBPROTOCOLS: Final = (Subprotocol(SUBPROTOCOL),)
PROXY_HEADER: Final = "X-Forwarded-For"  # what every proxy adds


def select_subprotocol(_: object, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    """Ours, or none to a client that offers none. Raises NegotiationError."""
    if not offered:
        return None
    if SUBPROTOCOL in offered:
        return Subprotocol(SUBPROTOCOL)
    raise NegotiationError(f"no subprotocol in common: this server speaks {SUBPROTOCOL}")


def judge_handshake(
    origins: Origins,
    principals: Principals,
    not_serving: Callable[[], str],
    connection: ServerConnection,
    request: Request,
) -> Response | None:
    """The answer that refuses this handshake; None lets it in, with the connection's `principal` or `refusal`."""
    assert isinstance(connection, GatewayConnection)
    if request.path.partition("?")[0] != STREAM_PATH:
        return handshake_error(HTTPStatus.NOT_FOUND, f"no WebSocket at this path; there is one at {STREAM_PATH}")
    pages = request.headers.get_all("Origin")
    if len(pages) > 1:
        return handshake_error(HTTPStatus.BAD_REQUEST, "there is more than one header Origin")
    problem = origins.problem(pages, request.headers.get_all("Host"))
    if problem and not (pages and _offers_ours(request)):
        return handshake_error(HTTPStatus.FORBIDDEN, problem)
    connection.refusal = problem
    refused = _check_credentials(principals, connection, request)
    if refused is not None:
        return refused
    if request.headers.get_all(PROXY_HEADER) and (reason := not_serving()):  # others hear it in a `busy` message
        retry = [("Retry-After", "1")]
        return handshake_error(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}", headers=retry)
    return None


def _offers_ours(request: Request) -> bool:
    offered = ",".join(request.headers.get_all("Sec-WebSocket-Protocol")).split(",")
    return SUBPROTOCOL in (each.strip() for each in offered)


def _check_credentials(principals: Principals, connection: GatewayConnection, request: Request) -> Response | None:
    """The refusal of a handshake for its key or its token, as far as that can be told in the answer to it."""
    offered = offered_tokens(request.headers.get_all("Sec-WebSocket-Protocol"))
    keys = request.headers.get_all("Authorization")
    if len(keys) > 1:
        return handshake_error(HTTPStatus.BAD_REQUEST, "there is more than one header Authorization")
    if offered:  # a browser may add the password of a proxy in front of us
        keys = [key for key in keys if bearer_key(key) is not None]
    if len(keys) + len(offered) > 1:
        return handshake_error(HTTPStatus.BAD_REQUEST, "there is more than one key or token")
    header = keys[0] if keys else None
    token = offered[0] if offered else bearer_token(header)
    if token is not None:
        try:
            connection.principal = principals.of_token(token, ("speak",), request.headers.get_all("Origin"))
        except TokenError as error:
            if not offered:
                return _token_error(error)
            connection.refusal = connection.refusal or str(error)
    elif principals.refuses_handshake(header):
        challenge = [("WWW-Authenticate", "Bearer")]
        return handshake_error(HTTPStatus.UNAUTHORIZED, WRONG_KEY, headers=challenge)
    return None


def _token_error(error: TokenError) -> Response:
    if error.forbidden:
        return handshake_error(HTTPStatus.FORBIDDEN, str(error))
    return handshake_error(HTTPStatus.UNAUTHORIZED, str(error), headers=[("WWW-Authenticate", TOKEN_CHALLENGE)])


def shape_refusal(_: ServerConnection, __: Request, response: Response) -> Response | None:
    """Give the refusals of websockets itself the shape that all our errors have."""
    if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS and "text/plain" in response.headers.get(
        "Content-Type", ""
    ):
        text = response.body.decode("utf-8", "replace").strip()
        response.body = error_body(response.status_code, text)
        for name, value in (("Content-Type", "application/json"), ("Content-Length", str(len(response.body)))):
            del response.headers[name]
            response.headers[name] = value
    return None
