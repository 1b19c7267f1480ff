"""Why a connection could not be made, in one line that says what to do."""

import socket
import ssl

from protocol import STREAM_PATH


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
