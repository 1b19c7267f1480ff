"""Models without trained weights: sizes for tests and benchmarks, weights by chance, and weights by a rule.

The rule makes every weight of its name alone, so that two programs can compare what they compute without passing
weights on: the vectors of `parity.py` were made so.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from server.engines.cosyvoice.config import (
    ConformerConfig,
    DitConfig,
    FlowConfig,
    LlmConfig,
    ModelConfig,
    ModelVersion,
    UNetConfig,
    VocoderConfig,
)
from server.engines.cosyvoice.folder import Model, modules_of
from server.engines.cosyvoice.reading import BodySizes
from server.engines.cosyvoice.sections import ModelError
from server.engines.cosyvoice.vocoder.streaming import Vocoder

PARTS: Final = ("llm", "flow", "hift")
_ROTARY_BASE: Final = 10_000.0
_EMBEDDING: Final = "llm.model.model.embed_tokens.weight"
_HEAD: Final = "llm.model.lm_head.weight"

_POOL: Final = 1_000_003  # a prime, so that no rows of a matrix are alike
_DILATIONS: Final = ((1, 3, 5),) * 3


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a manifest."""

    shape: tuple[int, ...]
    floating: bool = True


Manifest = dict[str, dict[str, Entry]]
"""The tensors of each part (`llm`, `flow`, `hift`) by name."""


def read_manifest(path: Path) -> Manifest:
    """A JSON object `{part: {key: [shape, dtype]}}`. Raises ModelError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {
            part: {
                key: Entry(tuple(int(size) for size in shape), "float" in str(dtype))
                for key, (shape, dtype) in found[part].items()
            }
            for part in PARTS
        }
    except OSError as problem:
        raise ModelError(f"{path}: cannot be read: {problem.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ModelError(f"{path}: must be {{part: {{key: [shape, dtype]}}}} for {', '.join(PARTS)}") from None


def body_sizes(manifest: Manifest, heads: int = 4, rope_theta: float = 10_000.0) -> BodySizes:
    """Of the LLM's body, out of the shapes. These tell neither how many heads there are nor the base of the rotary
    positions: the reference vectors were made with what is assumed here, Qwen2's default base. Raises ModelError.
    """
    shapes = {key: entry.shape for key, entry in manifest["llm"].items()}
    try:
        vocab, hidden = shapes[_EMBEDDING]
        first = "llm.model.model.layers.0."
        queries, keys = (shapes[f"{first}self_attn.{name}_proj.weight"][0] for name in "qk")
        ffn = shapes[f"{first}mlp.gate_proj.weight"][0]
    except (KeyError, ValueError, IndexError):
        raise ModelError("the manifest's llm part has no Qwen2 body") from None
    layers = len({key.split(".")[4] for key in shapes if key.startswith("llm.model.model.layers.")})
    shared = queries // keys  # queries that share a key
    heads = heads if heads % shared == 0 else 2 * shared
    return BodySizes(hidden, layers, heads, heads // shared, ffn, vocab, rope_theta)


def state_by_rule(part: str, entries: Mapping[str, Entry], tag: str = "") -> dict[str, Tensor]:
    """Every tensor of a part, float32 (int64 zeros where it is no floating one). `tag` comes before the part's name."""
    state = {
        key: torch.from_numpy(_by_rule(f"{tag}{part}.{key}", key, entry.shape))
        if entry.floating
        else torch.zeros(entry.shape, dtype=torch.int64)
        for key, entry in entries.items()
        if key != _HEAD
    }
    if _HEAD in entries:
        state[_HEAD] = state[_EMBEDDING]
    return state


def _by_rule(name: str, key: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    last = key.rpartition(".")[2]
    if last == "inv_freq":  # computed, not trained
        exponents = torch.arange(0, 2 * shape[0], 2).float() / (2 * shape[0])
        return (1.0 / _ROTARY_BASE**exponents).numpy()
    n = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, dtype=np.float32)
    return np.asarray(_from_normal(n, key, last, shape), dtype=np.float32)


def _from_normal(n: npt.NDArray[np.float32], key: str, last: str, shape: tuple[int, ...]) -> npt.NDArray[np.floating]:
    if last in ("original0", "alpha"):
        return 1.0 + 0.1 * np.abs(n)
    if last.startswith("pos_bias"):
        return 0.05 * n
    if last == "weight" and len(shape) == 2 and "embed" in key and shape[0] >= 100:
        return 0.5 * n
    if len(shape) >= 2:
        return n / np.float32(np.sqrt(prod(shape[1:])))
    if last == "bias":
        return 0.05 * n
    return 1.0 + 0.1 * n if last == "weight" else 0.1 * n


def fill_randomly(module: nn.Module, seed: int) -> None:
    """Give a module's tensors values of sensible sizes, quickly; weight norms are taken as folded. Computed buffers
    (`inv_freq`) stay.
    """
    generator = torch.Generator().manual_seed(seed)
    pool = torch.empty(_POOL).normal_(generator=generator)
    with torch.inference_mode():
        for key, value in module.state_dict().items():
            last = key.rpartition(".")[2]
            if not value.is_floating_point() or last == "inv_freq":
                continue
            # Drawing half a billion numbers takes too long: those of the pool are used again, from some place on.
            first = int(torch.randint(_POOL, (1,), generator=generator))
            fits = first + value.numel() <= _POOL
            noise = pool[first : first + value.numel()] if fits else pool.roll(-first)
            if last == "alpha":
                noise = 1.0 + 0.1 * noise.abs()
            elif value.dim() >= 2 and "embed" in key and value.shape[0] >= 100 and value.dim() == 2:
                noise = noise * 0.5
            elif value.dim() >= 2:
                noise = noise / prod(value.shape[1:]) ** 0.5
            else:
                noise = 1.0 + 0.1 * noise if last == "weight" else 0.05 * noise
            flat = value.view(-1)
            for start in range(0, len(flat), _POOL):
                flat[start : start + _POOL] = noise[: len(flat) - start]


def random_model(config: ModelConfig, seed: int = 0) -> Model:
    """A model with weights by chance: full-size ones take seconds."""
    lm, flow, hift = modules_of(config)
    for number, module in enumerate((lm, flow, hift)):
        fill_randomly(module, 3 * seed + number)
    return Model(config, lm, flow, Vocoder(hift))


def tiny(version: ModelVersion) -> ModelConfig:
    """The sizes of the reference vectors: 256 codes, a few hundred thousand weights. For tests."""
    return _model(
        version,
        llm=LlmConfig(
            version,
            hidden=64 if version == 2 else 16,
            layers=2,
            heads=4,
            kv_heads=2,
            ffn=128 if version == 2 else 32,
            vocab=512 if version == 2 else 151_936,
            codes=256,
            rope_theta=10_000.0,
        ),
        encoder=ConformerConfig(dim=512, heads=2, ffn=32, blocks=2),
        unet=UNetConfig(channels=(32,), heads=2, head_dim=8, blocks=1, mid_blocks=2),
        dit=DitConfig(dim=64, depth=2, heads=2, head_dim=32, ff_mult=1, lookahead_channels=16),
        vocoder=_vocoder(version, 32, (3,), ((1,),), ((1,),) * 3, 16),
    )


def mid(version: ModelVersion, *, layers: int = 12, hidden: int = 512) -> ModelConfig:
    """About a tenth of a full model's work: what two CPU cores can speak with. For benchmarks."""
    return _model(
        version,
        llm=LlmConfig(
            version, hidden, layers, heads=hidden // 64, kv_heads=2, ffn=4 * hidden, vocab=151_936, codes=6_561
        ),
        encoder=ConformerConfig(dim=512, heads=8, ffn=512, blocks=2),
        unet=UNetConfig(channels=(128,), heads=4, head_dim=32, blocks=1, mid_blocks=4),
        dit=DitConfig(dim=256, depth=6, heads=4, head_dim=64, ff_mult=2, lookahead_channels=256),
        vocoder=_vocoder(version, 128, (3, 7, 11), _DILATIONS, _DILATIONS, 128),
    )


def full(version: ModelVersion) -> ModelConfig:
    """The sizes of the official 0.5B checkpoints."""
    return _model(
        version,
        llm=LlmConfig(version, 896, 24, heads=14, kv_heads=2, ffn=4_864, vocab=151_936, codes=6_561),
        encoder=ConformerConfig(dim=512, heads=8, ffn=2_048, blocks=6),
        unet=UNetConfig(channels=(256,), heads=8, head_dim=64, blocks=4, mid_blocks=12),
        dit=DitConfig(dim=1_024, depth=22, heads=16, head_dim=64, ff_mult=2, lookahead_channels=1_024),
        vocoder=_vocoder(version, 512, (3, 7, 11), _DILATIONS, _DILATIONS, 512),
    )


def with_codes(config: ModelConfig, codes: int) -> ModelConfig:
    """The same sizes with another number of speech codes."""
    return replace(config, llm=replace(config.llm, codes=codes), flow=replace(config.flow, codes=codes))


def _model(
    version: ModelVersion,
    llm: LlmConfig,
    encoder: ConformerConfig,
    unet: UNetConfig,
    dit: DitConfig,
    vocoder: VocoderConfig,
) -> ModelConfig:
    second = version == 2
    flow = FlowConfig(
        version,
        codes=llm.codes,
        input_size=encoder.dim if second else 80,
        encoder=encoder if second else None,
        unet=unet if second else None,
        dit=None if second else dit,
    )
    return ModelConfig(version, llm, flow, vocoder)


def _vocoder(
    version: ModelVersion,
    channels: int,
    kernels: tuple[int, ...],
    dilations: tuple[tuple[int, ...], ...],
    source_dilations: tuple[tuple[int, ...], ...],
    f0_channels: int,
) -> VocoderConfig:
    return VocoderConfig(
        version,
        base_channels=channels,
        upsample_rates=(8, 5, 3),
        upsample_kernels=(16, 11, 7),
        kernels=kernels,
        dilations=dilations,
        source_kernels=(7, 7, 11),
        source_dilations=source_dilations,
        f0_channels=f0_channels,
    )
