"""Sets of reference vectors: for each a description of the model, its tensors' shapes, and what it computed.

`NAME_config.yaml` is the model's YAML file, `NAME_manifest.json` tells the shapes of its tensors (their values follow a
rule, see `synthetic.py`), `NAME_golden.npz` holds inputs and outputs.
"""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from server.engines.cosyvoice.config import ModelConfig
from server.engines.cosyvoice.folder import Model, build_model
from server.engines.cosyvoice.reading import parse_config, version_in
from server.engines.cosyvoice.sections import ModelError, one_line, read_text
from server.engines.cosyvoice.synthetic import PARTS, Manifest, body_sizes, read_manifest, state_by_rule

_CONFIG: Final = "config.yaml"

Array = npt.NDArray[np.float32] | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class VectorSet:
    """One set, read but not yet built."""

    name: str
    config: ModelConfig
    manifest: Manifest
    golden: Mapping[str, Array]

    def build(self, tag: str = "") -> Model:
        """Its model, on the CPU. `tag` comes before the parts' names in the rule. Raises ModelError."""
        states = {part: partial(state_by_rule, part, self.manifest[part], tag) for part in PARTS}
        return build_model(self.config, states, self.name, torch.device("cpu"))


def read_set(config: Path) -> VectorSet:
    """The set that `config`, a NAME_config.yaml, is of. Raises ModelError: a file of it is missing or wrong."""
    stem = config.name.removesuffix(_CONFIG)
    manifest = read_manifest(config.with_name(f"{stem}manifest.json"))
    golden = _arrays(config.with_name(f"{stem}golden.npz"))
    text = read_text(config)
    try:
        body = body_sizes(manifest)
    except ModelError as problem:
        raise ModelError(f"{config.with_name(f'{stem}manifest.json')}: {problem}") from None
    model = parse_config(text, str(config), version_in(text, str(config)), body)
    return VectorSet(stem.rstrip("_") or config.parent.name, model, manifest, golden)


def _arrays(file: Path) -> dict[str, Array]:
    try:
        with np.load(file, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
    except OSError as problem:
        raise ModelError(f"{file}: cannot be read: {problem.strerror or one_line(problem)}") from None
    except (ValueError, EOFError, KeyError, AttributeError, zipfile.BadZipFile):
        raise ModelError(f"{file}: is no archive of arrays (.npz), or damaged") from None
    return {
        name: value.astype(np.int64 if value.dtype.kind in "iub" else np.float32)
        for name, value in arrays.items()
        if value.dtype.kind in "iubf"
    }
