"""CosyVoice 2's encoder: codes to frames, by conformer blocks without convolutions, an up-sampling between them.

Attention knows relative positions, so keys and values of what came before stay as they are. One utterance at a time:
it runs once a hop, the estimator twenty times.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from server.engines.cosyvoice.config import ConformerConfig, FlowConfig
from server.engines.cosyvoice.flow.blocks import FlowCache
from server.engines.cosyvoice.flow.lookahead import LookaheadLayer
from server.engines.cosyvoice.flow.relative import OrderedKv, RelativePositions

LAYER_EPS = 1e-12
ENDS_EPS = 1e-5


@dataclass(slots=True)
class ConformerCache(FlowCache):
    """Keys and values at both rates, and the ends of the convolutions' inputs."""

    codes: OrderedKv = field(kw_only=True)
    frames: OrderedKv = field(kw_only=True)

    @property
    def bytes(self) -> int:
        """What it holds, without what it shares with copies (tails are counted)."""
        return self.codes.bytes + self.frames.bytes + sum(tail.nbytes for tail in self.tails.values())

    @property
    def pinned_bytes(self) -> int:
        """What it shares with copies."""
        return self.codes.pinned_bytes + self.frames.pinned_bytes

    def pin(self) -> None:
        """Keep what is in it now, whatever the history. Once."""
        self.codes.pin()
        self.frames.pin()

    def copy(self) -> "ConformerCache":
        """One that goes on by itself."""
        codes, frames = self.codes.copy(), self.frames.copy()
        return ConformerCache((), dict(self.tails), self.position, codes=codes, frames=frames)


class RelativeAttention(nn.Module):
    """Attention by content and by distance."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self._heads = (heads, dim // heads)
        self.linear_q = nn.Linear(dim, dim)
        self.linear_k = nn.Linear(dim, dim)
        self.linear_v = nn.Linear(dim, dim)
        self.linear_out = nn.Linear(dim, dim)
        self.linear_pos = nn.Linear(dim, dim, bias=False)
        self.pos_bias_u = nn.Parameter(torch.empty(self._heads))
        self.pos_bias_v = nn.Parameter(torch.empty(self._heads))
        self._positions = RelativePositions(*self._heads)

    def forward(self, x: Tensor, layer: int, blocks: Sequence[int], kept: OrderedKv) -> Tensor:
        """`[n, dim]` both; `kept` has the keys and values of before at `layer`, and takes in these."""
        q, k, v = (linear(x).unflatten(1, self._heads) for linear in (self.linear_q, self.linear_k, self.linear_v))
        queries = (q + self.pos_bias_u).transpose(0, 1), (q + self.pos_bias_v).transpose(0, 1)
        k, v = k.transpose(0, 1), v.transpose(0, 1)
        attended = kept.attend(layer, queries, k, v, blocks, self._positions, self.linear_pos.weight)
        return cast(Tensor, self.linear_out(attended.transpose(0, 1).flatten(1)))


class ConformerLayer(nn.Module):
    """Attention and a feed-forward layer, norms first."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.self_attn = RelativeAttention(config.dim, config.heads)
        self.feed_forward = nn.ModuleDict(
            {"w_1": nn.Linear(config.dim, config.ffn), "w_2": nn.Linear(config.ffn, config.dim)}
        )
        self.norm_ff = nn.LayerNorm(config.dim, eps=LAYER_EPS)
        self.norm_mha = nn.LayerNorm(config.dim, eps=LAYER_EPS)

    def forward(self, x: Tensor, layer: int, blocks: Sequence[int], kept: OrderedKv) -> Tensor:
        """`[n, dim]` both; see `RelativeAttention`."""
        x = x + self.self_attn(self.norm_mha(x), layer, blocks, kept)
        wide, narrow = self.feed_forward["w_1"], self.feed_forward["w_2"]
        return x + cast(Tensor, narrow(functional.silu(wide(self.norm_ff(x)))))


class Embedding(nn.Module):
    """Into the conformer's own scale."""

    def __init__(self, inputs: int, dim: int) -> None:
        super().__init__()
        self.out = nn.ModuleList([nn.Linear(inputs, dim), nn.LayerNorm(dim, eps=ENDS_EPS)])
        self._scale = math.sqrt(dim)

    def forward(self, x: Tensor) -> Tensor:
        """`[n, inputs]` to `[n, dim]`."""
        return cast(Tensor, self.out[1](self.out[0](x))) * self._scale


class UpLayer(nn.Module):
    """Every position twice, then a causal convolution."""

    def __init__(self, dim: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(dim, dim, 2 * stride + 1)
        self._stride = stride

    def forward(self, x: Tensor, cache: FlowCache) -> Tensor:
        """`[n, dim]` to `[stride * n, dim]`."""
        x = x.repeat_interleave(self._stride, 0)
        return _windows(self.conv, _behind("up", x, 2 * self._stride, cache))


class ConformerEncoder(nn.Module):
    """The encoder; see `base.Encoder`. Keys as under `encoder.`."""

    def __init__(self, config: FlowConfig) -> None:
        """Raises ValueError where the configuration has no such encoder."""
        super().__init__()
        conformer = config.encoder
        if conformer is None:
            raise ValueError("flow encoder: missing in the configuration")
        dim = conformer.dim
        self._stride = config.frames_per_code
        self.embed = Embedding(config.input_size, dim)
        self.pre_lookahead_layer = LookaheadLayer(dim, dim, config.lookahead)
        self.encoders = nn.ModuleList(ConformerLayer(conformer) for _ in range(conformer.blocks))
        self.up_layer = UpLayer(dim, self._stride)
        self.up_embed = Embedding(dim, dim)
        self.up_encoders = nn.ModuleList(ConformerLayer(conformer) for _ in range(conformer.up_blocks))
        self.after_norm = nn.LayerNorm(dim, eps=ENDS_EPS)

    def new_cache(self, history: int | None) -> ConformerCache:
        """An empty cache; see `base.Encoder`."""
        codes = OrderedKv(len(self.encoders), None if history is None else history // self._stride)
        return ConformerCache((), codes=codes, frames=OrderedKv(len(self.up_encoders), history))

    @torch.inference_mode()
    def encode(self, codes: Tensor, ahead: Tensor | None, blocks: Sequence[int], cache: FlowCache | None) -> Tensor:
        """See `base.Encoder`. `cache` is one of `new_cache`, or a copy."""
        cache = cache or self.new_cache(None)
        assert isinstance(cache, ConformerCache)
        h = self.pre_lookahead_layer.mixed(self.embed(codes), None if ahead is None else self.embed(ahead), cache)
        for layer, encoder in enumerate(self.encoders):
            h = encoder(h, layer, blocks, cache.codes)
        h = self.up_embed(self.up_layer(h, cache))
        blocks = [self._stride * block for block in blocks]
        for layer, encoder in enumerate(self.up_encoders):
            h = encoder(h, layer, blocks, cache.frames)
        cache.codes.advance(len(codes))
        cache.frames.advance(len(h))
        cache.position += len(codes)
        return cast(Tensor, self.after_norm(h))


def _behind(name: str, x: Tensor, width: int, cache: FlowCache) -> Tensor:
    """`x` `[n, dim]` with the last `width` rows before it in front, zeros where none were; keeps its own last ones."""
    tail = cache.tails.get(name)
    joined = functional.pad(x, (0, 0, width, 0)) if tail is None else torch.cat((tail, x))
    cache.tails[name] = joined[len(x) :].clone()
    return joined


def _windows(conv: nn.Conv1d, x: Tensor) -> Tensor:
    """A convolution of `[n, dim]` without padding, as one matrix product: shorter by its kernel less one."""
    return functional.linear(x.unfold(0, conv.kernel_size[0], 1).flatten(1), conv.weight.flatten(1), conv.bias)
