"""Tokens prove that a session is the client's. Only their hashes are kept."""

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import Final

MAX_TOKENS: Final = 8  # given out and not used yet: of resumes whose answers got lost


def hash_token(token: str) -> str:
    """What is kept of a token: SHA-256, hex. Tokens are random, so they need no salt."""
    return sha256(token.encode()).hexdigest()


def is_token(token: str, hashes: Iterable[str]) -> bool:
    """Whether it is one of those, in a time that does not tell how much of it is right."""
    hashed = hash_token(token)
    matches = [compare_digest(hashed, known) for known in hashes]  # each is looked at
    return any(matches)
