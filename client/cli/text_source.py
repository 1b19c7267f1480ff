"""Text as it arrives: from a file, from standard input, or at the speed of a language model."""

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from client.cli.encodings import HEAD_BYTES, known_encoding
from client.cli.text_reader import TextReader
from client.descriptors import may_block, readable
from client.errors import UsageError

READ_BYTES: Final = HEAD_BYTES
TICK_S: Final = 0.02  # with --rate, characters due within one tick go together


@dataclass(frozen=True, slots=True)
class TextSource:
    """An open text. `encoding` None: it cannot be read twice, so its first bytes will tell."""

    descriptor: int
    name: str
    encoding: str | None
    is_guess: bool
    characters: int | None = None  # where it was read already

    @property
    def note(self) -> str | None:
        """What the user should know."""
        return f"reading {self.name} as {self.encoding}" if self.is_guess else None


def open_text(name: str, encoding: str | None = None) -> TextSource:
    """`-` is standard input. A regular file is read once from end to end, so that what is wrong is told before anything
    is spoken. `encoding`: what the user says. Raises UsageError.
    """
    known = None if encoding is None else known_encoding(encoding)
    if name == "-":
        if sys.stdin is None:
            raise UsageError("there is no standard input: name a file")
        descriptor, shown = 0, "standard input"
    else:
        descriptor, shown = _open(name), name
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        return TextSource(descriptor, shown, known, is_guess=False)
    reader = TextReader(shown, known)
    start = os.lseek(descriptor, 0, os.SEEK_CUR)
    characters = 0
    while data := _read(descriptor, shown):
        characters += len(reader.decode(data))
    characters += len(reader.decode(b"", final=True))
    os.lseek(descriptor, start, os.SEEK_SET)
    return TextSource(descriptor, shown, reader.encoding, reader.is_guess, characters)


def _open(name: str) -> int:
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK)  # a pipe that nobody writes to would hold us up
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise UsageError(f"{name} is a directory: name a text file, or - for standard input")
    except FileNotFoundError:
        raise UsageError(f"there is no file {name}") from None
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise UsageError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from None
    return descriptor


def _read(descriptor: int, name: str) -> bytes:
    try:
        return os.read(descriptor, READ_BYTES)
    except BlockingIOError:
        raise
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror or error}") from None


def _read_once(descriptor: int, name: str) -> bytes:
    """In a thread, which may outlive whoever waits for it: so it has a descriptor of its own, and closes that."""
    try:
        return _read(descriptor, name)
    finally:
        os.close(descriptor)


async def read_text(source: TextSource, on_note: Callable[[str], None] | None = None) -> AsyncIterator[str]:
    """Pieces of text as they arrive. `on_note` is told what the user should know. Raises UsageError."""
    reader = TextReader(source.name, source.encoding)
    waits = may_block(source.descriptor)
    noted = source.encoding is not None
    while True:
        if waits:
            await readable(source.descriptor)
        try:
            if waits:
                data = _read(source.descriptor, source.name)
            else:  # a file on a disk or a server that does not answer must hold up neither acks nor signals
                data = await asyncio.to_thread(_read_once, os.dup(source.descriptor), source.name)
        except BlockingIOError:
            continue  # another reader was quicker: wait again
        text = reader.decode(data, final=not data)
        if reader.is_guess and not noted and on_note is not None:
            noted = True
            on_note(f"reading {source.name} as {reader.encoding}")
        if text:
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
