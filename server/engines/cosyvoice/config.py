"""The shapes of a CosyVoice model, as plain values. Pure."""

from dataclasses import dataclass
from typing import Literal

ModelVersion = Literal[2, 3]


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """Repetition-aware sampling (VALL-E 2): nucleus sampling, and a draw from all where the code came lately."""

    top_p: float = 0.8
    top_k: int = 25
    window: int = 10  # codes that are looked back at
    repeat_share: float = 0.1  # of the window that makes a code a repetition


@dataclass(frozen=True, slots=True)
class LlmConfig:
    """The Qwen2 body and the speech head. `codes` is the number of speech codes (6,561); ids above are marks."""

    version: ModelVersion
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int  # rows of the text embedding
    codes: int
    rope_theta: float = 1_000_000.0
    norm_eps: float = 1e-6
    text_share: int = 5  # text tokens, then ...
    code_share: int = 15  # ... speech codes, in turn, while text still comes

    @property
    def head_dim(self) -> int:
        """Of one attention head."""
        return self.hidden // self.heads

    @property
    def rows(self) -> int:
        """Of the speech head and the speech embedding."""
        return self.codes + (3 if self.version == 2 else 200)

    @property
    def end(self) -> int:
        """The code that ends an utterance."""
        return self.codes if self.version == 2 else self.codes + 1

    @property
    def fill(self) -> int:
        """The code that asks for more text."""
        return self.codes + (2 if self.version == 2 else 3)


@dataclass(frozen=True, slots=True)
class ConformerConfig:
    """CosyVoice 2's encoder of codes."""

    dim: int  # 512 in every model: input, output and look-ahead layer share it
    heads: int
    ffn: int
    blocks: int
    up_blocks: int = 4


@dataclass(frozen=True, slots=True)
class UNetConfig:
    """CosyVoice 2's estimator: a causal convolution and transformer network."""

    channels: tuple[int, ...]
    heads: int
    head_dim: int
    blocks: int  # transformer blocks of each level
    mid_blocks: int


@dataclass(frozen=True, slots=True)
class DitConfig:
    """CosyVoice 3's estimator: a diffusion transformer."""

    dim: int
    depth: int
    heads: int
    head_dim: int
    ff_mult: int
    lookahead_channels: int  # of the layer before it


@dataclass(frozen=True, slots=True)
class FlowConfig:
    """From codes to mel. Exactly one of (`encoder`, `unet`) and `dit` is there, by version."""

    version: ModelVersion
    codes: int
    input_size: int
    speaker_size: int = 192
    mels: int = 80
    lookahead: int = 3  # codes that the encoder looks ahead
    block: int = 25  # codes that see each other in streaming
    frames_per_code: int = 2
    guidance: float = 0.7
    steps: int = 10
    encoder: ConformerConfig | None = None
    unet: UNetConfig | None = None
    dit: DitConfig | None = None


@dataclass(frozen=True, slots=True)
class VocoderConfig:
    """From mel to samples."""

    version: ModelVersion
    base_channels: int
    upsample_rates: tuple[int, ...]
    upsample_kernels: tuple[int, ...]
    kernels: tuple[int, ...]  # of the residual blocks of a level
    dilations: tuple[tuple[int, ...], ...]
    source_kernels: tuple[int, ...]
    source_dilations: tuple[tuple[int, ...], ...]
    f0_channels: int
    mels: int = 80
    sample_rate: int = 24_000
    harmonics: int = 8
    sine_level: float = 0.1
    noise_level: float = 0.003
    voiced_above: float = 10.0  # Hz
    n_fft: int = 16
    hop: int = 4
    slope: float = 0.1  # of the leaky rectifiers
    limit: float = 0.99  # of a sample
    lookahead: int = 4  # frames; version 3 only


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A whole model."""

    version: ModelVersion
    llm: LlmConfig
    flow: FlowConfig
    vocoder: VocoderConfig
    sampling: SamplingConfig = SamplingConfig()
    sample_rate: int = 24_000
    mel_top_hz: float | None = None  # where the highest mel bin ends; None: at half the rate
