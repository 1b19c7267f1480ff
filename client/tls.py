"""Whom to trust, where the server speaks TLS."""

import ssl
from pathlib import Path
from urllib.parse import urlsplit

from client.errors import ConnectFailed


def tls_context(url: str, authorities: str | Path | None) -> ssl.SSLContext | None:
    """For a connection to `url`; None where that is without TLS. `authorities`: a file of certificates (PEM) that are
    trusted in place of the system's. Raises ConnectFailed.
    """
    if urlsplit(url).scheme not in ("wss", "https"):
        return None
    try:
        return ssl.create_default_context(cafile=authorities)
    except ssl.SSLError:
        reason = "has no certificate (PEM) in it"
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = f"cannot be read: {error.strerror if isinstance(error, OSError) else error}"
    raise ConnectFailed(f"--tls-ca {authorities} {reason}")
