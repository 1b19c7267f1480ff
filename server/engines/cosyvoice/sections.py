"""Settings out of a model's YAML and JSON files: plain values of checked types, and one line where one is wrong.

The YAML files are written for a loader that makes Python objects of tags such as `!new:some.module.Class`. Here they
are read as plain values: a tag is a name, nothing is imported or executed.
"""

import re
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from server.engines.base import EngineError

MAX_FILE: Final = 1_000_000  # bytes; the official files have about 8,000
MAX_YAML: Final = 100_000  # what a megabyte of it costs to read is 17 s
MAX_SIZE: Final = 1_000_000  # of any dimension
MAX_COUNT: Final = 1_000  # of layers: each is made before any weight is looked at
MAX_LIST: Final = 32
_HUGE: Final = 1e100  # no number of a model is so large, and a whole one may be too large for a float
_REFERENCE: Final = re.compile(r"<([^<>]{1,100})>")
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
_MOST_FACTORS: Final = 4  # of a reference, each of which may refer on: without bounds a few lines cost hours
_MOST_REFERRED: Final = 5  # one to the next
_TAG: Final = "!"  # the key under which a mapping's tag is kept; no YAML key of these files is called so


class ModelError(EngineError):
    """A model folder cannot be used. One line that names the file and what was expected of it."""


def one_line(problem: object) -> str:
    """What a library says, as one line of bounded length."""
    return " ".join(str(problem).split())[:200]


def read_text(file: Path) -> str:
    """A small text file. Raises ModelError."""
    try:
        if file.stat().st_size > MAX_FILE:
            raise ModelError(f"{file}: has more than {MAX_FILE:,} bytes, which no file of this kind has")
        return file.read_text(encoding="utf-8")
    except OSError as problem:
        raise ModelError(f"{file}: cannot be read: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise ModelError(f"{file}: is not text (UTF-8)") from None


class Section:
    """A mapping of a file; `path` says where in it. Every method raises ModelError where the value is not allowed."""

    def __init__(self, values: Mapping[str, Any], file: str, path: str = "", top: "Section | None" = None) -> None:
        self._values = values
        self._file = file
        self._path = path
        self._top = top or self

    def section(self, name: str, default: Mapping[str, Any] | None = None) -> "Section":
        """The mapping called `name`."""
        found = self._get(name, default)
        if not isinstance(found, Mapping):
            self.refuse(name, f"must be a section, is {_shown(found)}")
        return Section(found, self._file, self._where(name), self._top)

    def whole(self, name: str, default: int | None = None, most: int = MAX_SIZE) -> int:
        """A size: a whole number of at least 1."""
        found = self._get(name, default)
        if not _is_size(found) or found > most:
            self.refuse(name, f"must be a whole number from 1 to {most:,}, is {_shown(found)}")
        return int(found)

    def count(self, name: str) -> int:
        """How many of something that is made one by one: of at least 1."""
        return self.whole(name, most=MAX_COUNT)

    def number(self, name: str, default: float) -> float:
        """A number of at least 0."""
        found = self._get(name, default)
        if not isinstance(found, int | float) or isinstance(found, bool) or not 0 <= found < _HUGE:
            self.refuse(name, f"must be a number of at least 0, is {_shown(found)}")
        return float(found)

    def number_or_none(self, name: str) -> float | None:
        """A number of at least 0; None where it is not told, or told to be null."""
        return None if self._values.get(name) is None else self.number(name, 0)

    def wholes(self, name: str, default: Sequence[int] | None = None, count: int = 0) -> tuple[int, ...]:
        """A list of sizes; `count`: so many."""
        return self._sizes(name, self._get(name, default), count)

    def lists(self, name: str, count: int) -> tuple[tuple[int, ...], ...]:
        """A list of `count` lists of sizes."""
        found = self._get(name, None)
        if not isinstance(found, list) or len(found) != count:
            self.refuse(name, f"must be a list of {count} lists, is {_shown(found)}")
        return tuple(self._sizes(name, each, 0) for each in found)

    def fixed(self, name: str, allowed: object) -> None:
        """A value that the model's code takes for granted, where the file tells it at all."""
        found = self._get(name, allowed)
        if found != allowed:
            self.refuse(name, f"must be {allowed!r}, is {_shown(found)}")

    @property
    def class_name(self) -> str:
        """Of the class that the mapping's tag names, without its module; empty where there is no tag."""
        return str(self._values.get(_TAG, "")).rpartition(".")[2]

    def expect_class(self, name: str) -> None:
        """That the mapping is tagged to be made into an object of the class `name`."""
        if self.class_name != name:
            found = self._values.get(_TAG, "untagged")
            raise ModelError(f"{self._file}: {self._path}: must be !new:...{name}, is {_shown(found)}")

    def refuse(self, name: str, why: str) -> NoReturn:
        """Say what is wrong with a value."""
        raise ModelError(f"{self._file}: {self._where(name)}: {why}")

    def _where(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def _sizes(self, name: str, found: object, count: int) -> tuple[int, ...]:
        many = f"{count} " if count else ""
        if not isinstance(found, Sequence) or isinstance(found, str) or not found or not all(map(_is_size, found)):
            self.refuse(name, f"must be a list of {many}whole numbers, is {_shown(found)}")
        if len(found) > MAX_LIST:
            self.refuse(name, f"must be a list of at most {MAX_LIST} numbers, has {len(found):,}")
        if count and len(found) != count:
            self.refuse(name, f"must be a list of {many}whole numbers, is {_shown(found)}")
        return tuple(found)

    def _get(self, name: str, default: object) -> Any:
        found = self._values.get(name, default)
        if found is None:
            self.refuse(name, "is missing")
        return self._resolved(name, found, 0)

    def _resolved(self, name: str, found: Any, depth: int) -> Any:
        """`!ref <a> * <b>` refers to values at the top of the file."""
        if not isinstance(found, _Reference):
            return found
        if depth >= _MOST_REFERRED:
            self.refuse(name, f"refers to itself, or over more than {_MOST_REFERRED} others")
        texts = found.text.split("*", _MOST_FACTORS)
        if len(texts) > _MOST_FACTORS:
            self.refuse(name, f"is {_shown(found)}, which has more than {_MOST_FACTORS} factors")
        values = [self._operand(name, each.strip(), depth) for each in texts]
        if len(values) == 1:
            return values[0]
        product = 1
        for each in values:
            if not _is_size(each):
                self.refuse(name, f"is {_shown(found.text)}, which is no product of whole numbers")
            product *= each
        return product

    def _operand(self, name: str, text: str, depth: int) -> Any:
        if _WHOLE.fullmatch(text):
            return int(text)
        match = _REFERENCE.fullmatch(text)
        if match is None or match[1] not in self._top._values:
            self.refuse(name, f"refers to {_shown(text)}, which is nothing in this file")
        return self._resolved(name, self._top._values[match[1]], depth + 1)


class _Reference:
    """`!ref`, not followed yet: most of the file is about training, and need not be understood."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def parse_yaml(text: str, file: str) -> Section:
    """The top of a YAML file. Raises ModelError."""
    if len(text) > MAX_YAML:
        raise ModelError(f"{file}: has more than {MAX_YAML:,} characters, which no model's YAML file has")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = _plain(node, {}) if node is not None else None
    except (yaml.YAMLError, RecursionError) as problem:
        raise ModelError(f"{file}: is not YAML: {one_line(problem)}") from None
    if not isinstance(values, dict):
        raise ModelError(f"{file}: must be a YAML mapping")
    return Section(values, file)


def _plain(node: Any, seen: dict[int, object]) -> object:
    """A node as a plain value. Anchors are shared, so that no file grows when it is read."""
    if id(node) in seen:
        return seen[id(node)]
    if isinstance(node, yaml.MappingNode):
        values: dict[str, object] = {}
        seen[id(node)] = values
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value == _TAG:
                raise yaml.YAMLError(f"a name must be plain text\n{key.start_mark}")
            values[key.value] = _plain(value, seen)
        if node.tag.startswith("!"):
            values[_TAG] = node.tag
        return values
    if isinstance(node, yaml.SequenceNode):
        items: list[object] = []
        seen[id(node)] = items
        items.extend(_plain(each, seen) for each in node.value)
        return items
    return _scalar(node)


def _scalar(node: Any) -> object:
    text = str(node.value)
    if node.tag == "!ref":
        return _Reference(text)
    if node.tag.startswith("!"):  # `!name:module.function` without arguments
        return {_TAG: node.tag}
    kind = node.tag.rpartition(":")[2]
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in ("true", "yes", "on")
    if node.style is None:  # YAML 1.1 takes 1e-06 for a word
        for convert in (int, float):
            try:
                return convert(text)
            except ValueError:
                continue
    return text


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SIZE


def _shown(value: object) -> str:
    """Of bounded cost: a few lines of YAML make a list of lists that would never end when written out."""
    if isinstance(value, int) and value.bit_length() > 200:
        return "a number of more than 60 digits"
    text = _SHORT.repr(value.text if isinstance(value, _Reference) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _short() -> reprlib.Repr:
    short = reprlib.Repr()
    short.maxlevel, short.maxlist, short.maxdict, short.maxstring, short.maxother = 3, 8, 4, 200, 200
    return short


_SHORT: Final = _short()
