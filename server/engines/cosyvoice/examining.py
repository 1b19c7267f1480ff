"""What `python -m server doctor` looks at for this engine: packages, device, folder, and how much fits."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from server.engines.base import EngineError
from server.engines.cosyvoice.options import parse_options
from server.engines.cosyvoice.starting import place_of
from server.engines.examining import Examination, check_packages, free_memory, gigabytes

if TYPE_CHECKING:
    import torch

    from server.engines.cosyvoice.fitting import Needs

LARGE_BYTES: Final = 1_000_000_000  # of weights: more than two cores can speak live with
MOST_BATCH: Final = 256  # see `parse_options`
_MIB: Final = 1024 * 1024


def examine(given: Mapping[str, Any], found: Examination) -> None:
    """Raises ValueError for options that are wrong, EngineError for a device or a folder that is none."""
    options = parse_options(given)
    if not check_packages(found, "cosyvoice", ("onnxruntime",)):
        return
    from server.engines.cosyvoice.examining_model import look_at_model
    from server.engines.cosyvoice.loading import BATCH, device_of, precision_of, voice_cache_bytes

    device = device_of(options)
    precision = options.precision if options.precision != "auto" else precision_of(device)
    try:
        place_of(options)
    except EngineError as error:
        found.problems.append(str(error))
    config = look_at_model(options, found)
    if config is None:
        return
    from server.engines.cosyvoice.fitting import needs_of

    needs = needs_of(
        config,
        device=device.type,
        precision=precision,
        quantise=options.quantise,
        length=options.length,
        history_s=options.history_s,
    )
    if device.type == "cpu" and needs.weights.all > LARGE_BYTES:
        found.advice.append("a CPU is too slow for live speech with a model of this size; it is enough to try it")
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
        return free_memory()
    free, total = torch.cuda.mem_get_info(device)
    name = torch.cuda.get_device_name(device)
    found.fact("device", f"{name}, {gigabytes(free)} free of {gigabytes(total)}, torch {torch.__version__}")
    return free


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
    kept = f"up to {voices}" if voices else f"none (one takes {gigabytes(needs.voice)})"
    found.fact("voices", f"{kept} of {PROMPT_S} s are kept in {gigabytes(voice_cache)} (voice_cache_mb)")
    found.fact(
        "sessions",
        f"{fits} segments fit into memory beside each other; a step takes up to {batch} (batch), further ones take"
        " turns",
    )
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
