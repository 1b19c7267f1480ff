"""Error answers over HTTP: one JSON shape, `{"error": {"code", "message", "field"}}`, whoever sends them."""

from collections.abc import Iterable
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

import orjson
from websockets.datastructures import Headers
from websockets.http11 import Response

ERROR_CODES: Final[dict[int, str]] = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    406: "not_acceptable",
    408: "request_timeout",
    409: "conflict",
    411: "length_required",
    413: "too_big",
    414: "uri_too_long",
    415: "unsupported_media_type",
    422: "bad_value",
    426: "upgrade_required",
    429: "too_many_requests",
    431: "head_too_big",
    500: "internal",
    501: "not_implemented",
    503: "unavailable",
    505: "version_not_supported",
    507: "no_room",
}
"""The `code` of an error by its HTTP status, where nothing more exact is known."""

HeaderPairs = Iterable[tuple[str, str]]


def error_body(status: int, message: str, *, code: str | None = None, field: str | None = None) -> bytes:
    """The JSON body of an error answer."""
    name = code or ERROR_CODES.get(status, "error")
    return orjson.dumps({"error": {"code": name, "message": message, "field": field}})


def raw_error(status: HTTPStatus, message: str, headers: HeaderPairs = ()) -> bytes:
    """A whole HTTP/1.1 error answer, for where no HTTP stack is at work yet. It announces that the connection ends."""
    body = error_body(status, message)
    lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
    lines += [f"{name}: {value}" for name, value in _headers(body, headers)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def handshake_error(
    status: HTTPStatus, message: str, *, code: str | None = None, field: str | None = None, headers: HeaderPairs = ()
) -> Response:
    """What `process_request` returns to refuse a WebSocket."""
    body = error_body(status, message, code=code, field=field)
    return Response(status.value, status.phrase, Headers(_headers(body, headers)), body)


def _headers(body: bytes, more: HeaderPairs) -> list[tuple[str, str]]:
    return [
        ("Date", formatdate(usegmt=True)),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
        *more,
    ]
