"""Starting an engine: made, warmed up, and every fault of it one of a few errors that tell what is wrong in a line."""

from collections.abc import Mapping
from typing import Any, Final

from server.engines import registry
from server.engines.base import ClonesVoices, Engine, EngineError, UsesContextCache
from server.engines.context_cache import EngineContextCache
from server.voices.store import VoiceStore

START_ERRORS: Final = (EngineError, OSError, ValueError, registry.UnknownEngine)
"""What `start_engine` raises: the engine's own errors, faults of files, wrong options, an engine nobody installed."""


def start_engine(
    name: str,
    options: Mapping[str, Any],
    context_cache: EngineContextCache | None = None,
    voices: VoiceStore | None = None,
) -> Engine:
    """The engine called `name`, warm, with the cache and the learnt voices if it can use them. Slow: keep it off the
    event loop. Raises `START_ERRORS` alone: what only a fault of the engine can raise becomes an EngineError.
    """
    try:
        engine = registry.create(name, dict(options))
        if context_cache is not None and context_cache.keeps and isinstance(engine, UsesContextCache):
            context_cache.fit(engine.capabilities.device_memory)
            engine.use_context_cache(context_cache)
        if engine.capabilities.cloning:
            if not isinstance(engine, ClonesVoices):
                raise EngineError(f"the engine {name} cannot start: it tells of cloning, and is no ClonesVoices")
            engine.use_voices((voices or VoiceStore(None)).read)
        engine.warm_up()
    except START_ERRORS:
        raise
    except Exception as error:
        raise EngineError(f"the engine {name} cannot start: {type(error).__name__}: {error}") from error
    return engine
