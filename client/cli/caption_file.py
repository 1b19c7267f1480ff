"""Subtitles, written as they become known: a book's words never lie in memory."""

import asyncio
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

from client.captions import VTT_EMPTY, Cue, CueMaker, Span, SpokenWord, WordReader, srt_block, vtt_block
from client.disk import expect_name, folder_to_disk, to_disk
from client.errors import OutputFailed

CaptionKind = Literal["vtt", "srt"]
_COPY_BYTES: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class CaptionMark:
    """How far a file of captions is, so that another process can go on with it."""

    bytes: int
    cues: int
    begin: int  # from where on text is needed
    span: Span | None  # a word that waits for the next one
    group: tuple[SpokenWord, ...]  # the cue that may still grow

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def of_json(cls, value: dict[str, Any]) -> "CaptionMark":
        """The same again. Raises TypeError, KeyError, ValueError."""
        group = tuple(SpokenWord(**word) for word in value["group"])
        span = None if value["span"] is None else (*map(int, value["span"]),)
        if span is not None and len(span) != 4:
            raise ValueError("a span has four numbers")
        return cls(int(value["bytes"]), int(value["cues"]), int(value["begin"]), span, group)


def partial_captions(path: Path) -> Path:
    """What a file of captions is called until it is complete."""
    return path.with_name(path.name + ".part")


def kept_captions(path: Path) -> int | None:
    """Bytes of `NAME.part`, or else `NAME`. None: there is neither."""
    return next((each.stat().st_size for each in (partial_captions(path), path) if each.is_file()), None)


def is_special(path: Path) -> bool:
    """Whether it names a pipe or a device, which nothing goes on with."""
    return path.exists() and not path.is_file()


class CaptionFile:
    """`NAME.part` until it is complete, like audio. A pipe or a device is given everything at the end."""

    def __init__(self, path: Path, kind: CaptionKind, sample_rate: int, mark: CaptionMark | None = None) -> None:
        """Opens it; with `mark` the one of an earlier run. Raises OutputFailed."""
        self.path = path
        self.partial = partial_captions(path)
        self._kind = kind
        self._special = is_special(path)
        self._in_folder = self._special  # its name is on the disk
        self._cues = mark.cues if mark else 0
        self._bytes = mark.bytes if mark else 0
        self._reader = WordReader(sample_rate, mark.begin, mark.span) if mark else WordReader(sample_rate)
        self._maker = CueMaker(mark.group if mark else ())
        try:
            self._file = self._open(mark)
        except OSError as error:
            raise self._failed(error) from error

    @property
    def needs_text_from(self) -> int:
        """The first character that has not been written to the file."""
        return self._reader.begin

    def text(self, text: str) -> None:
        """More of what is said."""
        self._reader.write(text)

    def words(self, words: Iterable[Span]) -> None:
        """Words whose audio is there, in order. Raises OutputFailed."""
        for word in words:
            if (spoken := self._reader.word(*word)) is not None:
                self._spoken(spoken)

    def mark(self) -> CaptionMark:
        """What another process needs to know. Everything before it is with the kernel. Raises OutputFailed."""
        try:
            self._file.flush()
        except OSError as error:
            raise self._failed(error) from error
        return CaptionMark(
            self._bytes, self._cues, self._reader.begin, self._reader.span, tuple(self._maker.group)
        )  # fmt: skip

    async def sync(self) -> None:
        """What was there at the last `mark` outlives the machine, too. Raises OutputFailed."""
        try:
            expect_name(self._file.fileno(), self.partial)
            await asyncio.to_thread(to_disk, os.dup(self._file.fileno()))
            if not self._in_folder:  # which need not be the state's
                await asyncio.to_thread(folder_to_disk, self.partial.parent)
                self._in_folder = True
        except OSError as error:
            raise self._failed(error) from error

    def finish(self) -> None:
        """Nothing more comes. Raises OutputFailed."""
        if (spoken := self._reader.finish()) is not None:
            self._spoken(spoken)
        if (cue := self._maker.finish()) is not None:
            self._write(cue)
        try:
            if self._cues == 0 and self._kind == "vtt":
                self._file.write(VTT_EMPTY.encode())
            self._file.close()
            if not self._special:
                self.partial.replace(self.path)
                return
            with self.partial.open("rb") as whole, self.path.open("wb") as target:
                while data := whole.read(_COPY_BYTES):
                    target.write(data)
            self.partial.unlink()
        except OSError as error:
            raise self._failed(error) from error

    def abandon(self, *, keep: bool) -> None:
        """It failed. `keep`: another run may go on with it. Never raises."""
        with suppress(OSError):
            self._file.close()
        if not keep:
            with suppress(OSError):
                self.partial.unlink()

    def _open(self, mark: CaptionMark | None) -> BinaryIO:
        if self._special:
            import tempfile

            handle, name = tempfile.mkstemp(prefix="cosystream-captions-")
            self.partial = Path(name)
            return os.fdopen(handle, "wb")
        if mark is None:
            self.path.unlink(missing_ok=True)  # after a failure an older one would not fit the audio
            return self.partial.open("wb")
        if not self.partial.exists() and self.path.exists():
            self.path.replace(self.partial)
        file = self.partial.open("r+b" if mark.bytes or self.partial.exists() else "w+b")
        if file.seek(0, os.SEEK_END) < mark.bytes:
            file.close()
            raise OutputFailed(f"cannot go on with {self.path}: {self.partial} is shorter than it was")
        file.truncate(mark.bytes)
        file.seek(mark.bytes)
        return file

    def _spoken(self, word: SpokenWord) -> None:
        if (cue := self._maker.add(word)) is not None:
            self._write(cue)

    def _write(self, cue: Cue) -> None:
        self._cues += 1
        data = (vtt_block if self._kind == "vtt" else srt_block)(cue, self._cues).encode()
        try:
            self._file.write(data)
        except OSError as error:
            raise self._failed(error) from error
        self._bytes += len(data)

    def _failed(self, error: OSError) -> OutputFailed:
        return OutputFailed(f"cannot write {self.path}: {error.strerror or error}")
