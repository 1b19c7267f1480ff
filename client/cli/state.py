"""`NAME.state`: how far a file is, so that another run can go on with it after anything that may end this one."""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from client.cli.caption_file import CaptionMark
from client.cli.ledger import START, Place
from client.cli.state_check import ARGUMENTS as ARGUMENTS
from client.cli.state_check import STDIN as STDIN
from client.cli.state_check import check_state
from client.disk import folder_to_disk, open_regular
from client.errors import OutputFailed, UsageError
from client.saved import SavedSession
from client.sinks import CONTAINERS, Container, kept_audio

VERSION: Final = 2
_FORMAT: Final = "cosystream state"
_READ_BYTES: Final = 1_048_576
_MAX_BYTES: Final = 67_108_864  # of a state; thousands of words of unfinished segments take less than one of them


@dataclass(frozen=True, slots=True)
class Source:
    """A text file, by its content; or standard input, of which nothing is known. `path`: absolute, or "-"."""

    path: str
    size: int = 0
    mtime_ns: int = 0
    sha256: str = ""

    @classmethod
    def of(cls, name: str) -> "Source":
        """Reads all of it. Raises UsageError."""
        if name == STDIN:
            return cls(STDIN)
        digest = hashlib.sha256()
        try:
            with open_regular(Path(name)) as file:
                status = os.fstat(file.fileno())
                while data := file.read(_READ_BYTES):
                    digest.update(data)
        except OSError as error:
            raise UsageError(f"cannot read {name}: {error.strerror or error}") from None
        return cls(str(Path(name).absolute()), status.st_size, status.st_mtime_ns, digest.hexdigest())


@dataclass(frozen=True, slots=True)
class State:
    """`whole`: the boundary to go on from where the session is gone; `synced`: one that also outlives the machine.

    `samples`: what the file held, at least, and where `session` goes on. `text_sha256`: of the UTF-8 of the text before
    `whole`, where the source is standard input. `is_complete`: all of it is there, and only the file's name is missing.
    """

    source: Source
    url: str
    container: Container
    arguments: Mapping[str, Any]
    whole: Place = START
    synced: Place = START
    samples: int = 0
    text_sha256: str = ""
    encoding: str | None = None  # of the source
    captions: str | None = None  # the file, absolute
    caption_mark: CaptionMark | None = None
    synced_mark: CaptionMark | None = None
    session: SavedSession | None = None
    begun: Place = START  # where the session's utterance begins
    is_complete: bool = False

    def to_bytes(self) -> bytes:
        """JSON, with a digest that tells damage."""
        fields = asdict(self)
        value = {"format": _FORMAT, "version": VERSION, "digest": _digest(fields), **fields}
        return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def of_bytes(cls, data: bytes, path: Path) -> "State":
        """Raises UsageError, which names the file."""
        try:
            value = orjson.loads(data)
            if not isinstance(value, dict) or value.pop("format", None) != _FORMAT:
                raise UsageError(f"{path} is no state of a run that can be gone on with")
            version = value.pop("version", None)
            if version != VERSION:
                raise UsageError(
                    f"{path} is of version {version}, and this program knows {VERSION}: "
                    "use the release that wrote it, or begin anew"
                )
            if value.pop("digest", None) != _digest(value):
                raise ValueError("the digest is not that of the rest")
            return cls._of_json(value)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise UsageError(f"{path} is damaged: begin anew, without --resume-from{_what_plays(path)}") from None

    @classmethod
    def _of_json(cls, value: dict[str, Any]) -> "State":
        check_state(value)
        session = value["session"]
        marks = {name: value[name] for name in ("caption_mark", "synced_mark")}
        return cls(**{
            **value,
            "source": Source(**value["source"]),
            **{name: Place(**value[name]) for name in ("whole", "synced", "begun")},
            **{name: None if mark is None else CaptionMark.of_json(mark) for name, mark in marks.items()},
            "session": None if session is None else SavedSession.of_json(session),
        })  # fmt: skip


def _what_plays(path: Path) -> str:
    """What a user has of a run whose state is lost."""
    output = path.with_suffix("")
    container = CONTAINERS.get(output.suffix.lower())
    try:
        kept = kept_audio(output, container) if container is not None else None
    except OutputFailed:
        return ""
    if kept is None or not kept.samples:
        return ""
    return f" ({kept.path} plays as it is; a new run of that name overwrites it)"


def state_name(output: Path) -> Path:
    """What the state of a file is called."""
    return output.with_name(output.name + ".state")


def find_state(name: str) -> tuple[Path, Path]:
    """The state, and its audio file, of what a user named: either of the two."""
    path = Path(name)
    if path.suffix != ".state":
        path = state_name(path.with_name(path.name.removesuffix(".part")))
    return path, path.with_suffix("")


def read_state(path: Path) -> State:
    """Raises UsageError."""
    try:
        with open_regular(path) as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise UsageError(
            f"there is no {path}: that run is complete, was of another name, or kept no state (see --help)"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    return State.of_bytes(data, path)


def write_state(path: Path, state: State, *, sync: bool) -> None:
    """Replaces it at once or not at all. `sync`: it also outlives the machine. Raises OutputFailed.

    Only the owner can read it: it names a session and its token.
    """
    partial = path.with_name(path.name + ".part")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK  # a pipe of that name would make us wait
        descriptor = os.open(partial, flags, 0o600)
        try:
            data = state.to_bytes()
            if os.write(descriptor, data) != len(data):
                raise OSError("the disk is full")
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        partial.replace(path)
        if sync:
            folder_to_disk(path.parent)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise OutputFailed(f"cannot write {path}: {error.strerror or error}") from error


def remove_state(path: Path) -> None:
    """The run it is of is over. Never raises."""
    for name in (path, path.with_name(path.name + ".part")):
        with suppress(OSError):
            name.unlink()


def _digest(fields: Mapping[str, Any]) -> str:
    """SHA-256 of their JSON."""
    return hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()
