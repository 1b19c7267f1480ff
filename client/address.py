"""Where the server is: what a user may write for `--url`. Pure."""

from typing import Final
from urllib.parse import urlsplit, urlunsplit

from client.defaults import DEFAULT_PORT, DEFAULT_URL
from client.errors import ConnectFailed
from protocol import STREAM_PATH

_TO_WEBSOCKET: Final = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}
_LOOPBACK: Final = {"localhost", "127.0.0.1", "::1"}


def stream_url(url: str) -> str:
    """The WebSocket address for `url`: `host`, `host:port`, ws(s) or http(s), with or without a path.

    Raises ConnectFailed.
    """
    wrong = ConnectFailed(f"{url!r} is no server address: write it like {DEFAULT_URL}")
    try:
        parts = urlsplit(url if "://" in url else f"ws://{url}")
        scheme = _TO_WEBSOCKET.get(parts.scheme) if parts.hostname and parts.port != 0 else None
        bare = "://" not in url and parts.port is None
    except ValueError:  # a port that is no number or too large, half a bracket
        raise wrong from None
    if scheme is None:
        raise wrong
    path = STREAM_PATH if parts.path in ("", "/") else parts.path
    netloc = f"{parts.netloc}:{DEFAULT_PORT}" if bare else parts.netloc
    return urlunsplit((scheme, netloc, path, parts.query, ""))


def http_url(url: str, path: str) -> str:
    """The HTTP address of `path` on the same server. Raises ConnectFailed."""
    parts = urlsplit(stream_url(url))
    return urlunsplit(("https" if parts.scheme == "wss" else "http", parts.netloc, path, "", ""))


def is_loopback(url: str) -> bool:
    """Whether `url` names this machine: never ask a proxy for it."""
    return urlsplit(url).hostname in _LOOPBACK
