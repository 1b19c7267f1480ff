"""Starting an engine: made, warmed up, and every fault of it one of a few errors that tell what is wrong in a line."""

from collections.abc import Mapping
from typing import Any, Final

from server.engines import registry
from server.engines.base import Engine, EngineError, UsesContextCache
from server.engines.context_cache import EngineContextCache

START_ERRORS: Final = (EngineError, OSError, ValueError, registry.UnknownEngine)
"""What `start_engine` raises: the engine's own errors, faults of files, wrong options, an engine nobody installed."""


def start_engine(name: str, options: Mapping[str, Any], context_cache: EngineContextCache | None = None) -> Engine:
    """The engine called `name`, warm, with the cache if it can use one. Slow: keep it off the event loop. Raises
    `START_ERRORS` alone: what only a fault of the engine can raise becomes an EngineError.
    """
    try:
        engine = registry.create(name, dict(options))
        if context_cache is not None and context_cache.keeps and isinstance(engine, UsesContextCache):
            context_cache.fit(engine.capabilities.device_memory)
            engine.use_context_cache(context_cache)
        engine.warm_up()
    except START_ERRORS:
        raise
    except Exception as error:
        raise EngineError(f"the engine {name} cannot start: {type(error).__name__}: {error}") from error
    return engine
