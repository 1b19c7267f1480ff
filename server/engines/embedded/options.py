"""What an operator may set for this engine."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.engines.base import EngineError
from server.engines.embedded.catalog import ALL_VOICES
from server.engines.embedded.wheel_source import DEFAULT_SOURCES
from server.engines.model_cache import default_model_dir

_KNOWN = ("model_dir", "sources", "threads", "voices")


class OptionError(EngineError):
    """An option is wrong; the text names it and what is allowed."""


@dataclass(frozen=True, slots=True)
class Options:
    """`voices` None: every voice that can be had; a voice that cannot be built is left out with a warning."""

    model_dir: Path
    sources: tuple[str, ...]
    threads: int
    voices: tuple[str, ...] | None


def parse_options(options: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Options:
    """Check options. Lists may also be one text with commas, as they come from the environment."""
    unknown = sorted(set(options) - set(_KNOWN))
    if unknown:
        raise OptionError(f"embedded engine: unknown option {unknown[0]!r}; known are {', '.join(_KNOWN)}")
    environment = os.environ if environment is None else environment
    model_dir = options.get("model_dir")
    voices = None if options.get("voices") is None else _texts(options["voices"], "voices")
    ids = [voice.id for voice in ALL_VOICES]
    for voice in voices or ():
        if voice not in ids:
            raise OptionError(f"embedded engine: voices: unknown voice {voice!r}; known are {', '.join(ids)}")
    if voices is not None and not voices:
        raise OptionError(f"embedded engine: voices: name at least one of {', '.join(ids)}")
    return Options(
        model_dir=Path(model_dir).expanduser() if model_dir else default_model_dir(environment),
        sources=_texts(options.get("sources") or DEFAULT_SOURCES, "sources"),
        threads=_threads(options.get("threads", 1)),
        voices=voices,
    )


def _texts(value: Any, name: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple) or not all(isinstance(item, str | Path) for item in value):
        raise OptionError(f"embedded engine: {name}: a list of texts is expected, not {value!r}")
    return tuple(str(item) for item in value)


def _threads(value: Any) -> int:
    try:
        threads = int(value)
    except (TypeError, ValueError):
        threads = 0
    if isinstance(value, bool) or not 1 <= threads <= 64:
        raise OptionError(f"embedded engine: threads: a whole number from 1 to 64 is expected, not {value!r}")
    return threads
