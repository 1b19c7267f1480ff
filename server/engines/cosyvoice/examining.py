"""What `python -m server doctor` looks at for this engine: packages, device, folder, and how much fits."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from server.engines.cosyvoice.options import Options, parse_options
from server.engines.examining import Examination, check_disk, check_packages, free_memory, gigabytes

if TYPE_CHECKING:
    import torch

    from server.engines.cosyvoice.config import ModelConfig, ModelVersion
    from server.engines.cosyvoice.fitting import Needs

FETCHED_BYTES: Final = {2: 3_300_000_000, 3: 4_300_000_000}  # about; the hub tells when it is asked
MOST_BATCH: Final = 256  # see `parse_options`
_MIB: Final = 1024 * 1024


def examine(given: Mapping[str, Any], found: Examination) -> None:
    """Raises ValueError for options that are wrong, EngineError for a device or a folder that is none."""
    options = parse_options(given)
    if not check_packages(found, "cosyvoice"):
        return
    from server.engines.cosyvoice.loading import BATCH, device_of, precision_of, voice_cache_bytes

    device = device_of(options)
    precision = options.precision if options.precision != "auto" else precision_of(device)
    if options.quantise == "int8" and (device.type != "cpu" or precision != "fp32"):
        found.problems.append("engine option quantise: int8 needs the CPU and precision fp32")
    config = _model(options, found)
    from server.engines.cosyvoice.fitting import needs_of

    needs = needs_of(
        config,
        device=device.type,
        precision=precision,
        quantise=options.quantise,
        length=options.length,
        history_s=options.history_s,
    )
    _weigh(
        found,
        needs,
        memory=_memory(device, found),
        batch=options.batch or BATCH[device.type],
        precision=precision,
        voice_cache=voice_cache_bytes(options, device),
        on_gpu=device.type == "cuda",
    )


def _memory(device: "torch.device", found: Examination) -> int:
    """Free bytes of the device."""
    import torch

    if device.type == "cpu":
        found.fact("device", f"cpu ({torch.backends.cpu.get_cpu_capability()}), torch {torch.__version__}")
        found.advice.append("a CPU is too slow for live speech with a full-size model; it is enough to try it")
        return free_memory()
    free, total = torch.cuda.mem_get_info(device)
    name = torch.cuda.get_device_name(device)
    found.fact("device", f"{name}, {gigabytes(free)} free of {gigabytes(total)}, torch {torch.__version__}")
    return free


def _model(options: Options, found: Examination) -> "ModelConfig":
    """The sizes of the model: its folder's, or those that the official ones have, where it is not here yet."""
    from server.engines.cosyvoice.folder import ModelFolder
    from server.engines.cosyvoice.hub.fetching import is_complete
    from server.engines.cosyvoice.hub.finding import kept_folder, why_offline
    from server.engines.cosyvoice.synthetic import full

    place = Path(options.model).expanduser()
    if not place.is_dir():
        place = kept_folder(options, os.environ)
        if not is_complete(place):
            version: ModelVersion = 3 if re.search(r"cosyvoice-?3", options.model, re.IGNORECASE) else 2
            found.fact("model", f"{options.model} is fetched from {options.hub} at the first start, into {place}")
            if reason := why_offline(options, os.environ):
                found.problems.append(f"model: {options.model} is not in {place}, and nothing is fetched: {reason}")
            check_disk(found, FETCHED_BYTES[version], place, f"fetching {options.model}")
            return full(version)
    folder = ModelFolder.open(place)
    size = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    speakers = "with speakers" if folder.speakers is not None else "without speakers"
    found.fact("model", f"CosyVoice {folder.version}, {speakers}, {gigabytes(size)} in {place}")
    return folder.config


def _weigh(
    found: Examination, needs: "Needs", *, memory: int, batch: int, precision: str, voice_cache: int, on_gpu: bool
) -> None:
    from server.engines.cosyvoice.fitting import PROMPT_S

    parts = needs.weights
    found.fact(
        "weights",
        f"{gigabytes(parts.all)} in {precision}: language model {gigabytes(parts.lm)}, flow"
        f" {gigabytes(parts.flow + parts.layouts)}, vocoder {gigabytes(parts.vocoder)} (always fp32)",
    )
    found.fact(
        "a segment", f"{gigabytes(needs.slot)} in the language model, up to {gigabytes(needs.segment)} in the flow"
    )
    found.fact("flow cache", f"{gigabytes(needs.second)} for a second of sound")
    found.fact("a voice", f"{gigabytes(needs.voice)} kept of a recording of {PROMPT_S} s")
    if not memory:
        found.advice.append("nothing tells how much memory is free")
        return
    voices = voice_cache // needs.voice
    fits = needs.fitting(memory, voice_cache)
    found.fact("voices", f"{voices} of {PROMPT_S} s are kept in {gigabytes(voice_cache)} (voice_cache_mb)")
    found.fact("sessions", f"{fits} segments fit beside each other, {batch} are wanted (batch); more take turns")
    if voices < 1:
        least = -(-needs.voice // _MIB)
        found.advice.append(f"voice_cache_mb={least} would keep a voice of {PROMPT_S} s while others speak")
    one = needs.fixed + needs.slot + needs.segment
    if memory < one:
        lesser = "quantise=int8 or a smaller history_s" if precision == "fp32" else "a smaller history_s or length"
        found.problems.append(
            f"memory: a single segment takes {gigabytes(one)}, and {gigabytes(memory)} are free: try {lesser}"
        )
    elif fits < batch:
        without = needs.fitting(memory, 0)
        told = f"batch={fits}" if fits else f"batch={min(batch, without)} with a smaller voice_cache_mb"
        found.problems.append(
            f"memory: {batch} segments at once take"
            f" {gigabytes(needs.fixed + voice_cache + batch * (needs.slot + needs.segment))}, and {gigabytes(memory)}"
            f" are free: set {told}, or a smaller history_s"
        )
    elif fits > batch and on_gpu:
        found.advice.append(f"batch may be up to {min(fits, MOST_BATCH)}")
