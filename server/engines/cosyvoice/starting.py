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
    return CosyVoiceEngine(load(parsed, find_model(parsed)))
