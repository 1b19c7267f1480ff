"""Checks for message fields: each turns a decoded JSON value into the value stored, or says what is allowed."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

Check: TypeAlias = Callable[[object], object]
"""Returns the accepted value; raises ValueError with the text of what is allowed ("an integer from 0 to 5")."""

CHECK: Final = "check"
REQUIRED: Final = dataclasses.MISSING


def spec(check: Check, default: Any = REQUIRED, *, null: bool = False) -> Any:
    """A dataclass field with its check. `null` accepts JSON null (stored as None)."""

    def nullable(value: object) -> object:
        if value is None:
            return None
        try:
            return check(value)
        except ValueError as error:
            raise ValueError(f"{error}, or null") from None

    metadata = {CHECK: nullable if null else check}
    if default is REQUIRED:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def integer(low: int, high: int) -> Check:
    """A JSON integer (not a boolean) in [low, high]."""

    def check(value: object) -> object:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"an integer from {low} to {high}")
        return value

    return check


def number(low: float, high: float) -> Check:
    """A JSON number in [low, high], stored as float."""

    def check(value: object) -> object:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"a number from {low:g} to {high:g}")
        return float(value)

    return check


def boolean(value: object) -> object:
    """true or false."""
    if type(value) is not bool:
        raise ValueError("true or false")
    return value


def string(max_chars: int, min_chars: int = 0) -> Check:
    """A JSON string of min..max code points."""
    length = f"{max_chars}" if min_chars == max_chars else f"{min_chars} to {max_chars}"

    def check(value: object) -> object:
        if not isinstance(value, str) or not min_chars <= len(value) <= max_chars:
            raise ValueError(f"a string of {length} characters")
        return value

    return check


def choice(options: Sequence[str]) -> Check:
    """One of these strings."""

    def check(value: object) -> object:
        if not isinstance(value, str) or value not in options:
            raise ValueError("one of " + ", ".join(options))
        return value

    return check


def string_map(max_entries: int, max_chars: int) -> Check:
    """A JSON object of strings to strings."""

    def check(value: object) -> object:
        allowed = f"an object of at most {max_entries} entries, keys and values strings of 1 to {max_chars} characters"
        if not isinstance(value, dict) or len(value) > max_entries:
            raise ValueError(allowed)
        for key, item in value.items():
            if not isinstance(item, str) or not 1 <= len(key) <= max_chars or not 1 <= len(item) <= max_chars:
                raise ValueError(allowed)
        return value

    return check


def mapping(value: object) -> object:
    """A JSON object."""
    if not isinstance(value, dict):
        raise ValueError("an object")
    return value


def list_of(make: Callable[[object], object]) -> Check:
    """A JSON array whose items all pass `make`; stored as a tuple."""

    def check(value: object) -> object:
        if not isinstance(value, list):
            raise ValueError("an array")
        made = []
        for index, item in enumerate(value):
            try:
                made.append(make(item))
            except ValueError as error:
                raise ValueError(f"an array whose item {index} is {error}") from None
        return tuple(made)

    return check


def item_field(item: Mapping[object, object], name: str, check: Check) -> object:
    """A required field of an object inside an array."""
    try:
        return check(item.get(name))
    except ValueError as error:
        raise ValueError(f"an object whose `{name}` is {error}") from None


def checks_of(cls: type) -> tuple[tuple[str, Check, bool], ...]:
    """(name, check, required) for every field of a message type."""
    return tuple(
        (f.name, f.metadata[CHECK], f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING)
        for f in dataclasses.fields(cls)
    )
