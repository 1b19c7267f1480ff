"""A model folder: what must be in it, and the modules out of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from server.engines.cosyvoice.config import ModelConfig, ModelVersion
from server.engines.cosyvoice.flow.matching import FlowModel
from server.engines.cosyvoice.llm.speech_lm import IGNORED_KEYS, SpeechLm
from server.engines.cosyvoice.reading import BODY_FOLDER, VERSIONS, read_config, yaml_name
from server.engines.cosyvoice.sections import ModelError, one_line
from server.engines.cosyvoice.vocoder.causal import CausalHift
from server.engines.cosyvoice.vocoder.hift import Hift
from server.engines.cosyvoice.vocoder.streaming import Vocoder
from server.engines.cosyvoice.voice.onnx_file import check_onnx
from server.engines.cosyvoice.weights import fold_weight_norm, load_checked, load_state, uninitialised

_TOKENIZER_FILES: Final = ("vocab.json", "merges.txt")  # or one `tokenizer.json` in their place


@dataclass(frozen=True, slots=True)
class Model:
    """The three modules, on one device. The language model is as loaded: `SpeechLm.prepare()` is for who uses it."""

    config: ModelConfig
    lm: SpeechLm
    flow: FlowModel
    vocoder: Vocoder


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder that has every file that is needed. The contents of most are looked at when they are loaded; the ONNX
    files, which are not loaded before somebody sends a recording, at once.
    """

    path: Path
    config: ModelConfig

    @property
    def version(self) -> ModelVersion:
        """2 or 3."""
        return self.config.version

    @property
    def body(self) -> Path:
        """The folder of the tokenizer."""
        return self.path / BODY_FOLDER

    @property
    def speakers(self) -> Path | None:
        """The file of the speakers that come with the model, if there is one."""
        file = self.path / "spk2info.pt"
        return file if file.is_file() else None

    @classmethod
    def open(cls, path: Path) -> "ModelFolder":
        """Look what is there. Raises ModelError, one line that names what is missing."""
        if not path.is_dir():
            raise ModelError(f"{path}: {'is no folder' if path.exists() else 'is missing'}; a model folder is wanted")
        there = [version for version in VERSIONS if (path / yaml_name(version)).is_file()]
        if not there and (path / "cosyvoice.yaml").is_file():
            raise ModelError(f"{path}: holds cosyvoice.yaml, a model of version 1; only versions 2 and 3 can be used")
        if len(there) == 1:  # else read_config() says what is wrong
            missing = _missing(path, there[0])
            if missing:
                raise ModelError(f"{path}: lacks {', '.join(missing)}{_hint(path, there[0])}")
            for name in needed_files(there[0]):
                if name.endswith(".onnx"):
                    check_onnx(path / name)
        return cls(path, read_config(path))


def needed_files(version: ModelVersion) -> tuple[str, ...]:
    """Every file of a folder that the engine reads, less optional ones; relative to it."""
    return (
        yaml_name(version),
        "llm.pt",
        "flow.pt",
        "hift.pt",
        "campplus.onnx",
        f"speech_tokenizer_v{version}.onnx",
        f"{BODY_FOLDER}/config.json",
        *(f"{BODY_FOLDER}/{name}" for name in _TOKENIZER_FILES),
    )


def load_model(folder: ModelFolder, device: torch.device | None = None, dtype: torch.dtype = torch.float32) -> Model:
    """The folder's modules. `dtype` is that of the language model and the flow; the vocoder is always float32. Raises
    ModelError, one line that names the file and what is wrong with it.
    """
    device = device or torch.device("cpu")
    states = {part: partial(load_state, folder.path / f"{part}.pt") for part in ("llm", "flow", "hift")}
    return build_model(folder.config, states, str(folder.path), device, dtype)


def build_model(
    config: ModelConfig,
    states: Mapping[str, Callable[[], dict[str, Tensor]]],
    where: str,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> Model:
    """A model of the states that are made by `states["llm"]`, `["flow"]` and `["hift"]`, one after the other: no more
    than one is held at a time. `where` names their folder in messages. Raises ModelError.
    """
    try:
        lm, flow, hift = modules_of(config)
    except (RuntimeError, ValueError, ArithmeticError, AssertionError, MemoryError) as problem:
        file = f"{where}/{yaml_name(config.version)}"
        raise ModelError(f"{file}: no model of such sizes can be made here: {one_line(problem)}") from None
    for part, module, precision in (("llm", lm, dtype), ("flow", flow, dtype), ("hift", hift, torch.float32)):
        file = f"{where}/{part}.pt"
        state = states[part]()
        found = version_of(part, state)
        if found is not None and found != config.version:
            raise ModelError(
                f"{file}: holds weights of CosyVoice {found}, but {yaml_name(config.version)} describes version"
                f" {config.version}"
            )
        try:
            load_checked(module, canonical(part, state, file), file, not_needed, device, precision)
        except (torch.OutOfMemoryError, MemoryError):
            raise _no_memory(file, state, device) from None
        except RuntimeError as problem:
            if "allocate memory" not in str(problem):
                raise ModelError(f"{file}: cannot be loaded: {one_line(problem)}") from problem
            raise _no_memory(file, state, device) from None
    return Model(config, lm, flow, Vocoder(hift))


def modules_of(config: ModelConfig) -> tuple[SpeechLm, FlowModel, Hift | CausalHift]:
    """Modules without weights, to load a checkpoint into."""
    with uninitialised():
        hift = Hift(config.vocoder) if config.version == 2 else CausalHift(config.vocoder)
        return SpeechLm(config.llm), FlowModel(config.flow), hift


def canonical(part: str, state: Mapping[str, Tensor], file: str) -> dict[str, Tensor]:
    """A checkpoint's tensors under the names that the modules have. Raises ModelError."""
    if part != "hift":
        return dict(state)
    # A vocoder that was trained beside its discriminator is kept under this name.
    return fold_weight_norm({key.removeprefix("generator."): value for key, value in state.items()}, file)


def version_of(part: str, state: Mapping[str, Tensor]) -> ModelVersion | None:
    """Which model a checkpoint is of, None where it is of none that is known."""
    if part == "llm":
        if "speech_embedding.weight" not in state:
            return None
        return 2 if "llm_embedding.weight" in state else 3
    if part == "flow":
        if "encoder_proj.weight" in state:
            return 2
        return 3 if "pre_lookahead_layer.conv1.weight" in state else None
    first = state.get("f0_predictor.condnet.0.parametrizations.weight.original1")
    if first is None or first.dim() != 3:
        return None
    return {3: 2, 4: 3}.get(first.shape[2])  # type: ignore[return-value]


def not_needed(key: str) -> bool:
    """The text head computes nothing that speech needs."""
    return key in IGNORED_KEYS


def _no_memory(file: str, state: Mapping[str, Tensor], device: torch.device) -> ModelError:
    size = sum(value.numel() for value in state.values()) * 4
    return ModelError(f"{file}: not enough memory on {device} for its weights ({size / 1e9:.1f} GB as float32)")


def _missing(path: Path, version: ModelVersion) -> list[str]:
    files = needed_files(version)
    if (path / BODY_FOLDER / "tokenizer.json").is_file():
        files = tuple(each for each in files if not each.endswith(_TOKENIZER_FILES))
    return [each for each in files if not (path / each).is_file()]


def _hint(path: Path, version: ModelVersion) -> str:
    for other in VERSIONS:
        name = f"speech_tokenizer_v{other}.onnx"
        if other != version and (path / name).is_file():
            return f" (has {name}, which belongs to version {other}: are files of two models mixed?)"
    return f", which a model of version {version} needs"
