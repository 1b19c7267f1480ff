"""The entry point of the engine: options, and upstream's package, which must be found and can fail in many ways."""

import importlib
import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from server.engines.base import EngineError
from server.engines.examining import how_to_install

if TYPE_CHECKING:
    from server.engines.cosyvoice_upstream.engine import UpstreamEngine

_KNOWN: Final = ("model", "model_dir", "upstream", "device")
_DEVICES: Final = ("auto", "cpu", "cuda")
_MATCHA: Final = Path("third_party") / "Matcha-TTS"
_MODULE: Final = "cosyvoice.cli.cosyvoice"


@dataclass(frozen=True, slots=True)
class UpstreamOptions:
    """Engine options, checked."""

    model_dir: Path
    upstream: Path | None = None  # a checkout; None: upstream is importable already
    device: Literal["auto", "cpu", "cuda"] = "auto"


def create(options: Mapping[str, Any]) -> "UpstreamEngine":
    """The engine named `cosyvoice-upstream`. Raises ValueError for options, EngineError for what is not there."""
    parsed = parse_options(options)
    package = _imported(parsed)
    try:
        from server.engines.cosyvoice_upstream.engine import UpstreamEngine
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("server"):
            raise
        message = f"the engine cosyvoice-upstream needs {error.name}: {how_to_install('cosyvoice')}"
        raise EngineError(message) from error
    try:
        make = getattr(package, "AutoModel", None) or package.CosyVoice2
        model = make(model_dir=str(parsed.model_dir))
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise EngineError(f"upstream cannot load {parsed.model_dir}: {type(error).__name__}: {said}") from error
    return UpstreamEngine(model, parsed.model_dir)


def parse_options(options: Mapping[str, Any]) -> UpstreamOptions:
    """Check options. Raises ValueError, one line."""
    unknown = sorted(map(str, set(options) - set(_KNOWN)))
    if unknown:
        raise ValueError(f"engine option {unknown[0]} is not one of {', '.join(_KNOWN)}")
    given = [name for name in ("model_dir", "model") if options.get(name)]
    if not given:
        raise ValueError("engine option model_dir must name the folder of a CosyVoice 2 or 3 model (--model does, too)")
    folder = _folder(given[0], options[given[0]])
    upstream = _folder("upstream", options["upstream"]) if options.get("upstream") else None
    if upstream is not None and not (upstream / "cosyvoice").is_dir():
        raise ValueError(f"engine option upstream must be a checkout of FunAudioLLM/CosyVoice: {upstream} has none")
    device = options.get("device", "auto")
    if device not in _DEVICES:
        raise ValueError(f"engine option device must be one of {', '.join(_DEVICES)}, not {device!r}")
    return UpstreamOptions(folder, upstream, device)


def _folder(name: str, value: object) -> Path:
    if not isinstance(value, str | Path) or "\0" in str(value) or not Path(value).expanduser().is_dir():
        raise ValueError(f"engine option {name} must be a folder that is there, not {value!r}")
    return Path(value).expanduser().resolve()


def _imported(options: UpstreamOptions) -> Any:
    """Upstream's module of models. Raises EngineError."""
    if options.device == "cpu":  # upstream takes a GPU wherever it finds one; this is read when CUDA is first used
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if options.upstream is not None:
        for folder in (options.upstream / _MATCHA, options.upstream):
            if str(folder) not in sys.path:
                sys.path.insert(0, str(folder))
    if not logging.getLogger().handlers:  # else its import has the whole program log everything
        logging.getLogger().addHandler(logging.NullHandler())
    try:
        package: Any = importlib.import_module(_MODULE)
    except Exception as error:
        lacking = error.name if isinstance(error, ModuleNotFoundError) else f"{type(error).__name__}: {error}"
        raise EngineError(
            "the engine cosyvoice-upstream needs FunAudioLLM/CosyVoice and its requirements: engine option upstream"
            f" names its checkout (importing it failed: {' '.join(str(lacking).split())[:200]}); the engine cosyvoice"
            " needs none of it"
        ) from error
    if hasattr(package, "tqdm"):
        package.tqdm = _quiet  # a bar on the terminal for every segment
    if options.device == "cuda" and not importlib.import_module("torch").cuda.is_available():
        raise EngineError("engine option device is cuda, but torch finds no CUDA device here")
    return package


def _quiet(items: Any, *_: Any, **__: Any) -> Any:
    return items
