"""JSON that is never lost: orjson, and where that is too strict the standard library, which is slower. Pure."""

import json
from collections.abc import Callable
from typing import Any

import orjson


def dumps(value: Any, default: Callable[[Any], Any] | None = None, option: int | None = None) -> bytes:
    """`value` as JSON; also with integers beyond 64 bits and with half surrogate pairs in texts. `default` and `option`
    as of orjson. Raises TypeError or ValueError where it cannot be written.
    """
    try:
        return orjson.dumps(value, default, option)
    except TypeError:
        return json.dumps(value, default=default).encode()


def loads(text: bytes | memoryview) -> Any:
    """What `dumps` wrote. Raises ValueError."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(bytes(text))
