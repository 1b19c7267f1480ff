"""CosyVoice's flow with the weights of the reference vectors, and what it is compared with."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from server.engines.cosyvoice.config import ModelVersion
from server.engines.cosyvoice.flow.matching import FlowModel, FlowPrefix, FlowPrompt
from server.engines.cosyvoice.flow.passes import FlowPass
from server.engines.cosyvoice.synthetic import read_manifest, state_by_rule, tiny

torch.set_num_threads(1)  # the models are so small that threads would only wait for each other
DATA = Path(__file__).parents[1] / "data" / "cosyvoice"


@lru_cache(maxsize=2)
def tiny_flow(version: ModelVersion) -> FlowModel:
    """The reference vectors' model. Shared: leave it as it is."""
    model = FlowModel(tiny(version).flow)
    model.load_state_dict(state_by_rule("flow", read_manifest(DATA / f"cosyvoice{version}_manifest.json")["flow"]))
    return model


@lru_cache(maxsize=2)
def golden(version: ModelVersion) -> dict[str, Any]:
    """The reference vectors' arrays."""
    with np.load(DATA / f"cosyvoice{version}_golden.npz") as arrays:
        return {name: arrays[name] for name in arrays if name.startswith("flow") or name == "rand_noise_head"}


def golden_prompt(version: ModelVersion) -> FlowPrompt:
    """The voice of the reference vectors: 25 codes."""
    arrays = golden(version)
    parts = arrays["flow_prompt_token"], arrays["flow_prompt_feat"][0], arrays["flow_embedding"][0]
    return FlowPrompt(*(torch.from_numpy(part) for part in parts))


def random_prompt(codes: int, seed: int = 1) -> FlowPrompt:
    """A voice with so many codes."""
    generator = torch.Generator().manual_seed(seed)
    mel = torch.randn(2 * codes, 80, generator=generator)
    return FlowPrompt(random_codes(codes, seed), mel, torch.randn(192, generator=generator))


def random_codes(count: int, seed: int = 2) -> Tensor:
    """Speech codes of the tiny models."""
    return torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(seed))


def hop_by_hop(prefix: FlowPrefix, codes: Tensor, hops: Sequence[int], final: bool = True) -> Tensor:
    """The mel of a segment that is spoken in these hops; not `final`: three codes of it are only looked at."""
    state, start, made = prefix.model.start(prefix), 0, []
    for hop in hops:
        end = start + hop
        ahead = None if final and end == len(codes) else codes[end : end + 3]
        made.append(state.hop(codes[start:end], ahead).solve())
        start = end
    return torch.cat(made)


@torch.inference_mode()
def in_blocks(
    model: FlowModel, prompt: FlowPrompt, codes: Tensor, ahead: Tensor | None, blocks: Sequence[int]
) -> Tensor:
    """The mel of one evaluation without caches, in any blocks of codes (the prompt's counted)."""
    config, known = model.config, len(prompt.codes)
    mu = model._mu(torch.cat([prompt.codes, codes]), ahead, blocks, None)
    speaker = model._speaker(prompt)
    made = FlowPass(model.estimator, config, mu, speaker, prompt.mel, 0, blocks, None, skip=2 * known)
    return made.solve()


def assert_near(made: Tensor, expected: Tensor, bound: float = 1e-4) -> None:
    """No number is further off than the bound."""
    torch.testing.assert_close(made, expected, atol=bound, rtol=0.0)


def masked(
    query: Tensor, key: Tensor, value: Tensor, blocks: Sequence[int], pinned: int, history: int | None
) -> Tensor:
    """Attention with the mask that blocks mean: a frame sees the `pinned` first ones, `history` before its block, and
    its block.
    """
    block_of = torch.repeat_interleave(torch.arange(len(blocks)), torch.tensor(blocks))
    ends = torch.tensor(blocks).cumsum(0)[block_of]
    starts = ends - torch.tensor(blocks)[block_of]
    keys = torch.arange(key.shape[2])
    seen = keys[None] < ends[:, None]
    if history is not None:
        seen &= (keys[None] < pinned) | (keys[None] >= starts[:, None] - history)
    scores = (query @ key.mT) / query.shape[-1] ** 0.5
    return torch.matmul(scores.masked_fill(~seen, float("-inf")).softmax(-1), value)
