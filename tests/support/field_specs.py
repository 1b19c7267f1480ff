"""What a message field allows, read from the words its check uses to say so."""

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from hypothesis import strategies as st

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.fields import Check, checks_of
from protocol.limits import U53

Message: TypeAlias = c.ClientMessage | s.ServerMessage
MESSAGES: Final[tuple[type[Message], ...]] = (*c.CLIENT_MESSAGES, *s.SERVER_MESSAGES)

_RANGE: Final = r"(-?[\d.e+]+) to ([\d.e+]+)"
_LENGTH: Final = r"a string of (?:(\d+) to )?(\d+) characters"
_OR_NULL: Final = ", or null"
_NONE_OF_IT: Final = object()


def allowed(check: Check) -> str:
    """The check's own words for what it allows."""
    try:
        check(_NONE_OF_IT)
    except ValueError as error:
        return str(error)
    raise AssertionError("a check that allows everything")


def required_fields(cls: type[Any]) -> list[str]:
    """The fields that a message of this type cannot do without."""
    return [name for name, _, required in checks_of(cls) if required]


def valid(check: Check) -> st.SearchStrategy[Any]:
    """JSON values the field allows, up to the bounds."""
    words = allowed(check)
    values = _valid(words.removesuffix(_OR_NULL))
    return st.none() | values if words.endswith(_OR_NULL) else values


def _valid(words: str) -> st.SearchStrategy[Any]:
    if match := re.fullmatch(f"an integer from {_RANGE}", words):
        return st.integers(int(match[1]), int(match[2]))
    if match := re.fullmatch(f"a number from {_RANGE}", words):
        return st.floats(float(match[1]), float(match[2])) | st.sampled_from([float(match[1]), float(match[2])])
    if match := re.fullmatch(_LENGTH, words):
        low, high = int(match[1] or match[2]), int(match[2])
        return st.text(min_size=low, max_size=min(high, max(low, 20))) | st.sampled_from(["好" * high, "a" * low])
    if match := re.fullmatch(r"one of (.+)", words):
        return st.sampled_from(match[1].split(", "))
    if words.startswith("an object of at most"):
        return st.dictionaries(st.text(min_size=1, max_size=5), st.text(min_size=1, max_size=5), max_size=3)
    simple: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
        "true or false": st.booleans,
        "an object": lambda: st.dictionaries(st.text(max_size=5), _json(), max_size=3),
        "an array": lambda: st.lists(values_of(s.Word), max_size=3),
    }
    return simple[words]()


def _json() -> st.SearchStrategy[Any]:
    leaf = (
        st.none()
        | st.booleans()
        | st.integers(-U53, U53)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text()
    )
    return st.recursive(leaf, lambda inner: st.lists(inner, max_size=3), max_leaves=4)


def values_of(cls: type[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """JSON objects with the fields of `cls`; those with a default may be missing."""
    checks = checks_of(cls)
    return st.fixed_dictionaries(
        {name: valid(check) for name, check, required in checks if required},
        optional={name: valid(check) for name, check, required in checks if not required},
    )


def bodies(cls: type[Message]) -> st.SearchStrategy[dict[str, Any]]:
    """JSON bodies of messages of this type."""
    return values_of(cls).map(lambda fields: {"type": cls.type, **fields})


def wrong_values(check: Check) -> list[Any]:
    """JSON values just outside of what the field allows: beyond each bound, and of every other type."""
    words = allowed(check)
    nullable = words.endswith(_OR_NULL)
    words = words.removesuffix(_OR_NULL)
    wrong: list[Any] = [] if nullable else [None]
    kinds: dict[str, Any] = {"boolean": True, "number": 0.5, "string": "1", "array": [0], "object": {"a": 0}}
    if match := re.fullmatch(f"(an integer|a number) from {_RANGE}", words):
        least, most = float(match[2]), float(match[3])
        if match[1] == "an integer":
            wrong += [int(match[2]) - 1, int(match[3]) + 1, least, least + 0.5]
        else:
            wrong += [least - 1, least - 1e-9, most + 1e-6, 10**30]
        kinds.pop("number")
    elif match := re.fullmatch(_LENGTH, words):
        low, high = int(match[1] or match[2]), int(match[2])
        wrong += ["好" * (high + 1)] + (["a" * (low - 1)] if low else [])
        kinds.pop("string")
    elif words.startswith("one of"):
        wrong += ["", words[7:].split(", ")[0].upper()]
    elif match := re.fullmatch(r"an object of at most (\d+) entries, .* 1 to (\d+) characters", words):
        many, chars = int(match[1]) + 1, int(match[2]) + 1
        wrong += [{str(i): "a" for i in range(many)}, {"a" * chars: "a"}, {"a": "a" * chars}, {"": "a"}, {"a": ""}]
    else:
        kinds.pop({"true or false": "boolean", "an object": "object", "an array": "-"}[words], None)
    return wrong + list(kinds.values())
