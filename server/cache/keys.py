"""What makes two pieces of work the same. Pure."""

from dataclasses import dataclass, field
from hashlib import sha256
from sys import getsizeof
from typing import Final

BUCKET_TOKENS: Final = 64
BUCKET_BYTES: Final = 16  # of the SHA-256
KEPT_BYTES: Final = 512  # of an entry without its value and the texts of its key: objects of Python, places in tables


@dataclass(frozen=True, slots=True)
class BlockKey:
    """One piece of work for an engine. `parameters`: whatever else decides the result, in an order of its own;
    `tokens`: all that is said; `context`: what was said before, as far as it decides the result.

    `bucket` finds candidates quickly; equality compares everything, so two blocks that share their first tokens are
    never taken for each other.
    """

    fingerprint: str
    voice: str
    parameters: tuple[str | float, ...]
    tokens: tuple[str, ...]
    context: tuple[str, ...] = ()
    bucket: bytes = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Compute the bucket: a truncated SHA-256 over all but the tokens behind the first 64, and the context."""
        parts = (self.fingerprint, self.voice, *map(repr, self.parameters), *self.tokens[:BUCKET_TOKENS])
        text = "".join(f"{len(part)}:{part}" for part in parts)  # no two lists of parts make the same text
        digest = sha256(text.encode("utf-8", "surrogatepass")).digest()[:BUCKET_BYTES]
        object.__setattr__(self, "bucket", digest)

    def __hash__(self) -> int:
        return hash(self.bucket)

    @property
    def size(self) -> int:
        """Bytes that it takes where it is kept, about."""
        return KEPT_BYTES + sum(8 + getsizeof(text) for text in (*self.parameters, *self.tokens, *self.context))
