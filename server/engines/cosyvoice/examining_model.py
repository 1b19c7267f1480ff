"""What `python -m server doctor` finds of the model: in its folder, or at the hub where it is to be fetched from."""

import os
from pathlib import Path
from typing import Final

from server.engines.cosyvoice.config import ModelConfig, ModelVersion
from server.engines.cosyvoice.folder import ModelFolder, canonical, modules_of, not_needed, version_of
from server.engines.cosyvoice.hub.fetching import is_complete, wanted
from server.engines.cosyvoice.hub.finding import kept_folder, remote_of, why_offline
from server.engines.cosyvoice.options import Options
from server.engines.cosyvoice.reading import yaml_name
from server.engines.cosyvoice.sections import ModelError
from server.engines.cosyvoice.synthetic import full
from server.engines.cosyvoice.weights import check_shapes, load_state
from server.engines.examining import Examination, check_disk, gigabytes

FETCHED_BYTES: Final = {2: 3_300_000_000, 3: 4_300_000_000}  # of the official models, about
OFFICIAL: Final[dict[str, ModelVersion]] = {
    "FunAudioLLM/CosyVoice2-0.5B": 2,
    "iic/CosyVoice2-0.5B": 2,
    "FunAudioLLM/Fun-CosyVoice3-0.5B-2512": 3,
}


def look_at_model(options: Options, found: Examination) -> ModelConfig | None:
    """The sizes of the model: its folder's, or those that the official ones have, where it is not here yet. None where
    there is none. Raises EngineError, also for a folder that the engine could not load.
    """
    place = Path(options.model).expanduser()
    if not place.is_dir():
        place = kept_folder(options, os.environ)
        if not is_complete(place):
            return _to_fetch(options, place, found)
    folder = ModelFolder.open(place)
    check_checkpoints(folder)
    size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    speakers = "with speakers" if folder.speakers is not None else "without speakers"
    found.fact("model", f"CosyVoice {folder.version}, {speakers}, {gigabytes(size)} in {place}")
    return folder.config


def check_checkpoints(folder: ModelFolder) -> None:
    """That each has the tensors that the engine will ask for. What they hold is not read: fetching compared checksums,
    and loading does. Raises ModelError.
    """
    for part, module in zip(("llm", "flow", "hift"), modules_of(folder.config), strict=True):
        path = folder.path / f"{part}.pt"
        state = load_state(path, sums=False)
        version = version_of(part, state)
        if version not in (None, folder.version):
            raise ModelError(f"{path}: holds weights of CosyVoice {version}, not {folder.version}")
        shapes = {key: value.shape for key, value in canonical(part, state, str(path)).items()}
        check_shapes(module, shapes, str(path), not_needed)


def _to_fetch(options: Options, place: Path, found: Examination) -> ModelConfig | None:
    """A model that is not here yet. The hub is asked about names that are not known alone."""
    name = options.model
    if reason := why_offline(options, os.environ):
        found.fact("model", f"{name} is not here")
        found.problems.append(f"model: {name} is not in {place}, and nothing is fetched: {reason}")
        return full(OFFICIAL[name]) if name in OFFICIAL else None
    version = OFFICIAL.get(name)
    if version is None:
        remote = remote_of(options, os.environ)
        files = wanted(name, remote.where, remote.listing())
        version = 3 if any(file.path == yaml_name(3) for file in files) else 2
        size = sum(file.bytes for file in files)
        found.assumed = f"{name} has the sizes of the official CosyVoice {version}"
        found.advice.append(
            f"{name} is not known here: what it takes is reckoned with the sizes of the official CosyVoice {version}"
        )
    else:
        size = FETCHED_BYTES[version]
    found.fact("model", f"{name} is fetched from {options.hub} at the first start, into {place}")
    check_disk(found, size, place, f"fetching {name}")
    return full(version)
