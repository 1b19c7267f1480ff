"""Short-lived tokens, which let a browser speak without a key: made for a principal, signed, and checked. Pure.

A token says itself whose it is, what for, until when and for whose pages; the server keeps nothing of it. It is
`cosyt_1.CLAIMS.SIGNATURE`: JSON and the HMAC-SHA256 of all that stands before it, both in base64url. So it has only
characters that a WebSocket subprotocol may have (RFC 7230, section 3.2.6).
"""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal, get_args

import orjson

from protocol import TOKEN_SUBPROTOCOL
from protocol.errors import ErrorCode, ProtocolError
from server.setting_kinds import Origins

Use = Literal["speak", "voices"]
"""What a token may be for: speaking (and seeing the voices), or learning and deleting voices (and seeing them)."""

USES: Final[tuple[Use, ...]] = get_args(Use)
TOKEN_PREFIX: Final = "cosyt_"  # noqa: S105  # lets scanners for leaked secrets know one; keys begin with `cosy_`
LEAST_SECRET_BYTES: Final = 32
LEAST_TTL_S: Final = 10
MOST_TTL_S: Final = 3600
DEFAULT_TTL_S: Final = 300
MAX_ORIGIN_CHARS: Final = 300
MAX_TOKEN_CHARS: Final = 1024  # more than any that we make
_HEAD: Final = f"{TOKEN_PREFIX}1"  # signed, too: another version is another kind of token
TOKEN_CHALLENGE: Final = 'Bearer error="invalid_token"'  # noqa: S105  # `WWW-Authenticate` of a 401 (RFC 6750)
_FIELDS: Final = ("ttl_s", "scope", "origin")


class TokenError(Exception):
    """A token does not help; the text says why, for whoever sent it. `forbidden`: it is good, but not for this."""

    def __init__(self, message: str, *, forbidden: bool = False) -> None:
        super().__init__(message)
        self.forbidden = forbidden


@dataclass(frozen=True, slots=True)
class Grant:
    """What a token stands for. `expires_at`: seconds since 1970; `origin`: of the pages that may use it, None: any."""

    principal: str
    scope: tuple[Use, ...]
    expires_at: int
    origin: str | None = None

    def require(self, uses: Sequence[Use]) -> None:
        """Raises TokenError where it is for none of these."""
        if not set(uses).intersection(self.scope):
            wanted = " or ".join(uses) or "this"
            raise TokenError(f"the token is not for {wanted}: its scope is {', '.join(self.scope)}", forbidden=True)


@dataclass(frozen=True, slots=True)
class Asked:
    """What somebody wants a token for."""

    ttl_s: int = DEFAULT_TTL_S
    scope: tuple[Use, ...] = ("speak",)
    origin: str | None = None


def make(secret: bytes, grant: Grant) -> str:
    """A token for this. `secret`: at least `LEAST_SECRET_BYTES`."""
    claims: dict[str, object] = {"principal": grant.principal, "scope": grant.scope, "expires_at": grant.expires_at}
    if grant.origin is not None:
        claims["origin"] = grant.origin
    signed = f"{_HEAD}.{_encoded(orjson.dumps(claims))}"
    return f"{signed}.{_signature(secret, signed)}"


def check(secret: bytes, token: str, now: float) -> Grant:
    """What a token stands for, at `now` (seconds since 1970). Raises TokenError: it is none of ours, or it is over."""
    signed, _, signature = token.rpartition(".")
    known = len(token) <= MAX_TOKEN_CHARS and token.isascii() and signed.startswith(f"{_HEAD}.")
    # The text of the signature is compared, of which there is one; several texts may decode to the same bytes.
    if not known or not hmac.compare_digest(signature, _signature(secret, signed)):
        raise TokenError("the token is invalid: this server has not made it, or not with the secret that it has now")
    claims = orjson.loads(_decoded(signed.removeprefix(f"{_HEAD}.")))
    grant = Grant(claims["principal"], tuple(claims["scope"]), claims["expires_at"], claims.get("origin"))
    if now >= grant.expires_at:
        raise TokenError("the token has expired")
    return grant


def offered_tokens(headers: Sequence[str]) -> list[str]:
    """The tokens in the values of a handshake's headers `Sec-WebSocket-Protocol`."""
    offered = [each.strip(" \t") for header in headers for each in header.split(",")]
    return [each.removeprefix(TOKEN_SUBPROTOCOL) for each in offered if each.startswith(TOKEN_SUBPROTOCOL)]


def parse_request(data: bytes) -> Asked:
    """The JSON that asks for a token; nothing at all is the defaults. Raises ProtocolError naming the field and what is
    allowed, also for an unknown one: a misspelt `origin` must not make a token for every page.
    """
    try:
        body = orjson.loads(data) if data.strip() else {}
    except orjson.JSONDecodeError as error:
        raise ProtocolError(ErrorCode.BAD_JSON, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise ProtocolError(ErrorCode.BAD_JSON, f"the body must be a JSON object with some of {', '.join(_FIELDS)}")
    for name in body:
        if name not in _FIELDS:
            raise _bad(name[:40], f"{name[:40]!r} is not one of {', '.join(_FIELDS)}")
    return Asked(
        _ttl_s(body.get("ttl_s", DEFAULT_TTL_S)), _scope(body.get("scope", ["speak"])), _origin(body.get("origin"))
    )


def _ttl_s(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not LEAST_TTL_S <= value <= MOST_TTL_S:
        raise _bad("ttl_s", f"ttl_s must be a whole number of seconds from {LEAST_TTL_S} to {MOST_TTL_S}")
    return value


def _scope(value: Any) -> tuple[Use, ...]:
    if not isinstance(value, list) or not value or any(each not in USES for each in value):
        raise _bad("scope", f"scope must be a list of at least one of {', '.join(USES)}")
    return tuple(each for each in USES if each in value)


def _origin(value: Any) -> str | None:
    if value is None:
        return None
    try:
        if not isinstance(value, str) or len(value) > MAX_ORIGIN_CHARS or "," in value:
            raise ValueError
        origin = Origins().parse(value)
        if not origin.startswith(("http://", "https://")):
            raise ValueError
        return origin
    except ValueError:
        message = "origin must be the origin of one web site, http[s]://name[:port], or null for any"
        raise _bad("origin", message) from None


def _bad(field: str, message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.BAD_MESSAGE, message, field)


def _signature(secret: bytes, signed: str) -> str:
    return _encoded(hmac.digest(secret, signed.encode("ascii"), sha256))


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
