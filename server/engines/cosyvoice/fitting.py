"""How many bytes a model takes, by its sizes alone: weights, what a segment holds, what is kept of a voice.

The formulas follow the tensors that are really made; tests compare them. Nothing is allocated here.
"""

from dataclasses import dataclass
from typing import Final

from server.engines.cosyvoice.config import FlowConfig, LlmConfig, ModelConfig
from server.engines.cosyvoice.flow.dit import POSITION_KERNEL
from server.engines.cosyvoice.flow.unet import KERNEL
from server.engines.cosyvoice.folder import modules_of
from server.engines.cosyvoice.loading import SLOTS_PER_SEGMENT

ITEM_BYTES: Final = {"fp32": 4, "bf16": 2, "fp16": 2}
CODES_PER_SECOND: Final = 25
LARGEST_HOP: Final = 50  # codes
PROMPT_S: Final = 10  # of the voice that is reckoned with
RESERVE_BYTES: Final = {"cpu": 1 << 30, "cuda": 3 << 29}
"""For what is not counted: libraries, the vocoder's samples, intermediate results. An estimate."""
_ROWS: Final = 2  # of guidance: with the voice and without
_KV: Final = 2  # keys and values


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes of the loaded modules. `layouts` are the copies that are laid out for computing, besides the originals."""

    lm: int
    flow: int
    vocoder: int
    layouts: int

    @property
    def all(self) -> int:
        """Together."""
        return self.lm + self.flow + self.vocoder + self.layouts


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model takes on a device, in bytes."""

    weights: Weights
    slot: int  # of the slots that there are for each segment of a batch; all are allocated at the start
    segment: int  # that a segment's flow holds at most, while it is streamed
    second: int  # of the flow's cache, for a second of sound in it
    voice: int  # kept of a voice whose recording has `PROMPT_S`
    reserve: int

    @property
    def fixed(self) -> int:
        """What is taken before anybody speaks, without slots and voices."""
        return self.weights.all + self.reserve

    def fitting(self, memory: int, voice_cache: int) -> int:
        """How many segments fit beside each other into so many bytes, with so many kept for voices."""
        return max(0, (memory - self.fixed - voice_cache) // (self.slot + self.segment))


def needs_of(
    config: ModelConfig, *, device: str, precision: str, quantise: str, length: int, history_s: float
) -> Needs:
    """`device` is `cpu` or `cuda`, `precision` a key of `ITEM_BYTES`; the others are the engine's options."""
    item = ITEM_BYTES[precision]
    prompt = PROMPT_S * CODES_PER_SECOND
    history = round(2 * CODES_PER_SECOND * history_s) or None
    return Needs(
        weights=weight_bytes(config, device=device, item=item, quantise=quantise),
        slot=SLOTS_PER_SEGMENT[device] * slot_bytes(config.llm, length, item),
        segment=segment_bytes(config.flow, item, history, prompt),
        second=CODES_PER_SECOND * flow_code_bytes(config.flow, item),
        voice=prefix_bytes(config.flow, item, prompt),
        reserve=RESERVE_BYTES[device],
    )


def weight_bytes(config: ModelConfig, *, device: str, item: int, quantise: str = "none") -> Weights:
    """Of all modules; the vocoder is always in fp32."""
    lm, flow, hift = (sum(tensor.numel() for tensor in module.state_dict().values()) for module in modules_of(config))
    body = llm_body_weights(config.llm)
    saved = body * (item - 1) if quantise == "int8" else 0
    return Weights(lm * item - saved, flow * item, 4 * hift, item * _laid_out(config.flow, device))


def llm_body_weights(config: LlmConfig) -> int:
    """Numbers in the matrices of the layers."""
    attention = config.hidden * config.head_dim * 2 * (config.heads + config.kv_heads)
    return config.layers * (attention + 3 * config.hidden * config.ffn)


def slot_bytes(config: LlmConfig, length: int, item: int) -> int:
    """Of one slot of a `SlotCache`, which has one position more than can be used."""
    return config.layers * (length + 1) * _KV * config.kv_heads * config.head_dim * item


def flow_code_bytes(config: FlowConfig, item: int) -> int:
    """That the flow's caches hold for a code: keys and values of its frames, in each step of the solver."""
    frames = config.frames_per_code
    return item * (frames * _estimator_numbers(config) + _encoder_numbers(config, 1, frames))


def prefix_bytes(config: FlowConfig, item: int, prompt_codes: int) -> int:
    """Of a `FlowPrefix`: what is kept of a voice with so many codes."""
    known = max(0, prompt_codes - config.lookahead)
    return known * flow_code_bytes(config, item) + (_tails(config) * item if known else 0)


def segment_bytes(config: FlowConfig, item: int, history: int | None, prompt_codes: int) -> int:
    """That a `FlowState` holds at most, besides its prefix. `history` in frames; None: all, of half a minute."""
    frames = config.frames_per_code
    block = frames * config.block
    if history is None:
        codes = 30 * CODES_PER_SECOND + LARGEST_HOP
        held = 3 * frames * codes // 2  # grown by half
        encoder = _encoder_numbers(config, 3 * codes // 2 + prompt_codes, held + frames * prompt_codes)
        return item * (held * _estimator_numbers(config) + encoder + _tails(config))
    # The encoder has its prefix once more, its history twice (moved to the front now and then), and what comes.
    codes = prompt_codes + 2 * (history // frames) + LARGEST_HOP
    encoder = _encoder_numbers(config, codes, frames * codes)
    return item * ((history + block) * _estimator_numbers(config) + encoder + _tails(config))


def _estimator_numbers(config: FlowConfig) -> int:
    """Keys and values of a frame, in all steps."""
    if config.dit is not None:
        layers, width = config.dit.depth, config.dit.heads * config.dit.head_dim
    else:
        assert config.unet is not None  # by the version
        layers = (config.unet.mid_blocks + 2) * config.unet.blocks
        width = config.unet.heads * config.unet.head_dim
    return config.steps * layers * _KV * _ROWS * width


def _encoder_numbers(config: FlowConfig, codes: int, frames: int) -> int:
    """Keys and values of the encoder of version 2, which has layers at both rates."""
    if config.encoder is None:
        return 0
    return _KV * config.encoder.dim * (config.encoder.blocks * codes + config.encoder.up_blocks * frames)


def _tails(config: FlowConfig) -> int:
    """Numbers in the ends of convolutions' inputs."""
    if config.dit is not None:
        return 2 * config.dit.lookahead_channels + config.steps * _ROWS * 2 * config.dit.dim * (POSITION_KERNEL - 1)
    assert config.unet is not None  # by the version
    assert config.encoder is not None
    channels = config.unet.channels[-1]
    inputs = 4 * config.mels + (7 + 2 * config.unet.mid_blocks) * channels
    encoder = config.encoder.dim * (2 + 2 * config.frames_per_code)
    return encoder + config.steps * _ROWS * (KERNEL - 1) * inputs


def _laid_out(config: FlowConfig, device: str) -> int:
    """Numbers in copies of the estimator's weights: of all large ones where a CPU packs them, else of those joined."""
    if config.dit is None:
        return 0
    dit = config.dit
    joined = 3 * dit.dim * dit.heads * dit.head_dim
    rest = dit.dim * dit.heads * dit.head_dim + 2 * dit.ff_mult * dit.dim * dit.dim
    return dit.depth * (joined + (rest if device == "cpu" else 0))
