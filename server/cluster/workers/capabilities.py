"""An engine's capabilities, told from one process to another.

All of them are plain values but `count_tokens`, a function that the gateway calls for every piece of text it cuts. It
travels by its name: the gateway imports the module that it stands in. Such a module should be a light one, because
nothing else of the engine is loaded there.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from server.engines.base import Capabilities, EngineError, Voice


def describe(capabilities: Capabilities) -> dict[str, Any]:
    """Every capability as JSON has it. Raises EngineError where `count_tokens` has no name to find it by."""
    found = {name: value for name, value in asdict(capabilities).items() if name != "count_tokens"}
    return {
        **found,
        "parameters": sorted(capabilities.parameters),
        "markup": sorted(capabilities.markup),
        "count_tokens": _name_of(capabilities),
    }


def restore(described: Mapping[str, Any]) -> Capabilities:
    """The capabilities again. Raises EngineError where they do not hold together or `count_tokens` is not found."""
    try:
        voices = tuple(
            Voice(**{**voice, "languages": tuple(voice["languages"]), "lacks": tuple(voice["lacks"])})
            for voice in described["voices"]
        )
        return Capabilities(
            **{
                **described,
                "languages": tuple(described["languages"]),
                "voices": voices,
                "parameters": frozenset(described["parameters"]),
                "markup": frozenset(described["markup"]),
                "count_tokens": _find(described["count_tokens"]),
            }
        )
    except (KeyError, TypeError) as error:
        raise EngineError(f"a worker's engine describes itself wrongly: {error}") from error


def _name_of(capabilities: Capabilities) -> str:
    function = capabilities.count_tokens
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    try:
        found = _find(name)
    except EngineError:
        found = None
    if found is not function or name.startswith("__main__:"):
        raise EngineError(
            f"the engine {capabilities.name} cannot run in a worker process: its count_tokens is no function at the "
            "top of a module, which other processes could import"
        )
    return name


def _find(name: str) -> Callable[[str], int]:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise EngineError(f"the count_tokens of a worker's engine, {name}, cannot be imported: {error}") from error
    if not callable(found):
        raise EngineError(f"the count_tokens of a worker's engine, {name}, is no function")
    function: Callable[[str], int] = found
    return function
