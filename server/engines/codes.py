"""Speech codes (`Chunk.codes`) as bytes, 16 bits each, little-endian, and for what is JSON as base64 of those. A second
of speech has some 25 of them, which takes 68 characters.
"""

import struct
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Final

MAX_CODE: Final = 65_535
CODE_BYTES: Final = 2


def to_bytes(codes: Sequence[int]) -> bytes:
    """The codes, two bytes each. ValueError where one is no whole number from 0 to 65,535."""
    try:
        return struct.pack(f"<{len(codes)}H", *codes)
    except struct.error:
        raise ValueError(f"a speech code must be a whole number from 0 to {MAX_CODE}") from None


def from_bytes(data: bytes | memoryview) -> tuple[int, ...]:
    """The codes again. ValueError where a byte is missing."""
    if len(data) % CODE_BYTES:
        raise ValueError("half a speech code")
    return struct.unpack(f"<{len(data) // CODE_BYTES}H", data)


def to_text(codes: Sequence[int]) -> str:
    """The codes as a text. ValueError as `to_bytes`."""
    return b64encode(to_bytes(codes)).decode()


def from_text(text: str) -> tuple[int, ...]:
    """The codes again. ValueError where the text is none of codes."""
    return from_bytes(b64decode(text, validate=True))
