"""What a gateway and its parent tell each other over a socket pair, whose end is the end of either.

The parent begins with a `Launch` (pickled, its length before it: it holds settings of many types, and both ends are the
same program). Then both send lines of JSON: the parent who lives, the gateway that it is ready, that it still turns, or
why it cannot start.
"""

import pickle
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from server.settings import Settings

ALIVE_S: Final = 2.0
_LENGTH: Final = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Launch:
    """What a gateway must know to run."""

    settings: Settings  # its share of them
    name: str
    gateways: int
    folder: Path  # of the gateways' sockets
    sockets: tuple[int, ...]  # descriptors that it inherits: they listen
    loads: int  # likewise: the memory of `Loads`
    workers: tuple[str, ...] = ()  # the sockets of worker processes
    token_secret: bytes = field(default=b"", repr=False)  # all gateways know each other's tokens


@dataclass(frozen=True, slots=True)
class Ready:
    """It can speak."""

    engine: str
    voices: int


@dataclass(frozen=True, slots=True)
class Alive:
    """Its event loop turns. Said every `ALIVE_S` seconds once it is ready."""


@dataclass(frozen=True, slots=True)
class CannotStart:
    """It never will with these settings; `reason` is one line for the user."""

    reason: str


def pack_launch(launch: Launch) -> bytes:
    """As `receive_launch` takes it."""
    data = pickle.dumps(launch)
    return _LENGTH.pack(len(data)) + data


def receive_launch(control: socket.socket) -> Launch:
    """Wait for it. Raises EOFError where the parent is gone."""
    (length,) = _LENGTH.unpack(_exactly(control, _LENGTH.size))
    launch: Launch = pickle.loads(_exactly(control, length))  # noqa: S301  # from our own parent
    return launch


def members_line(names: list[str]) -> bytes:
    """The parent says who lives."""
    return orjson.dumps({"living": names}) + b"\n"


def parse_members(line: bytes) -> list[str]:
    """What `members_line` made."""
    names: list[str] = orjson.loads(line)["living"]
    return names


def report_line(report: Ready | Alive | CannotStart) -> bytes:
    """A gateway says how it is."""
    return orjson.dumps({type(report).__name__: report}) + b"\n"


def parse_report(line: bytes) -> Ready | Alive | CannotStart:
    """What `report_line` made."""
    ((kind, fields),) = orjson.loads(line).items()
    kinds: dict[str, Any] = {each.__name__: each for each in (Ready, Alive, CannotStart)}
    report: Ready | Alive | CannotStart = kinds[kind](**fields)
    return report


def _exactly(control: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = control.recv(size - len(data))
        if not part:
            raise EOFError("the parent is gone")
        data += part
    return bytes(data)
