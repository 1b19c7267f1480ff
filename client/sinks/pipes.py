"""Standard output, and pipes and devices with a name: written as the audio comes."""

import asyncio
import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from client.descriptors import may_block, writable
from client.errors import OutputFailed
from client.items import Audio
from client.sinks.base import Container
from client.sinks.encodings import encoding_for

PIPE_BYTES: Final = 4_096  # a pipe that select() calls writable takes this much without blocking (PIPE_BUF on Linux)


class PipeSink:
    """Never blocks the event loop."""

    def __init__(self, container: Container, descriptor: int, name: str = "standard output") -> None:
        self._encoding = encoding_for(container, live=True)
        self._descriptor = descriptor
        self._name = name
        self._waits = may_block(descriptor)

    async def begin(self, sample_rate: int, pre_skip: int) -> None:
        """Writes the header."""
        await self._send(self._encoding.head(sample_rate, pre_skip))

    async def write(self, audio: Audio) -> None:
        """Writes, as fast as the reader reads."""
        await self._send(self._encoding.body(audio))

    async def finish(self, samples: int) -> None:
        """Completes the container."""
        await self._send(self._encoding.tail(samples))

    async def interrupt(self) -> None:
        """Completes the container, unless the reader went too."""
        with suppress(OutputFailed, TimeoutError):
            async with asyncio.timeout(0.5):
                await self._send(self._encoding.tail(None))

    async def abandon(self) -> None:
        """Leaves it as it is."""

    async def _send(self, data: bytes) -> None:
        try:
            while data:
                if self._waits:
                    await writable(self._descriptor)
                try:
                    data = data[os.write(self._descriptor, data[:PIPE_BYTES] if self._waits else data) :]
                except BlockingIOError:
                    continue  # another writer was quicker: wait again
        except BrokenPipeError as error:
            raise OutputFailed(f"the reader of {self._name} went away") from error
        except OSError as error:
            raise OutputFailed(f"cannot write {self._name}: {error.strerror or error}") from error


def open_special(path: Path) -> int:
    """A descriptor of a pipe or device with a name, which cannot be renamed or patched. Raises OutputFailed."""
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK)  # a pipe that nobody reads would wait for a reader
    except OSError as error:
        reason = "nobody reads from it" if error.errno == errno.ENXIO else error.strerror
        raise OutputFailed(f"cannot write {path}: {reason}") from error
