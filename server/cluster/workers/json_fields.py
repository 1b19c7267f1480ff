"""Checks of the values in the JSON between gateways and workers.

What is raised quotes no value: it may be part of a text, and is logged.
"""

from collections.abc import Mapping
from typing import Any


def list_of(value: Any, length: int) -> list[Any]:
    """A list of that length. Raises ValueError, as the others do for what is no such thing."""
    if not isinstance(value, list) or len(value) != length:
        raise ValueError(f"not a list of {length}")
    return value


def table_of(value: Any) -> Mapping[str, Any]:
    """A table with names for keys, as JSON has no others."""
    if not isinstance(value, dict):
        raise ValueError("not a table")
    return value


def text_of(value: Any) -> str:
    """A text, half surrogate pairs included."""
    if not isinstance(value, str):
        raise ValueError(f"{type(value).__name__} in place of a text")
    return value


def whole_number(value: Any) -> int:
    """A whole number that is not negative."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{type(value).__name__} in place of a whole number")
    return value
