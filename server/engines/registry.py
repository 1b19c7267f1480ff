"""Engines by name, through the entry point group `cosystream.engines`."""

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from server.engines.base import Engine

GROUP: Final = "cosystream.engines"


class UnknownEngine(LookupError):
    """No installed package offers an engine of this name."""


def names() -> list[str]:
    """The engines that are installed."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def create(name: str, options: Mapping[str, Any]) -> Engine:
    """The engine called `name`. Raises UnknownEngine, and whatever its factory raises (one-line messages)."""
    points = [point for point in entry_points(group=GROUP) if point.name == name]
    if not points:
        raise UnknownEngine(f"engine must be one of {', '.join(names()) or '(none installed)'}, not {name!r}")
    engine: Engine = points[0].load()(options)
    return engine
