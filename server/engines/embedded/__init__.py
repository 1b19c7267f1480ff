"""The embedded engine: real Chinese and English speech on any CPU, from models that are built out of registry packages.

A segment is cut into pieces of one language (`pieces`). The Chinese voice (FastSpeech2 and MB-MelGAN) and the English
voice (hibari) each run their acoustic model over a piece and then give samples in chunks. `voice_build` makes the
models once, in a cache folder; `python -m server.engines.embedded build` does it ahead of time.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from server.engines.embedded.engine import EmbeddedEngine

__all__ = ["create"]


def create(options: Mapping[str, Any]) -> "EmbeddedEngine":
    """The engine factory: `model_dir`, `sources`, `threads`, `voices`; see docs/engines.md."""
    # Imported here because the models' libraries take half a second, which a build or another engine need not wait for.
    from server.engines.embedded.engine import EmbeddedEngine
    from server.engines.embedded.options import parse_options

    return EmbeddedEngine(parse_options(options))
