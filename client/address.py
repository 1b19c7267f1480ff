"""Where the server is: what a user may write for `--url`, and why a connection could not be made, in one line."""

import socket
import ssl
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from client.errors import ConnectFailed
from protocol import STREAM_PATH

DEFAULT_URL: Final = "ws://127.0.0.1:8765"
_TO_WEBSOCKET: Final = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}
_LOOPBACK: Final = {"localhost", "127.0.0.1", "::1"}


def stream_url(url: str) -> str:
    """The WebSocket address for `url`: `host:port`, ws(s) or http(s), with or without a path. Raises ConnectFailed."""
    wrong = ConnectFailed(f"{url!r} is no server address: write it like {DEFAULT_URL}")
    try:
        parts = urlsplit(url if "://" in url else f"ws://{url}")
        scheme = _TO_WEBSOCKET.get(parts.scheme) if parts.hostname and parts.port != 0 else None
    except ValueError:  # a port that is no number or too large, half a bracket
        raise wrong from None
    if scheme is None:
        raise wrong
    path = STREAM_PATH if parts.path in ("", "/") else parts.path
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))


def http_url(url: str, path: str) -> str:
    """The HTTP address of `path` on the same server. Raises ConnectFailed."""
    parts = urlsplit(stream_url(url))
    return urlunsplit(("https" if parts.scheme == "wss" else "http", parts.netloc, path, "", ""))


def is_loopback(url: str) -> bool:
    """Whether `url` names this machine: never ask a proxy for it."""
    return urlsplit(url).hostname in _LOOPBACK


def explain_os_error(url: str, error: OSError) -> str:
    """One line for a connection that could not be made."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {url} is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"{url} does not speak TLS: try ws:// instead of wss://"
    if isinstance(error, socket.gaierror):
        return f"no host has the name in {url}: check the address"
    if isinstance(error, ConnectionRefusedError) or "Connect call failed" in str(error):
        return f"nothing listens at {url}: start the server (python -m server) or name another with --url"
    if isinstance(error, TimeoutError):
        return f"{url} does not answer: check the address and the firewall"
    if isinstance(error, ConnectionError):
        return f"{url} closed the connection at once: is it a CosyStream server?"
    return f"cannot reach {url}: {error.strerror or error}"


def explain_status(url: str, status: int) -> str:
    """One line for a server that answered the handshake with an HTTP status."""
    match status:
        case 401 | 403:
            return f"{url} refuses the API key (HTTP {status}): set --api-key or COSYSTREAM_API_KEY"
        case 404 | 405:
            return f"{url} has no such path (HTTP {status}): a CosyStream server has {STREAM_PATH}"
        case 429 | 503:
            return f"{url} is full or not ready yet (HTTP {status}): try again in a moment"
        case 426 | 400 | 200:
            return f"{url} answers with HTTP {status} instead of a WebSocket: is it a CosyStream server?"
        case _:
            return f"{url} answers with HTTP {status}: its log has the cause"
