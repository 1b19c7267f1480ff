"""Text as it arrives: from a file, from standard input, or at the speed of a language model."""

import asyncio
import codecs
import os
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from client.descriptors import may_block, readable
from client.errors import UsageError

READ_BYTES: Final = 65_536
TICK_S: Final = 0.02  # with --rate, characters due within one tick go together
_BYTE_ORDER_MARK: Final = "\ufeff"


class Utf8Reader:
    """Bytes, cut anywhere, to text. Names the byte where it is no UTF-8."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._read = 0  # bytes before those that the decoder still holds
        self._started = False

    def decode(self, data: bytes, *, final: bool = False) -> str:
        """The text that is complete now. Raises UsageError."""
        held = len(self._decoder.getstate()[0])
        try:
            text = self._decoder.decode(data, final)
        except UnicodeDecodeError as error:
            at = self._read - held + error.start
            raise UsageError(
                f"{self._name} is not UTF-8: byte {at} is 0x{error.object[error.start]:02x}; convert it first"
            ) from None
        self._read += len(data)
        if text and not self._started:
            self._started = True
            text = text.removeprefix(_BYTE_ORDER_MARK)
        return text


def open_text(name: str) -> int:
    """A descriptor to read from; `-` is standard input. A regular file is checked to be UTF-8. Raises UsageError."""
    if name == "-":
        if sys.stdin is None:
            raise UsageError("there is no standard input: name a file")
        return 0
    path = Path(name)
    try:
        if path.is_dir():
            raise UsageError(f"{name} is a directory: name a text file, or - for standard input")
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        raise UsageError(f"there is no file {name}") from None
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror or error}") from None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        reader = Utf8Reader(name)
        while data := os.read(descriptor, READ_BYTES):
            reader.decode(data)
        reader.decode(b"", final=True)
        os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def read_text(descriptor: int, name: str) -> AsyncIterator[str]:
    """Pieces of text as they arrive. Raises UsageError."""
    reader = Utf8Reader("standard input" if name == "-" else name)
    waits = may_block(descriptor)
    while True:
        if waits:
            await readable(descriptor)
        try:
            data = os.read(descriptor, READ_BYTES)
        except OSError as error:
            raise UsageError(f"cannot read {name}: {error.strerror or error}") from None
        if text := reader.decode(data, final=not data):
            yield text
        if not data:
            return


async def paced(pieces: AsyncIterator[str], characters_per_second: float) -> AsyncIterator[str]:
    """The same text, at most this fast."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    sent = 0
    async for piece in pieces:
        at = 0
        start = max(start, loop.time() - sent / characters_per_second)  # a writer who paused does not catch up
        while at < len(piece):
            now = loop.time()
            due = int((now - start) * characters_per_second) + 1 - sent
            if due > 0:
                yield piece[at : at + due]
                count = min(due, len(piece) - at)
                at, sent = at + count, sent + count
            else:
                await asyncio.sleep(max(TICK_S, start + sent / characters_per_second - now))
