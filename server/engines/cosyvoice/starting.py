"""The entry point of the engine: light, so that a missing package is said in a line and not as a trace."""

import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from server.engines.base import EngineError
from server.engines.cosyvoice.options import OptionError, Options, parse_options
from server.engines.examining import how_to_install

if TYPE_CHECKING:
    import torch

    from server.engines.cosyvoice.engine import CosyVoiceEngine

SPINS: Final = "10000"  # well under a millisecond
_log = logging.getLogger(__name__)


def share_cores() -> None:
    """Have torch's threads sleep where they wait for each other for longer than a moment. By its own choice OpenMP has
    them spin for milliseconds, which takes the cores from the very threads that they wait for wherever anything else
    runs. Call it before torch is imported; a user's own choice stands.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def create(options: Mapping[str, Any]) -> "CosyVoiceEngine":
    """The engine named `cosyvoice`. Raises ValueError for options and EngineError for what is not there, one line."""
    parsed = parse_options(options)
    share_cores()
    try:
        from server.engines.cosyvoice.engine import CosyVoiceEngine
        from server.engines.cosyvoice.hub import find_model
        from server.engines.cosyvoice.loading import load
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("server"):
            raise
        message = f"the engine cosyvoice needs {error.name}: {how_to_install('cosyvoice')}"
        raise EngineError(message) from error
    except (ImportError, OSError, MemoryError) as error:
        if not _is_about_memory(error):
            raise
        raise EngineError("not enough memory to load the libraries that the engine cosyvoice needs") from error
    device, precision = place_of(parsed)  # before anything is fetched
    folder = find_model(parsed)
    _log.info("loading the model in %s on %s in %s", folder, device.type, precision)
    try:
        return CosyVoiceEngine(load(parsed, folder))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, EngineError) or not _is_about_memory(error):
            raise
        message = (
            f"not enough memory for the model in {folder}: `python -m server doctor --engine cosyvoice` says what fits"
        )
        raise EngineError(message) from error


def place_of(options: Options) -> "tuple[torch.device, str]":
    """Where the options say to compute, and in what precision. Raises EngineError where that is not possible here."""
    from server.engines.cosyvoice.loading import device_of, precision_of

    device = device_of(options)
    precision = options.precision if options.precision != "auto" else precision_of(device)
    if options.quantise == "int8" and (device.type != "cpu" or precision != "fp32"):
        raise OptionError(
            f"engine option quantise: int8 needs device cpu and precision fp32, and these are {device.type} and"
            f" {precision}"
        )
    if options.quantise == "int8":
        import torch

        from server.engines.cosyvoice.llm.quantise import Int8Linear

        Int8Linear([torch.zeros(8, 8)])  # refuses where this processor or this torch cannot do it
    return device, precision


def _is_about_memory(error: Exception) -> bool:
    """Whether it ran out: Python, torch on whatever device, or the system's loader of libraries."""
    words = ("out of memory", "allocate memory", "failed to map segment", "cannot create shared object descriptor")
    return isinstance(error, MemoryError) or any(each in str(error) for each in words)
