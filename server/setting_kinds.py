"""Kinds of settings: each turns what a file, an environment variable or a command line holds into a checked value."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_DEVICE: Final = re.compile(r"[0-9]{1,4}|(GPU|MIG)-[0-9a-fA-F/-]+")
_WHOLE: Final = re.compile(r"[+-]?[0-9][0-9_]*")


class Kind(Protocol):
    """What values a setting may have. `allowed` completes the sentence "allowed is ..."."""

    @property
    def allowed(self) -> str: ...

    def parse(self, value: object) -> Any:
        """The checked value. `value` is a string, or whatever TOML made of it. Raises ValueError or TypeError."""


@dataclass(frozen=True, slots=True)
class Text:
    """Any text that is not empty."""

    allowed: str = "a text"

    def parse(self, value: object) -> str:
        """See `Kind`."""
        if not isinstance(value, str) or not value.strip():
            raise ValueError
        return value.strip()


@dataclass(frozen=True, slots=True)
class Hosts:
    """One or several addresses or names to listen on."""

    allowed: str = "an address or a name, or several with commas between them"

    def parse(self, value: object) -> str:
        """See `Kind`."""
        if isinstance(value, list):
            value = ",".join(str(item) for item in value)
        if not isinstance(value, str):
            raise TypeError
        hosts = [host.strip().removeprefix("[").removesuffix("]") for host in value.split(",")]
        if not all(hosts) or any(re.search(r"[\s/]", host) for host in hosts):
            raise ValueError
        return ",".join(hosts)


@dataclass(frozen=True, slots=True)
class Origins:
    """Origins of web pages, as browsers name them in the header `Origin`."""

    allowed: str = "http[s]://name[:port], several with commas between them, or *"

    def parse(self, value: object) -> str:
        """See `Kind`. They come out as browsers write them: in lower case, without a scheme's own port."""
        if isinstance(value, list):
            value = ",".join(str(item) for item in value)
        if not isinstance(value, str):
            raise TypeError
        found = [each.strip().lower().removesuffix("/") for each in value.split(",")]
        if not all(each in ("*", "null") or _ORIGIN.fullmatch(each) for each in found):
            raise ValueError
        ports = {"http": ":80", "https": ":443"}
        return ",".join(each.removesuffix(ports.get(each.partition("://")[0], "/")) for each in found)


@dataclass(frozen=True, slots=True)
class Devices:
    """CUDA devices as `CUDA_VISIBLE_DEVICES` names them."""

    allowed: str = "numbers or UUIDs (GPU-..., MIG-...) of devices with commas between them"

    def parse(self, value: object) -> str:
        """See `Kind`."""
        if isinstance(value, list):
            value = ",".join(str(item) for item in value)
        devices = [each.strip() for each in str(value).split(",")]
        if isinstance(value, bool) or not all(_DEVICE.fullmatch(each) for each in devices):
            raise ValueError
        return ",".join(devices)


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """An integer within bounds, both included."""

    low: int
    high: int

    @property
    def allowed(self) -> str:
        """See `Kind`."""
        return f"a whole number from {self.low} to {self.high}"

    def parse(self, value: object) -> int:
        """See `Kind`."""
        if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError
        if not self.low <= value <= self.high:
            raise ValueError
        return value


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number within bounds, both included."""

    low: float
    high: float

    @property
    def allowed(self) -> str:
        """See `Kind`."""
        return f"a number from {self.low:.12g} to {self.high:.12g}"

    def parse(self, value: object) -> float:
        """See `Kind`."""
        if not isinstance(value, (str, int, float)) or isinstance(value, bool):
            raise TypeError
        number = float(value)
        if not math.isfinite(number) or not self.low <= number <= self.high:
            raise ValueError
        return number


@dataclass(frozen=True, slots=True)
class Flag:
    """Yes or no."""

    allowed: str = "true or false"

    def parse(self, value: object) -> bool:
        """See `Kind`."""
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.strip().lower() in _TRUE | _FALSE:
            return value.strip().lower() in _TRUE
        raise ValueError


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words."""

    values: tuple[str, ...]

    @property
    def allowed(self) -> str:
        """See `Kind`."""
        return f"one of {', '.join(self.values)}"

    def parse(self, value: object) -> str:
        """See `Kind`."""
        if not isinstance(value, str) or value.strip().lower() not in self.values:
            raise ValueError
        return value.strip().lower()


@dataclass(frozen=True, slots=True)
class ReadableFile:
    """The path of a file that exists and that this process may read."""

    allowed: str = "the path of a file that exists and can be read"

    def parse(self, value: object) -> Path:
        """See `Kind`."""
        if not isinstance(value, str) or not value.strip():
            raise ValueError
        path = Path(value).expanduser()
        try:
            with path.open("rb"):
                pass
        except OSError as problem:
            raise ValueError(problem.strerror or type(problem).__name__) from problem
        return path


@dataclass(frozen=True, slots=True)
class Store:
    """Where sessions are kept."""

    allowed: str = "memory, or file:DIRECTORY"

    def parse(self, value: object) -> str:
        """See `Kind`."""
        if not isinstance(value, str) or "\0" in value:
            raise ValueError
        kind, _, place = value.strip().partition(":")
        if kind == "memory" and not place:
            return "memory"
        if kind != "file" or not place.strip():
            raise ValueError
        return f"file:{Path(place.strip()).expanduser()}"


@dataclass(frozen=True, slots=True)
class DirectoryOr:
    """The path of a directory, or one of a few words that mean something else."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        """See `Kind`."""
        return f"a directory, {' or '.join(self.words)}"

    def parse(self, value: object) -> str:
        """See `Kind`."""
        if value is False and "off" in self.words:
            return "off"
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise ValueError
        place = value.strip()
        if place.lower() in self.words:
            return place.lower()
        try:
            return str(Path(place).expanduser())
        except RuntimeError as problem:  # no home for a `~`
            raise ValueError from problem


@dataclass(frozen=True, slots=True)
class Pairs:
    """Names with values: a TOML table, a JSON object, or `name=value` with `;` between several.

    The value after `=` is read as JSON where it is JSON (`4`, `true`, `[1, 2]`), else taken as text.
    """

    allowed: str = "name=value, with ; between several, or a table"

    def parse(self, value: object) -> Mapping[str, Any]:
        """See `Kind`."""
        if isinstance(value, str):
            value = json.loads(value) if value.lstrip().startswith("{") else self._split(value)
        if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
            raise ValueError
        return dict(value)

    def _split(self, text: str) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        for part in filter(None, map(str.strip, text.split(";"))):
            name, equals, raw = part.partition("=")
            if not equals or not name.strip():
                raise ValueError
            try:
                pairs[name.strip()] = json.loads(raw)
            except ValueError:
                pairs[name.strip()] = raw.strip()
        return pairs
