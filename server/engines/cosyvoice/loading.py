"""Everything that an engine stands on, loaded in one go: model, tokenizer, voices, and where they compute."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import torch

from server.engines.base import Capabilities, EngineError, Voice
from server.engines.cosyvoice.folder import Model, ModelFolder, load_model
from server.engines.cosyvoice.llm.decoding import Decoder
from server.engines.cosyvoice.llm.slots import SlotCache
from server.engines.cosyvoice.options import Options
from server.engines.cosyvoice.sections import ModelError
from server.engines.cosyvoice.shelf import VoiceShelf
from server.engines.cosyvoice.standard_voice import STANDARD_VOICE, standard_recording
from server.engines.cosyvoice.text.tokenizer import TextTokenizer
from server.engines.cosyvoice.text.wording import estimate_tokens
from server.engines.cosyvoice.voice.data import VoiceData
from server.engines.cosyvoice.voice.learning import learn_voice
from server.engines.cosyvoice.voice.onnx_models import VoiceModels
from server.engines.cosyvoice.voice.recording import read_recording
from server.engines.cosyvoice.voice.speakers import read_speakers
from server.engines.cosyvoice.voice.storing import from_bytes, to_bytes

MAX_TOKENS: Final = 160  # text tokens of a segment: some 30 s of speech
CONTEXT_TOKENS: Final = 16
BATCH: Final = {"cpu": 4, "cuda": 16}
SLOTS_PER_SEGMENT: Final = {"cpu": 2, "cuda": 4}
"""Slots of the language model for each segment of a batch: those that take turns need not be copied to and fro."""
_TAIL_BYTES: Final = 1024 * 1024
_MIB: Final = 1024 * 1024
_PRECISIONS: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """See the module text."""

    model: Model
    decoder: Decoder
    tokenizer: TextTokenizer
    shelf: VoiceShelf
    voice_models: VoiceModels
    device: torch.device
    capabilities: Capabilities
    stream_bytes: int = 4 << 30  # that the flow's states of streamed segments may take

    def learn(self, recording: bytes, text: str) -> bytes:
        """A voice learnt of a sound file. Raises ValueError, one line for whoever sent it."""
        data = learn_voice(read_recording(recording), text, self.voice_models, self.model.config)
        return to_bytes(data, self.model.config.version, self.voice_models.fingerprint)


def load(options: Options, folder: Path) -> Loaded:
    """Load the model in `folder`. Raises EngineError (ModelError: it names the file), OptionError."""
    device = device_of(options)
    place = ModelFolder.open(folder)
    if device.type == "cpu":
        torch.set_num_threads(options.threads or len(os.sched_getaffinity(0)))
    dtype = _PRECISIONS[options.precision if options.precision != "auto" else precision_of(device)]
    model = load_model(place, device, dtype)
    if options.quantise == "int8":
        from server.engines.cosyvoice.llm.quantise import prepare_int8

        prepare_int8(model.lm)
    tokenizer = TextTokenizer(place.body, place.version)
    if tokenizer.largest_id >= model.config.llm.vocab:
        raise ModelError(
            f"{place.body}: the tokenizer has ids up to {tokenizer.largest_id}, the language model knows"
            f" {model.config.llm.vocab}: are files of two models mixed?"
        )
    batch = options.batch or BATCH[device.type]
    slots = SlotCache(model.config.llm, slots_of(batch, device), options.length, device, dtype)
    decoder = Decoder(model.lm, slots, model.config.sampling)
    models = VoiceModels(folder, place.version, model.config.llm.codes)
    built_in = read_speakers(place.speakers, tokenizer, model.config.llm.codes) if place.speakers is not None else {}
    if not built_in:
        recording, text = standard_recording()
        built_in = {STANDARD_VOICE.id: learn_voice(read_recording(recording), text, models, model.config)}
    shelf = VoiceShelf(
        model.flow,
        built_in,
        lambda data: from_bytes(data, place.version, models.fingerprint),
        history=round(50 * options.history_s) or None,
        max_bytes=voice_cache_bytes(options, device),
    )
    capabilities = Capabilities(
        name="cosyvoice",
        languages=("zh", "en"),
        sample_rate=model.config.sample_rate,
        voices=tuple(_voice(name, data, place.version) for name, data in built_in.items()),
        max_tokens=MAX_TOKENS,
        count_tokens=estimate_tokens,
        fingerprint=_fingerprint(place, options, device, dtype, (tokenizer.fingerprint, models.fingerprint)),
        parameters=frozenset({"speed", "instruct", "seed"}),
        cloning=True,
        batch_max=batch,
        context_tokens=CONTEXT_TOKENS,
        device_memory=torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0,
        lanes=1,
        continuous=True,
        markup=tokenizer.markup,
        voice_kind=f"cosyvoice{place.version}-{models.fingerprint[:12]}",
    )
    stream_bytes = stream_memory_bytes(options, device)
    return Loaded(model, decoder, tokenizer, shelf, models, device, capabilities, stream_bytes)


def device_of(options: Options) -> torch.device:
    """Where to compute. Raises EngineError."""
    there = torch.cuda.is_available()
    if options.device == "cuda" and not there:
        raise EngineError("engine option device is cuda, but torch finds no CUDA device here")
    return torch.device("cuda" if options.device == "cuda" or (options.device == "auto" and there) else "cpu")


def precision_of(device: torch.device) -> str:
    """What to compute in where nothing else was asked for."""
    return "bf16" if device.type == "cuda" else "fp32"


def voice_cache_bytes(options: Options, device: torch.device) -> int:
    """How much may be kept for voices: an eighth of the device's memory, at least 1 GiB on a CPU."""
    if options.voice_cache_mb:
        return options.voice_cache_mb * _MIB
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory) // 8
    return max(_main_memory() // 8, 1024 * _MIB)


def stream_memory_bytes(options: Options, device: torch.device) -> int:
    """How much the states of streamed segments may take. By default three quarters of what a GPU has left when the
    model is loaded and the cache of voices is full, or a quarter of main memory; at least 1 GiB.
    """
    if options.stream_memory_mb:
        return options.stream_memory_mb * _MIB
    if device.type == "cuda":
        left = int(torch.cuda.mem_get_info(device)[0]) - voice_cache_bytes(options, device)
        return max(3 * left // 4, 1024 * _MIB)
    return max(_main_memory() // 4, 1024 * _MIB)


def slots_of(batch: int, device: torch.device) -> int:
    """How many segments keep their place in the language model."""
    return batch * SLOTS_PER_SEGMENT[device.type]


def _main_memory() -> int:
    """Bytes, also by the limit of a container; 0 where nothing tells."""
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0
    try:
        return min(there, int(Path("/sys/fs/cgroup/memory.max").read_text("ascii")))
    except (OSError, ValueError):  # no container, or no limit
        return there


def _voice(name: str, data: VoiceData, version: int) -> Voice:
    if name == STANDARD_VOICE.id:
        return STANDARD_VOICE
    kind, lacks = ("a voice of a recording", ()) if data.codes else ("a trained speaker", ("instruct",))
    return Voice(
        name, name, ("zh", "en"), f"{kind}, came with the model", f"that of the CosyVoice {version} model", lacks=lacks
    )


def _fingerprint(
    folder: ModelFolder, options: Options, device: torch.device, dtype: torch.dtype, others: Sequence[str]
) -> str:
    """All that may change a sample; `others`: fingerprints of other files. Of a checkpoint, and of the speakers: its
    length and its end, which lists a CRC of every tensor.
    """
    digest = sha256()
    files = [folder.path / f"{part}.pt" for part in ("llm", "flow", "hift")]
    for path in files if folder.speakers is None else (*files, folder.speakers):
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            digest.update(f"{path.name} {size} ".encode() + file.read())
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    parts = (folder.config, options.quantise, options.length, options.history_s, dtype, kind, *others)
    digest.update(f"{torch.__version__} {parts}".encode())
    return f"cosyvoice{folder.version}-{digest.hexdigest()[:16]}"
