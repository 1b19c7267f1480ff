"""Who may use the server: API keys, of which only hashes are kept, and the principals they stand for.

The key file has one line for each key, `name sha256hex`, and comments after `#`. A key has 192 random bits, so a plain
hash protects it: there is nothing to guess, which salts and slow hashes are for.
"""

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

KEY_PREFIX: Final = "cosy_"  # lets scanners for leaked secrets know one when they see it
KEY_BYTES: Final = 24
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")


class KeysError(ValueError):
    """The key file cannot be used; the text is one line for the user."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody whom sessions belong to."""

    name: str


ANONYMOUS: Final = Principal("anonymous")


class Handshake(Protocol):
    """What is asked of a WebSocket connection: `ServerConnection` has it."""

    @property
    def remote_address(self) -> object: ...
    @property
    def authorization(self) -> str | None: ...


def hash_key(key: str) -> str:
    """What the key file holds of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def bearer_key(header: str) -> str | None:
    """The key in the value of an `Authorization: Bearer KEY` header, or None where it is something else."""
    scheme, _, key = header.strip().partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def is_loopback_peer(remote: object) -> bool:
    """Whether a peer's address, as asyncio gives it, is of this machine."""
    host = remote[0] if isinstance(remote, tuple) and remote else remote
    if not isinstance(host, str):
        return False
    try:
        address = ipaddress.ip_address(host.split("%", 1)[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


class Principals:
    """Those who may use the server. Without a key file that is everybody, as `anonymous`.

    Behind a proxy every peer looks local, so a key file holds for peers on this machine too.
    """

    def __init__(self, hashes: Mapping[str, str] | None = None) -> None:
        """`hashes` gives the name for each hash; None stands for no key file."""
        self._hashes = None if hashes is None else dict(hashes)

    @classmethod
    def load(cls, path: Path | None) -> "Principals":
        """Those of a key file; of none: everybody. Raises KeysError."""
        return cls(None if path is None else {entry.hash: entry.name for entry in read_key_file(path)})

    @property
    def keys_needed(self) -> bool:
        """Whether a client needs a key."""
        return self._hashes is not None

    def authenticate(self, header: str | None, api_key: str | None = None) -> Principal | None:
        """The principal of an `Authorization` header's value, or else of a key given in a message; None: refused."""
        if self._hashes is None:
            return ANONYMOUS
        key = bearer_key(header) if header is not None else api_key
        if not key:
            return None
        given = hash_key(key)
        found: str | None = None
        for known, name in self._hashes.items():  # all of them: time must not tell which one nearly matched
            if hmac.compare_digest(known, given):
                found = name
        return None if found is None else Principal(found)

    def refuses_handshake(self, header: str | None) -> bool:
        """Whether a WebSocket handshake with this header, or None for none, ends at once.

        Browsers cannot set headers on WebSockets: without one the key may still come in `open.api_key`.
        """
        return header is not None and self.authenticate(header) is None
