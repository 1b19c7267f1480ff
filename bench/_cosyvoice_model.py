"""Engines of CosyVoice with weights by chance, and what they are asked to say."""

import json
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final, cast

import numpy as np
import torch
from torch import nn

from server.engines.base import Capabilities, RenderPlan, Segment, Voice
from server.engines.cosyvoice.config import ModelConfig, ModelVersion
from server.engines.cosyvoice.engine import CosyVoiceEngine
from server.engines.cosyvoice.flow.matching import FlowPrompt
from server.engines.cosyvoice.folder import Model
from server.engines.cosyvoice.jobs import CosyVoiceJob
from server.engines.cosyvoice.llm.decoding import Decoder
from server.engines.cosyvoice.llm.jobs import CodeLimits
from server.engines.cosyvoice.llm.slots import SlotCache
from server.engines.cosyvoice.loading import CONTEXT_TOKENS, MAX_TOKENS, Loaded
from server.engines.cosyvoice.shelf import VoiceShelf
from server.engines.cosyvoice.text.prompts import SpokenPrompt, prompt_of
from server.engines.cosyvoice.text.tokenizer import TextTokenizer
from server.engines.cosyvoice.text.wording import estimate_tokens, text_of, wording
from server.engines.cosyvoice.voice.data import VoiceData
from server.engines.cosyvoice.voice.onnx_models import VoiceModels
from server.text.normaliser import normalise
from server.text.tokens import Boundary, Cut, CutCause, Token

VOICE: Final = "by-chance"
PROMPT_CODES: Final = 75  # three seconds, whole blocks of 25: upstream, too, begins with its smallest chunk then
PROMPT_TEXT: Final = "I said this."
TEXT: Final = "We take a walk along the quiet lake before the sun goes down."
LENGTH: Final = 2048
HISTORY_FRAMES: Final = 300  # six seconds, as the engine has it unless told otherwise
_QWEN_MARKS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_FIRST_MARK: Final = 151_643


@dataclass(frozen=True, slots=True, eq=False)
class Speaker:
    """An engine, what it is made of, and its only voice."""

    engine: CosyVoiceEngine
    loaded: Loaded
    voice: VoiceData

    @property
    def config(self) -> ModelConfig:
        """The sizes."""
        return self.loaded.model.config

    @property
    def prompt(self) -> SpokenPrompt:
        """What the language model reads before a text."""
        return prompt_of(self.voice, "", self.loaded.tokenizer)

    @property
    def flow_prompt(self) -> FlowPrompt:
        """What the flow model knows of the voice."""
        return self.loaded.shelf.take(VOICE).prompt

    def text_ids(self, text: str) -> tuple[int, ...]:
        """Text tokens, as `prepare` gets them of the same text."""
        return self.loaded.tokenizer.encode(text_of(wording(_tokens(text), Boundary.SENTENCE)))

    def job(self, codes: int, seed: int = 0, *, text: str = TEXT, chunk_ms: tuple[int, ...] = ()) -> CosyVoiceJob:
        """A segment that becomes exactly so many codes: models without training do not know when to end."""
        segment = Segment(seed, _tokens(text), Boundary.SENTENCE, VOICE)
        job = self.engine.prepare(segment, RenderPlan("stream", chunk_ms), seed)
        assert job.work is not None
        job.work.limits = CodeLimits(least_per_token=codes, most_per_token=codes, most=codes)
        return job


def make_speaker(model: Model, *, batch: int, device: torch.device | None = None) -> Speaker:
    """The engine as `loading.load` makes it of a folder, less the files. The model is laid out for computing: whoever
    wants its weights takes them before. It must be on `device` already.
    """
    config = model.config
    device = device or torch.device("cpu")
    tokenizer = _tokenizer(config.version)
    slots = SlotCache(config.llm, batch, LENGTH, device, model.lm.dtype)
    voice = voice_by_chance(config)
    shelf = VoiceShelf(model.flow, {VOICE: voice}, _no_voice, history=HISTORY_FRAMES, max_bytes=2**31)
    capabilities = Capabilities(
        name="cosyvoice",
        languages=("zh", "en"),
        sample_rate=config.sample_rate,
        voices=(Voice(VOICE, VOICE, ("zh", "en"), "noise", "none"),),
        max_tokens=MAX_TOKENS,
        count_tokens=estimate_tokens,
        fingerprint=f"by chance {config.version}",
        parameters=frozenset({"seed"}),
        batch_max=batch,
        context_tokens=CONTEXT_TOKENS,
        lanes=1,
        continuous=True,
    )
    no_models = cast(VoiceModels, None)  # nothing is learnt here
    decoder = Decoder(model.lm, slots, config.sampling)
    loaded = Loaded(model, decoder, tokenizer, shelf, no_models, device, capabilities)
    return Speaker(CosyVoiceEngine(loaded), loaded, voice)


def voice_by_chance(config: ModelConfig) -> VoiceData:
    """A voice of a recording of three seconds."""
    chances = np.random.default_rng(9)
    codes = tuple(int(code) for code in chances.integers(0, config.llm.codes, PROMPT_CODES))
    mel = chances.standard_normal((2 * PROMPT_CODES, 80)).astype(np.float32)
    return VoiceData(PROMPT_TEXT, codes, mel, chances.standard_normal(192).astype(np.float32))


def sizes(model: Model) -> str:
    """One line."""
    llm, flow, vocoder = model.config.llm, model.config.flow, model.config.vocoder
    parts = [f"LLM {llm.layers} layers x {llm.hidden} (FFN {llm.ffn}, text vocabulary {llm.vocab:,})"]
    if flow.unet is not None and flow.encoder is not None:
        encoder, unet = flow.encoder, flow.unet
        parts.append(f"flow conformer {encoder.blocks} + {encoder.up_blocks} x {encoder.dim} (FFN {encoder.ffn})")
        parts.append(f"UNet {unet.channels[0]} channels, {unet.mid_blocks} middle blocks, {unet.heads} heads")
    elif flow.dit is not None:
        parts.append(f"flow DiT {flow.dit.depth} layers x {flow.dit.dim}, {flow.dit.heads} heads")
    parts.append(f"HiFT {vocoder.base_channels} channels")
    flow_size, vocoder_size = _millions(model.flow), _millions(model.vocoder.network)
    parts.append(f"weights of flow and HiFT {flow_size:.1f} M and {vocoder_size:.1f} M")
    return f"CosyVoice {model.config.version}: " + ", ".join(parts)


def tame(model: Model) -> Model:
    """Make CosyVoice 3's layers add less, as those of trained models do: with gates as large as chance makes them, what
    differs in the last bit ends up far apart, and nothing can be compared. Costs nothing and changes no time.
    """
    with torch.inference_mode():
        for key, value in model.flow.state_dict().items():
            if key.endswith("attn_norm.linear.weight"):
                value.mul_(0.1)
    return model


def _millions(module: nn.Module) -> float:
    return float(sum(value.numel() for value in module.state_dict().values())) / 1e6


def _tokens(text: str) -> tuple[Token, ...]:
    return normalise(Cut(0, len(text), text, Boundary.SENTENCE, CutCause.END, "en"))


@lru_cache(maxsize=2)
def _tokenizer(version: ModelVersion) -> TextTokenizer:
    """One that knows bytes alone, and the marks at their official numbers."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(256) if byte not in printable]
        symbols = [*map(chr, printable), *(chr(256 + number) for number in range(len(others)))]
        known = {symbol: number for number, symbol in enumerate(symbols)}
        known |= {mark: _FIRST_MARK + number for number, mark in enumerate(_QWEN_MARKS)}
        (folder / "vocab.json").write_text(json.dumps(known, ensure_ascii=False), encoding="utf-8")
        (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
        marks = {str(known[mark]): {"content": mark, "special": True} for mark in _QWEN_MARKS}
        told = {"added_tokens_decoder": marks}
        (folder / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
        return TextTokenizer(folder, version)


def _no_voice(_: bytes) -> VoiceData:
    raise ValueError("no voice is learnt here")
