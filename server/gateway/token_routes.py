"""`POST /v1/tokens`: a short-lived token for a browser, for whoever has a key."""

from http import HTTPStatus
from math import ceil
from typing import Final, Protocol

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from protocol import TOKEN_SUBPROTOCOL
from protocol.errors import ProtocolError
from server.gateway.doorkeeper import Doorkeeper, Refused
from server.gateway.http import ApiError, HttpState, json_response, require_principal
from server.gateway.tokens import parse_request

log = structlog.get_logger(__name__)

TOKENS_PATH: Final = "/v1/tokens"
MAX_BODY_BYTES: Final = 4096


class TokensState(HttpState, Protocol):
    """What the server offers to this route."""

    @property
    def doorkeeper(self) -> Doorkeeper:
        """Counts attempts with wrong keys."""


def token_routes(state: TokensState) -> list[Route]:
    """The route, for `build_app`."""

    async def made(request: Request) -> Response:
        try:
            principal = require_principal(state, request)  # for no use at all: no token makes another one
        except ApiError as error:
            if error.status_code == HTTPStatus.UNAUTHORIZED:
                _count_failure(state, request)
            raise
        body = await _body(request)
        try:
            asked = parse_request(body)
        except ProtocolError as error:
            raise ApiError(HTTPStatus.BAD_REQUEST, error.message, code=error.code, field=error.field) from None
        token, grant = state.principals.make_token(principal, asked)
        log.debug("a token was made", principal=principal.name, scope=grant.scope, ttl_s=asked.ttl_s)
        answer = {
            "token": token,
            "subprotocol": TOKEN_SUBPROTOCOL + token,
            "expires_at": grant.expires_at,
            "ttl_s": asked.ttl_s,
            "scope": grant.scope,
            "origin": grant.origin,
            "principal": grant.principal,
        }
        return json_response(answer, headers={"Cache-Control": "no-store"})

    return [Route(TOKENS_PATH, made, methods=["POST"])]


def _count_failure(state: TokensState, request: Request) -> None:
    """A key was wrong. Raises ApiError 429 where there were too many from this address."""
    try:
        state.doorkeeper.check_failure(request.client.host if request.client is not None else "")
    except Refused as refused:
        after = {"Retry-After": str(max(1, ceil(refused.refusal.retry_after_s)))}
        status = HTTPStatus.TOO_MANY_REQUESTS
        raise ApiError(status, refused.refusal.message, code=refused.refusal.reason, headers=after) from None


async def _body(request: Request) -> bytes:
    data = b""
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_BODY_BYTES:
            raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"at most {MAX_BODY_BYTES} bytes are taken")
    return data
