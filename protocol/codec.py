"""Bytes to messages and back. Nothing is believed before it is checked."""

import dataclasses
from typing import Any, Final, TypeVar, cast

import orjson

from protocol.client_messages import CLIENT_MESSAGES, RESERVED, ClientMessage
from protocol.errors import ErrorCode, ProtocolError
from protocol.fields import Check, checks_of
from protocol.limits import MAX_MESSAGE_BYTES
from protocol.server_messages import SERVER_MESSAGES, ServerMessage

M = TypeVar("M")
_Fields = tuple[tuple[str, Check, bool], ...]

_CLIENT: Final[dict[str, tuple[type[ClientMessage], _Fields]]] = {c.type: (c, checks_of(c)) for c in CLIENT_MESSAGES}
_SERVER: Final[dict[str, tuple[type[ServerMessage], _Fields]]] = {s.type: (s, checks_of(s)) for s in SERVER_MESSAGES}
_DEFAULTS: Final[dict[type, tuple[tuple[str, Any], ...]]] = {
    cls: tuple((f.name, f.default) for f in dataclasses.fields(cls)) for cls in (*CLIENT_MESSAGES, *SERVER_MESSAGES)
}


def decode_client(data: str | bytes) -> ClientMessage:
    """A client's message. Raises ProtocolError."""
    return _decode(data, _CLIENT)


def decode_server(data: str | bytes) -> ServerMessage:
    """A server's message. Raises ProtocolError."""
    return _decode(data, _SERVER)


def encode(message: ClientMessage | ServerMessage) -> str:
    """The JSON text of a message. Fields that hold their default are left out."""
    body: dict[str, Any] = {"type": message.type}
    for name, default in _DEFAULTS[type(message)]:
        value = getattr(message, name)
        if default is dataclasses.MISSING or value != default:
            body[name] = value
    try:
        return orjson.dumps(body).decode()
    except TypeError:  # a lone surrogate has no UTF-8 form: it is not text, and says nothing
        return orjson.dumps(_without_surrogates(body)).decode()


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_without_surrogates(k): _without_surrogates(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(v) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _without_surrogates(dataclasses.asdict(value))
    return value


def _size(data: str | bytes) -> int:
    """Bytes on the wire. Characters are only encoded where their number leaves it open: it costs a copy."""
    if isinstance(data, str) and not data.isascii() and 4 * len(data) > MAX_MESSAGE_BYTES:
        return len(data.encode("utf-8", "surrogatepass"))
    return len(data)


def _decode(data: str | bytes, table: dict[str, tuple[type[M], _Fields]]) -> M:
    size = _size(data)
    if size > MAX_MESSAGE_BYTES:
        raise ProtocolError(ErrorCode.TOO_BIG, f"a message has at most {MAX_MESSAGE_BYTES} bytes, this one {size}")
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(ErrorCode.BAD_JSON, f"not JSON: {error}") from None
    if not isinstance(body, dict):
        raise ProtocolError(ErrorCode.BAD_JSON, "a message is a JSON object with a `type`")
    kind = body.get("type")
    known = table.get(kind) if isinstance(kind, str) else None
    if known is None:
        if kind in RESERVED and table is cast(Any, _CLIENT):
            raise ProtocolError(ErrorCode.UNSUPPORTED, f"`{kind}` is reserved; this server does not dub", "type")
        shown = f"type `{kind[:40]}` is not" if isinstance(kind, str) else "a message needs a `type`,"
        raise ProtocolError(ErrorCode.UNKNOWN_TYPE, f"{shown} one of {', '.join(table)}", "type")
    cls, fields = known
    values: dict[str, object] = {}
    for name, check, required in fields:
        if name in body:
            try:
                values[name] = check(body[name])
            except ValueError as error:
                where = f"{kind}.{name}"
                raise ProtocolError(ErrorCode.BAD_MESSAGE, f"{where} must be {error}", where) from None
        elif required:
            raise ProtocolError(ErrorCode.BAD_MESSAGE, f"{kind}.{name} is missing", f"{kind}.{name}")
    return cls(**values)
