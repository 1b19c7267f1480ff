r"""What is in a journal's file.

    cosystream-journal 1\n          header with the version of the format
    <8 hex digits>.<line>\n         a line of the caller's
    <8 hex digits>+<epoch>\n        the session was claimed; appended by the claimer

The digits are a CRC-32 of everything up to here: of the header and the session's id, then of each record's kind and
content, each from where the one before stopped. So a record that was cut, changed, left out, repeated or moved does not
fit, and neither does the file of another session under this one's name. (It finds accidents; it is no signature.)
"""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from server.store.base import FIRST_EPOCH

_NAME: Final = b"cosystream-journal "
HEADER: Final = _NAME + b"1\n"
_LINE: Final = b"."
_EPOCH: Final = b"+"
_DIGITS: Final = 8
_EPOCH_LENGTH: Final = 15  # as a decimal number: stays a whole number in every JSON reader


class UnreadableError(Exception):
    """The file is none of ours, or not one that this version reads; the text says which."""


class OtherVersionError(UnreadableError):
    """Written in another version of the format."""


@dataclass(slots=True)
class Contents:
    """What could be read."""

    lines: list[bytes] = field(default_factory=list)
    epoch: int = FIRST_EPOCH
    chain: int = 0
    """The CRC that the next record goes on from."""
    end: int = 0
    """Bytes up to the end of the last good record; whatever is behind them is to be cut off."""
    damaged: bool = False
    """There is a whole record behind `end` that is not good (a cut one is what a crash leaves)."""


def first_chain(session: str) -> int:
    """The CRC that the first record goes on from."""
    return zlib.crc32(HEADER + session.encode("utf-8", "surrogatepass"))


def line_records(lines: Iterable[bytes], chain: int) -> tuple[bytes, int]:
    """The caller's lines as they go into the file, and the CRC to go on from."""
    parts: list[bytes] = []
    for line in lines:
        chain = zlib.crc32(line, zlib.crc32(_LINE, chain))
        parts += (b"%08x." % chain, line, b"\n")
    return b"".join(parts), chain


def epoch_record(epoch: int, chain: int) -> tuple[bytes, int]:
    """The record of a claim, and the CRC to go on from."""
    content = _EPOCH + str(epoch).encode()
    chain = zlib.crc32(content, chain)
    return b"%08x%b\n" % (chain, content), chain


def read(data: bytes, session: str) -> Contents:
    """Everything up to the first record that is not good.

    A header that was cut short reads as a file with nothing in it. Raises UnreadableError where the header is not ours,
    OtherVersionError where it is of another version.
    """
    if not data.startswith(HEADER):
        if HEADER.startswith(data):
            return Contents(chain=first_chain(session))
        if data.startswith(_NAME):
            raise OtherVersionError("it is in a format of another version")
        raise UnreadableError("it is no journal")
    found = Contents(chain=first_chain(session), end=len(HEADER))
    while (stop := data.find(b"\n", found.end)) >= 0:
        digits, content = data[found.end : found.end + _DIGITS], data[found.end + _DIGITS : stop]
        chain = zlib.crc32(content, found.chain)
        if digits != b"%08x" % chain or not _take(content, found):
            found.damaged = True
            break
        found.chain, found.end = chain, stop + 1
    return found


def _take(content: bytes, found: Contents) -> bool:
    kind, rest = content[:1], content[1:]
    if kind == _LINE:
        found.lines.append(rest)
        return True
    if kind == _EPOCH and rest.isdigit() and len(rest) <= _EPOCH_LENGTH:
        found.epoch = max(found.epoch, int(rest))
        return True
    return False
