"""Why a connection could not be made, in one line that says what to do."""

import json
import re
import socket
import ssl
from typing import Final

from protocol import STREAM_PATH

RETRY_AFTER_S: Final = 1.0  # of who says "later" without a time
BUSY_STATUSES: Final = {429: "rate", 502: "loading", 503: "loading", 504: "loading"}
"""HTTP statuses that mean "later", with the reason that `Busy` gets. 502 and 504 are a proxy's whose server is away."""
_UNKNOWN_SIGNER: Final = frozenset({18, 19, 20, 21})  # verify codes of OpenSSL: nobody known signed it
_LONGEST_REASON: Final = 300  # characters of what a stranger wrote
_SECONDS: Final = re.compile(r"[0-9]{1,9}")


def retry_after_s(header: str | None) -> float:
    """The seconds of a header `Retry-After`, or the default where it has none (it may be a date)."""
    found = _SECONDS.fullmatch(header.strip()) if header else None
    return float(found[0]) if found else RETRY_AFTER_S


def reason_in(body: bytes | None) -> str:
    """`error.message` of an error answer, on one line; empty where the body is something else."""
    try:
        message = json.loads(body or b"")["error"]["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    if not isinstance(message, str):
        return ""
    printable = "".join(character if character.isprintable() else " " for character in message)
    return " ".join(printable.split())[:_LONGEST_REASON].rstrip(".")


def explain_os_error(url: str, error: OSError) -> str:
    """One line for a connection that could not be made."""
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = " (--tls-ca FILE trusts it)" if error.verify_code in _UNKNOWN_SIGNER else ""
        return f"the certificate of {url} is not trusted: {error.verify_message}{hint}"
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


def explain_status(url: str, status: int, body: bytes | None = None) -> str:
    """One line for a server that answered with an HTTP status, and with this body."""
    reason = reason_in(body)
    if reason and (status not in (401, 404, 405) or reason.startswith("the token ")):
        what = "is not ready" if status in BUSY_STATUSES else "refuses the connection"
        return f"{url} {what} (HTTP {status}): {reason}"
    match status:
        case 401:
            return f"{url} refuses the API key (HTTP {status}): set --api-key or COSYSTREAM_API_KEY"
        case 403:
            return f"{url} refuses the connection (HTTP 403): its log, or that of a proxy, has the cause"
        case 404 | 405:
            return f"{url} has no such path (HTTP {status}): a CosyStream server has {STREAM_PATH}"
        case 429:
            return f"{url} gets too many requests from here (HTTP 429)"
        case 502 | 503 | 504:
            return f"{url} is full or not ready yet (HTTP {status})"
        case 426 | 400 | 200:
            return f"{url} answers with HTTP {status} instead of a WebSocket: is it a CosyStream server?"
        case _:
            return f"{url} answers with HTTP {status}: its log has the cause"
