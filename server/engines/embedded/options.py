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


class OptionError(EngineError, ValueError):
    """An option is wrong; the text, one line, names it and what is allowed."""


@dataclass(frozen=True, slots=True)
class Options:
    """`voices` None: every voice that can be had; a voice that cannot be built is left out with a warning."""

    model_dir: Path
    sources: tuple[str, ...]
    threads: int
    voices: tuple[str, ...] | None


def parse_options(options: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Options:
    """Check options. Lists may also be one text with commas, as they come from the environment."""
    unknown = sorted(map(str, set(options) - set(_KNOWN)))
    if unknown:
        raise OptionError(f"engine option {unknown[0]} is not one of {', '.join(_KNOWN)}")
    environment = os.environ if environment is None else environment
    voices = None if options.get("voices") is None else _texts(options["voices"], "voices")
    ids = [voice.id for voice in ALL_VOICES]
    for voice in voices or ():
        if voice not in ids:
            raise OptionError(f"engine option voices: unknown voice {voice!r}; known are {', '.join(ids)}")
    if voices is not None and not voices:
        raise OptionError(f"engine option voices: name at least one of {', '.join(ids)}")
    return Options(
        model_dir=_folder(options.get("model_dir")) or default_model_dir(environment),
        sources=_texts(options.get("sources") or DEFAULT_SOURCES, "sources"),
        threads=_threads(options.get("threads", 1)),
        voices=voices,
    )


def _folder(value: Any) -> Path | None:
    """None where none is named."""
    if value is None or value == "":
        return None
    if not isinstance(value, str | Path) or "\0" in str(value):
        raise OptionError(f"engine option model_dir must be a folder's path, not {value!r}")
    try:
        return Path(value).expanduser()
    except RuntimeError as error:
        raise OptionError(f"engine option model_dir: {error}".rstrip(".")) from error


def _texts(value: Any, name: str) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple) or not all(isinstance(item, str | Path) for item in value):
        raise OptionError(f"engine option {name} must be a list of texts, not {value!r}")
    return tuple(str(item) for item in value)


def _threads(value: Any) -> int:
    try:
        threads = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else 0
    except ValueError:
        threads = 0
    if not 1 <= threads <= 64:
        raise OptionError(f"engine option threads must be a whole number from 1 to 64, not {value!r}")
    return threads
