"""Who may use the server: API keys, of which only hashes are kept, the principals they stand for, and their tokens.

The key file has one line for each key, `name sha256hex`, and comments after `#`. A key has 192 random bits, so a plain
hash protects it: there is nothing to guess, which salts and slow hashes are for.
"""

import hashlib
import hmac
import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from server.gateway import tokens
from server.gateway.origins import is_from
from server.gateway.tokens import LEAST_SECRET_BYTES, Asked, Grant, TokenError, Use

KEY_PREFIX: Final = "cosy_"  # lets scanners for leaked secrets know one when they see it
KEY_BYTES: Final = 24
MOST_SECRET_BYTES: Final = 4096  # a larger file is hardly meant as one
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
WRONG_KEY: Final = "the API key is wrong: this server does not know it (it reads its key file when it starts)"


class KeysError(ValueError):
    """The key file, or that of the tokens' secret, cannot be used; the text is one line for the user."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody whom sessions belong to."""

    name: str


ANONYMOUS: Final = Principal("anonymous")


def hash_key(key: str) -> str:
    """What the key file holds of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def bearer_key(header: str) -> str | None:
    """The key in the value of an `Authorization: Bearer KEY` header, or None where it is something else."""
    scheme, _, key = header.strip().partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def bearer_token(header: str | None) -> str | None:
    """The token in the value of an `Authorization` header, or None where it is something else, as a key."""
    given = bearer_key(header) if header is not None else None
    return given if given is not None and given.startswith(tokens.TOKEN_PREFIX) else None


class Principals:
    """Those who may use the server. Without a key file that is everybody, as `anonymous`.

    Behind a proxy every peer looks local, so a key file holds for peers on this machine too.
    """

    def __init__(
        self,
        hashes: Mapping[str, str] | None = None,
        secret: bytes | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`hashes` gives the name for each hash; None stands for no key file. `secret` signs tokens: None is a new one.
        `now`: seconds since 1970, on a clock that other servers with this secret share.
        """
        self._hashes = None if hashes is None else dict(hashes)
        self._names = {ANONYMOUS.name} if hashes is None else set(hashes.values())
        self._secret = secret or new_secret()
        self._now = now

    @classmethod
    def load(cls, path: Path | None, secret: bytes | None = None) -> "Principals":
        """Those of a key file; of none: everybody. Raises KeysError."""
        return cls(None if path is None else {entry.hash: entry.name for entry in read_key_file(path)}, secret)

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

    def for_connection(self, header: str | None, proved: Principal | None = None) -> Callable[[str | None], str | None]:
        """What turns the key that a client's message gave, or None, into its principal's name; None: refused. `header`
        is the handshake's `Authorization`, `proved` whom a token in it stands for.
        """

        def authenticate(api_key: str | None) -> str | None:
            principal = proved or self.authenticate(header, api_key)
            return None if principal is None else principal.name

        return authenticate

    def make_token(self, principal: Principal, asked: Asked) -> tuple[str, Grant]:
        """A token for this principal, and what it stands for."""
        grant = Grant(principal.name, asked.scope, int(self._now()) + asked.ttl_s, asked.origin)
        return tokens.make(self._secret, grant), grant

    def of_token(self, token: str, uses: Sequence[Use], origins: Sequence[str], hosts: Sequence[str] = ()) -> Principal:
        """Whom a token stands for, that is to be used for one of `uses`. `origins` and `hosts`: the request's headers
        `Origin` and `Host`. A token is looked at also where no key is needed. Raises TokenError.
        """
        grant = tokens.check(self._secret, token, self._now())
        if grant.principal not in self._names:
            raise TokenError("the token is invalid: whom it was made for has no key any more")
        if grant.origin is not None and not is_from(grant.origin, origins, hosts):
            page = "names several pages" if origins else "names no page: it has no header Origin"
            if len(origins) == 1:
                page = f"comes from {origins[0]}"
            raise TokenError(f"the token is for pages from {grant.origin}; this request {page}", forbidden=True)
        grant.require(uses)
        return Principal(grant.principal)


def new_secret() -> bytes:
    """A secret to sign tokens with."""
    return secrets.token_bytes(LEAST_SECRET_BYTES)


def read_secret(path: Path | None) -> bytes:
    """The secret in a file, every byte of it; without a file a new one. Raises KeysError."""
    if path is None:
        return new_secret()
    try:
        with path.open("rb") as file:
            data = file.read(MOST_SECRET_BYTES + 1)
    except OSError as problem:
        raise KeysError(f"token secret {path} cannot be read: {problem.strerror or problem}") from problem
    if not LEAST_SECRET_BYTES <= len(data) <= MOST_SECRET_BYTES:
        size = f"{len(data)} bytes" if len(data) <= MOST_SECRET_BYTES else "more"
        raise KeysError(
            f"token secret {path} has {size}; allowed are {LEAST_SECRET_BYTES} to {MOST_SECRET_BYTES}: make one with "
            "`python -m server keys secret FILE`"
        )
    return data


def write_secret(path: Path) -> None:
    """Make a file with a new secret, readable by its owner alone. Raises KeysError, also where there is such a file."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(LEAST_SECRET_BYTES) + "\n")
    except OSError as problem:
        raise KeysError(f"token secret {path} cannot be written: {problem.strerror or problem}") from problem


def read_key_file(path: Path) -> "list[KeyEntry]":
    """The entries of a key file. Raises KeysError."""
    return [entry for _, entry in _parse(path, _read(path)) if entry is not None]


def add_key(path: Path, name: str) -> str:
    """Make a key for `name`, store its hash, and return the key, which nobody can read again later.

    A name may have several keys, so that one can be replaced without a gap. Raises KeysError.
    """
    if not _NAME.fullmatch(name):
        raise KeysError(f"{name!r} is no name for a key; allowed are letters, digits and . _ @ -, at most 64")
    text = _read(path) if path.exists() else "# name  SHA-256 of the key; made by `python -m server keys add NAME`\n"
    _parse(path, text)
    key = KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)
    if text and not text.endswith("\n"):
        text += "\n"
    _write(path, f"{text}{name} {hash_key(key)}\n")
    return key


def remove_keys(path: Path, name: str) -> int:
    """Remove every key of `name`; how many there were. Raises KeysError."""
    lines = _parse(path, _read(path))
    kept = [line for line, entry in lines if entry is None or entry.name != name]
    if len(kept) < len(lines):
        _write(path, "".join(f"{line}\n" for line in kept))
    return len(lines) - len(kept)


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """One line of a key file."""

    name: str
    hash: str


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as problem:
        raise KeysError(f"key file {path} cannot be read: {problem.strerror or problem}") from problem
    except UnicodeDecodeError as problem:
        raise KeysError(f"key file {path} is not text") from problem


def _parse(path: Path, text: str) -> list[tuple[str, KeyEntry | None]]:
    """Each line with its entry; None for comments and empty lines."""
    found: list[tuple[str, KeyEntry | None]] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            found.append((line, None))
            continue
        # The line itself is not shown: it may be a key that somebody pasted here in the clear.
        if len(words) != 2 or not _NAME.fullmatch(words[0]) or not _HASH.fullmatch(words[1].lower()):
            raise KeysError(
                f"key file {path}, line {number}: not `name sha256hex`; use `python -m server keys add NAME`"
            )
        found.append((line, KeyEntry(words[0], words[1].lower())))
    return found


def _write(path: Path, text: str) -> None:
    """Replace a file at once, readable by its owner alone."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(temporary).replace(path)
        except OSError:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as problem:
        raise KeysError(f"key file {path} cannot be written: {problem.strerror or problem}") from problem
