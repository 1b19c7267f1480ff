"""Which web pages may use the server.

A browser lets every page open WebSockets and send simple POST requests to every address, this machine's included. It
names the page in the header `Origin`, which programs leave out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from server.gateway.replies import error_body
from server.settings import Settings, is_loopback

ANY: Final = "*"
DEFAULT_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origins:
    """Pages from `allowed` origins may use the server, and those that it is itself the origin of.

    `local_only`: only this machine can reach it and no key is needed. Then a page whose name was made to point at this
    machine (DNS rebinding) would be its own origin, so the `Host` must be a name of this machine or of an allowed page.
    """

    allowed: frozenset[str] = frozenset()
    local_only: bool = False

    @classmethod
    def of(cls, settings: Settings) -> "Origins":
        """Those of the settings."""
        local_only = settings.keys is None and all(is_loopback(host) for host in settings.hosts)
        return cls(frozenset(settings.origins), local_only)

    def problem(self, origins: list[str], hosts: list[str]) -> str:
        """Why a request with these `Origin` and `Host` headers is refused; empty where it is not."""
        if ANY in self.allowed:
            return ""
        host = hosts[0] if len(hosts) == 1 else ""
        if self.local_only and hosts and not self._is_ours(host):
            return f"the host {host!r} is no name of this machine; allow_origins can allow it"
        if not origins or (len(origins) == 1 and (origins[0].lower() in self.allowed or _is_same(origins[0], host))):
            return ""
        return f"pages from {origins[0]!r} may not use this server; allow_origins can allow them"

    def _is_ours(self, host: str) -> bool:
        name = _place(f"//{host}")[0].removesuffix(".")
        return is_loopback(name) or name.endswith(".localhost") or name in {_place(each)[0] for each in self.allowed}


def is_from(origin: str, origins: Sequence[str], hosts: Sequence[str]) -> bool:
    """Whether a page from `origin` sent a request with these headers `Origin` and `Host`. Browsers leave `Origin` out
    where a page only reads from its own host.
    """
    if origins:
        return len(origins) == 1 and origins[0].lower() == origin
    return len(hosts) == 1 and _is_same(origin, hosts[0])


def _is_same(origin: str, host: str) -> bool:
    """Whether a page from `origin` came from `host` itself. The scheme is not compared: a proxy may have ended TLS."""
    page, page_port = _place(origin)
    server, server_port = _place(f"//{host}")
    default = DEFAULT_PORTS.get(origin.partition("://")[0].lower())
    return page != "" and (page, page_port or default) == (server, server_port or default)


def _place(url: str) -> tuple[str, int | None]:
    """Host, in lower case and without brackets, and port of a URL; nothing where it is none."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.port
    except ValueError:
        return "", None


class CheckOrigin:
    """ASGI middleware: refuses what makes the server work or forget (POST, DELETE) for pages that may not use it."""

    def __init__(self, app: ASGIApp, origins: Origins) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] == "http" and scope["method"] in ("POST", "DELETE"):
            headers = Headers(scope=scope)
            problem = self._origins.problem(headers.getlist("origin"), headers.getlist("host"))
            if problem:
                await _refuse(send, problem)
                return
        await self._app(scope, receive, send)


async def _refuse(send: Send, problem: str) -> None:
    body = error_body(HTTPStatus.FORBIDDEN, problem)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": HTTPStatus.FORBIDDEN.value, "headers": headers})
    await send({"type": "http.response.body", "body": body})
