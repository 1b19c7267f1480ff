"""What an operator may set for this engine."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args

from server.engines.base import EngineError

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "fp32", "bf16", "fp16"]
Quantisation = Literal["none", "int8"]
Hub = Literal["huggingface", "modelscope"]

DEFAULT_MODEL: Final = "FunAudioLLM/CosyVoice2-0.5B"
_Choice = TypeVar("_Choice", bound=str)


class OptionError(EngineError, ValueError):
    """An option is wrong; the text, one line, names it and what is allowed."""


@dataclass(frozen=True, slots=True)
class Options:
    """Engine options, checked. See docs/engines.md for what they do."""

    model: str = DEFAULT_MODEL  # a folder, or the name of a model on a hub
    hub: Hub = "huggingface"
    revision: str = ""  # of the model on its hub; empty: the newest
    offline: bool = False  # never go to the hub
    model_dir: Path | None = None  # where downloaded models are kept; None: where all models are
    device: Device = "auto"
    precision: Precision = "auto"
    quantise: Quantisation = "none"  # of the language model, on a CPU
    threads: int = 0  # of torch on a CPU; 0: as many as there are cores
    batch: int = 0  # segments that share a step; 0: by device
    length: int = 2048  # positions of one segment in the language model: prompt, text and codes
    history_s: float = 6.0  # of its own sound that a segment's flow looks back at, besides the prompt; 0: all
    voice_cache_mb: int = 0  # of what is kept computed for voices; 0: by device
    stream_memory_mb: int = 0  # of what the flow holds for segments that are streamed; 0: by device


def parse_options(options: Mapping[str, Any]) -> Options:
    """Check options. Raises OptionError."""
    known = [each.name for each in fields(Options)]
    unknown = sorted(map(str, set(options) - set(known)))
    if unknown:
        raise OptionError(f"engine option {unknown[0]} is not one of {', '.join(sorted(known))}")
    default = Options()
    model_dir = _text(options, "model_dir", "")
    return Options(
        model=_text(options, "model", default.model) or default.model,
        hub=_choice(options, "hub", get_args(Hub), default.hub),
        revision=_text(options, "revision", ""),
        offline=_switch(options, "offline"),
        model_dir=Path(model_dir).expanduser() if model_dir else None,
        device=_choice(options, "device", get_args(Device), default.device),
        precision=_choice(options, "precision", get_args(Precision), default.precision),
        quantise=_choice(options, "quantise", get_args(Quantisation), default.quantise),
        threads=int(_number(options, "threads", default.threads, 0, 256, whole=True)),
        batch=int(_number(options, "batch", default.batch, 0, 256, whole=True)),
        length=int(_number(options, "length", default.length, 512, 16_384, whole=True)),
        history_s=_number(options, "history_s", default.history_s, 0.0, 300.0),
        voice_cache_mb=int(_number(options, "voice_cache_mb", default.voice_cache_mb, 0, 1_000_000, whole=True)),
        stream_memory_mb=int(_number(options, "stream_memory_mb", default.stream_memory_mb, 0, 1_000_000, whole=True)),
    )


def _text(options: Mapping[str, Any], name: str, default: str) -> str:
    value = options.get(name, default)
    if not isinstance(value, str | Path) or "\0" in str(value):
        raise OptionError(f"engine option {name} must be a text, not {value!r}")
    return str(value).strip()


def _choice(options: Mapping[str, Any], name: str, allowed: tuple[_Choice, ...], default: _Choice) -> _Choice:
    value = options.get(name, default)
    for each in allowed:
        if value == each:
            return each
    raise OptionError(f"engine option {name} must be one of {', '.join(allowed)}, not {value!r}")


def _switch(options: Mapping[str, Any], name: str) -> bool:
    value = options.get(name, False)
    text = value.lower() if isinstance(value, str) else value
    if text in (True, "true", "yes", "on", "1", 1):
        return True
    if text in (False, "false", "no", "off", "0", 0):
        return False
    raise OptionError(f"engine option {name} must be true or false, not {value!r}")


def _number(
    options: Mapping[str, Any], name: str, default: float, least: float, most: float, *, whole: bool = False
) -> float:
    value = options.get(name, default)
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    except ValueError:
        number = None
    if number is None or not least <= number <= most or (whole and number != int(number)):
        kind = "a whole number" if whole else "a number"
        raise OptionError(f"engine option {name} must be {kind} from {least:g} to {most:g}, not {value!r}")
    return number
