"""Where audio goes: files that are whole or clearly partial, and standard output. Sound devices: `client.device`.

A file is written as `NAME.part` and gets its name when it is complete: after a failure nothing there looks whole.
"""

import asyncio
import errno
import os
import random
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Literal, Protocol, TypeAlias

from client.descriptors import may_block, writable
from client.errors import OutputFailed
from client.items import Audio
from protocol.media.ogg import OggOpusWriter
from protocol.media.wav import patch_sizes, wav_header

Container: TypeAlias = Literal["wav", "ogg", "raw"]
CONTAINERS: Final[dict[str, Container]] = {".wav": "wav", ".opus": "ogg", ".ogg": "ogg", ".pcm": "raw", ".raw": "raw"}
PACKETS_PER_PAGE: Final = 50  # files; a second at 20 ms
PIPE_BYTES: Final = 4_096  # a pipe that select() calls writable takes this much without blocking (PIPE_BUF on Linux)


class Sink(Protocol):
    """Takes the audio of one utterance."""

    async def begin(self, sample_rate: int, pre_skip: int) -> None:
        """Called once, when the session is open. Raises OutputFailed."""

    async def write(self, audio: Audio) -> None:
        """The next stretch. Raises OutputFailed."""

    async def finish(self, samples: int) -> None:
        """The utterance is complete, `samples` long on its timeline."""

    async def interrupt(self) -> None:
        """The listener stopped it: what is there is what was wanted."""

    async def abandon(self) -> None:
        """It failed. Never raises."""


class Encoding(Protocol):
    """Turns audio into the bytes of a container."""

    def head(self, sample_rate: int, pre_skip: int) -> bytes:
        """The bytes before the audio."""

    def body(self, audio: Audio) -> bytes:
        """The next bytes; some audio may be kept for later."""

    def tail(self, samples: int | None) -> bytes:
        """The last bytes, for a timeline of this length (None: as long as what came)."""


class PcmEncoding:
    """s16le samples, after a WAV header or bare. In a stream the header says that the length is unknown."""

    def __init__(self, wav: bool) -> None:
        self.wav = wav
        self.samples = 0

    def head(self, sample_rate: int, pre_skip: int) -> bytes:
        """A WAV header, or nothing."""
        return wav_header(sample_rate) if self.wav else b""

    def body(self, audio: Audio) -> bytes:
        """The samples."""
        self.samples += audio.count
        return audio.pcm

    def tail(self, samples: int | None) -> bytes:
        """Nothing."""
        return b""


class OggEncoding:
    """The server's Opus packets in Ogg, not encoded again.

    Where another session went on, its encoder's delay cannot be cut out: the file is that much longer (some ms).
    """

    def __init__(self, packets_per_page: int = PACKETS_PER_PAGE) -> None:
        self._packets_per_page = packets_per_page
        self._writer: OggOpusWriter | None = None
        self._kept: list[bytes] = []  # the last packet: only the end says how much of it is sound
        self._per_packet = 0
        self._coded = 0
        self._delays = 0  # samples in the file that are not on the timeline
        self._pre_skip = 0

    def head(self, sample_rate: int, pre_skip: int) -> bytes:
        """The two header pages."""
        self._pre_skip = pre_skip
        self._writer = OggOpusWriter(sample_rate, pre_skip, random.getrandbits(32), self._packets_per_page)
        return self._writer.headers()

    def body(self, audio: Audio) -> bytes:
        """The pages that are full."""
        assert self._writer is not None
        if not audio.packets:
            return b""
        self._per_packet = audio.count // len(audio.packets)
        overlap = max(0, self._coded - audio.first_sample)
        known = overlap // self._per_packet  # sent again to warm a new decoder up
        packets = audio.packets[known:]
        if not packets:
            return b""
        self._coded = audio.end_sample
        self._delays += overlap % self._per_packet
        ready, self._kept = [*self._kept, *packets[:-1]], [packets[-1]]
        return self._writer.write(ready, self._per_packet)

    def tail(self, samples: int | None) -> bytes:
        """The last page."""
        assert self._writer is not None
        if samples is None:
            samples = max(0, self._coded - self._pre_skip)
        return self._writer.finish(self._kept, self._per_packet, samples + self._delays)


def encoding_for(container: Container, *, live: bool = False) -> Encoding:
    """The encoding of a container. `live`: a listener waits at the other end."""
    return OggEncoding(1 if live else PACKETS_PER_PAGE) if container == "ogg" else PcmEncoding(container == "wav")


class FileSink:
    """A file in one of the containers."""

    def __init__(self, path: Path, container: Container) -> None:
        self.path = path
        self.partial = path.with_name(path.name + ".part")
        self._encoding = encoding_for(container)
        self._file: BinaryIO | None = None

    async def begin(self, sample_rate: int, pre_skip: int) -> None:
        """Opens the file. An older one of that name goes, so that it is not taken for the new one."""
        try:
            self._file = self.partial.open("w+b")
            self._file.write(self._encoding.head(sample_rate, pre_skip))
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise self._failed(error) from error

    async def write(self, audio: Audio) -> None:
        """Appends."""
        assert self._file is not None
        try:
            self._file.write(self._encoding.body(audio))
        except OSError as error:
            raise self._failed(error) from error

    async def finish(self, samples: int) -> None:
        """Completes the container and gives the file its name."""
        self._close(samples)
        try:
            self.partial.replace(self.path)
        except OSError as error:
            raise self._failed(error) from error

    async def interrupt(self) -> None:
        """The file holds what was heard, and is valid."""
        self._close(None)
        with suppress(OSError):
            self.partial.replace(self.path)

    async def abandon(self) -> None:
        """Leaves NAME.part, playable as far as it goes; nothing where no file was begun."""
        with suppress(OutputFailed):
            self._close(None)

    def _close(self, samples: int | None) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            with file:
                file.write(self._encoding.tail(samples))
                if isinstance(self._encoding, PcmEncoding) and self._encoding.wav:
                    patch_sizes(file, self._encoding.samples)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> OutputFailed:
        return OutputFailed(f"cannot write {self.path}: {error.strerror or error}")


class PipeSink:
    """Standard output, or a pipe or device with a name: written as the audio comes, never blocking the event loop."""

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
