"""The entry point of the engine: light, so that a missing package is said in a line and not as a trace."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from server.engines.base import EngineError
from server.engines.cosyvoice.options import parse_options

if TYPE_CHECKING:
    from server.engines.cosyvoice.engine import CosyVoiceEngine


def create(options: Mapping[str, Any]) -> "CosyVoiceEngine":
    """The engine named `cosyvoice`. Raises ValueError for options and EngineError for what is not there, one line."""
    parsed = parse_options(options)
    try:
        from server.engines.cosyvoice.engine import CosyVoiceEngine
        from server.engines.cosyvoice.hub import find_model
        from server.engines.cosyvoice.loading import load
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("server"):
            raise
        message = f"the engine cosyvoice needs {error.name}: pip install 'cosystream[cosyvoice]'"
        raise EngineError(message) from error
    except (ImportError, OSError, MemoryError) as error:
        if not _is_about_memory(error):
            raise
        raise EngineError("not enough memory to load the libraries that the engine cosyvoice needs") from error
    folder = find_model(parsed)
    try:
        return CosyVoiceEngine(load(parsed, folder))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, EngineError) or not _is_about_memory(error):
            raise
        message = (
            f"not enough memory for the model in {folder}: `python -m server doctor --engine cosyvoice` says what fits"
        )
        raise EngineError(message) from error


def _is_about_memory(error: Exception) -> bool:
    """Whether it ran out: Python, torch on whatever device, or the system's loader of libraries."""
    words = ("out of memory", "allocate memory", "failed to map segment", "cannot create shared object descriptor")
    return isinstance(error, MemoryError) or any(each in str(error) for each in words)
