"""The TLS side of the listener."""

import ssl
from pathlib import Path


def tls_context(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """What serves TLS with a certificate chain and its key, both PEM; None without them.

    Raises ValueError, in one line for the user, where the two cannot be used.
    """
    if certificate is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])

    def no_password() -> str:
        raise ValueError(f"the key in {key} is encrypted; tls_key must be one without a password")

    try:
        context.load_cert_chain(certificate, key, password=no_password)
    except ssl.SSLError as problem:
        reason = (problem.reason or str(problem)).replace("_", " ").lower()
        raise ValueError(f"tls_cert {certificate} and tls_key {key} cannot be used: {reason}") from problem
    except OSError as problem:
        raise ValueError(f"tls_cert {certificate} or tls_key {key} cannot be read: {problem.strerror}") from problem
    return context
