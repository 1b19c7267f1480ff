"""The body of Qwen2: rotary positions, grouped queries, gated feed-forward layers. Rows of any utterances at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from server.engines.cosyvoice.config import LlmConfig
from server.engines.cosyvoice.linear import FastLinear
from server.engines.cosyvoice.llm.slots import SlotCache

Linear: TypeAlias = Callable[[Tensor], Tensor]
MakeLinear: TypeAlias = Callable[[Sequence[Tensor], Sequence[Tensor | None] | None], Linear]


@dataclass(frozen=True, slots=True)
class Part:
    """`count` rows of one utterance, which follow the `start` positions that its slot holds by now."""

    slot: int
    start: int
    count: int


class Weights(nn.Module):
    """A weight and perhaps a bias, not initialised: they come from a checkpoint."""

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, *shape: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape), requires_grad=False)
        self.register_parameter("bias", nn.Parameter(torch.empty(shape[0]), requires_grad=False) if bias else None)


class _Attention(nn.Module):
    def __init__(self, config: LlmConfig) -> None:
        super().__init__()
        kv = config.kv_heads * config.head_dim
        self.q_proj = Weights(config.hidden, config.hidden, bias=True)
        self.k_proj = Weights(kv, config.hidden, bias=True)
        self.v_proj = Weights(kv, config.hidden, bias=True)
        self.o_proj = Weights(config.hidden, config.hidden)


class _FeedForward(nn.Module):
    def __init__(self, config: LlmConfig) -> None:
        super().__init__()
        self.gate_proj = Weights(config.ffn, config.hidden)
        self.up_proj = Weights(config.ffn, config.hidden)
        self.down_proj = Weights(config.hidden, config.ffn)


class _Layer(nn.Module):
    def __init__(self, config: LlmConfig) -> None:
        super().__init__()
        self.self_attn = _Attention(config)
        self.mlp = _FeedForward(config)
        self.input_layernorm = Weights(config.hidden)
        self.post_attention_layernorm = Weights(config.hidden)


@dataclass(frozen=True, slots=True)
class _Fused:
    """A layer as it is computed."""

    norm: Tensor
    qkv: Linear
    out: Linear
    ffn_norm: Tensor
    gate_up: Linear
    down: Linear


class Body(nn.Module):
    """The layers and the embedding of text tokens, under the names that checkpoints have."""

    def __init__(self, config: LlmConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = Weights(config.vocab, config.hidden)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))
        self.norm = Weights(config.hidden)
        self._fused: list[_Fused] = []
        self._frequencies = torch.empty(0)

    def prepare(self, make: MakeLinear = FastLinear) -> None:
        """Lay the loaded weights out for computing, once; those of the layers are given up as parameters."""
        for layer in self.layers:
            assert isinstance(layer, _Layer)
            a, m = layer.self_attn, layer.mlp
            heads = (a.q_proj, a.k_proj, a.v_proj)
            fused = _Fused(
                layer.input_layernorm.weight.detach(),
                make([w.weight for w in heads], [w.bias for w in heads]),
                make([a.o_proj.weight], None),
                layer.post_attention_layernorm.weight.detach(),
                make([m.gate_proj.weight, m.up_proj.weight], None),
                make([m.down_proj.weight], None),
            )
            self._fused.append(fused)
            del layer.self_attn, layer.mlp
        size, device = self.config.head_dim, self.norm.weight.device
        even = torch.arange(0, size, 2, dtype=torch.float32, device=device)
        self._frequencies = 1.0 / self.config.rope_theta ** (even / size)

    def run(self, x: Tensor, cache: SlotCache, parts: Sequence[Part]) -> Tensor:
        """Rows `x` `[R, hidden]`, those of `parts` one after the other, and after them rows that stand for nothing (any
        number). Writes their keys and values into the cache, whose lengths are the caller's; returns `[R, hidden]`,
        before the last norm.
        """
        positions = [p for part in parts for p in range(part.start, part.start + part.count)]
        slots = [part.slot for part in parts for _ in range(part.count)]
        masks = [_mask(part, x.device) if part.count > 1 else None for part in parts]
        unread = x.new_zeros(x.shape[0] - len(positions), x.shape[1])

        def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            made, row = list[Tensor](), 0
            for part, mask in zip(parts, masks, strict=True):
                end = part.start + part.count
                seen = slice(part.slot, part.slot + 1), slice(None), slice(end)
                made.append(_attend(queries[row : row + part.count], keys[seen], values[seen], mask))
                row += part.count
            return torch.cat((*made, unread)) if len(made) > 1 or len(unread) else made[0]

        places = torch.tensor([positions, slots], device=x.device)
        return self._layers(x, cache, places[0], places[1], attend)

    def run_slots(self, x: Tensor, cache: SlotCache, positions: Tensor, length: int) -> Tensor:
        """One row for each of the first slots: `x` `[R, hidden]`, `positions` int64 `[R]`, all below `length` or, for
        slots that have no row now, `cache.length`. Everything has a fixed shape and nothing waits for the device, so
        that it can be captured as a graph. Returns `[R, hidden]`, before the last norm.
        """
        seen = torch.arange(length, device=x.device) <= positions[:, None]

        def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            keys, values = keys[: x.shape[0], :, :length], values[: x.shape[0], :, :length]
            grouped = queries.reshape(x.shape[0], self.config.kv_heads, -1, self.config.head_dim)
            made = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=seen[:, None, None])
            return made.reshape(x.shape)

        return self._layers(x, cache, positions, torch.arange(x.shape[0], device=x.device), attend)

    def _layers(
        self,
        x: Tensor,
        cache: SlotCache,
        positions: Tensor,
        slots: Tensor,
        attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Tensor:
        """`positions` and `slots` `[count]` of the first rows of `x`. `attend` makes of their queries `[count, heads,
        head_dim]` and a layer's keys and values `[slots, kv_heads, length, head_dim]` what goes on, `[R, hidden]`.
        """
        config, count = self.config, positions.shape[0]
        turn = self._rotation(positions, x.dtype)
        where = slots * (cache.length + 1) + positions
        for number, layer in enumerate(self._fused):
            qkv = layer.qkv(norm(x, layer.norm, config.norm_eps))[:count].view(count, -1, config.head_dim)
            qkv = turn(qkv)
            new = qkv[:, config.heads :].reshape(count, 2, config.kv_heads, config.head_dim)
            cache.rows[number].index_copy_(0, where, new)
            x = x + layer.out(attend(qkv[:, : config.heads], cache.keys[number], cache.values[number]))
            gate, up = layer.gate_up(norm(x, layer.ffn_norm, config.norm_eps)).chunk(2, dim=-1)
            x = x + layer.down(F.silu(gate).mul_(up))
        return x

    def _rotation(self, positions: Tensor, dtype: torch.dtype) -> Linear:
        """Turns queries and keys of `[R, heads + 2 kv_heads, head_dim]` by their positions `[R]`; values stay."""
        angle = positions.to(torch.float32)[:, None] * self._frequencies
        turned = self.config.heads + self.config.kv_heads
        cos = torch.cat((angle.cos(), angle.cos()), dim=-1)[:, None].to(dtype)
        sin = torch.cat((-angle.sin(), angle.sin()), dim=-1)[:, None].to(dtype)
        half = self.config.head_dim // 2

        def turn(x: Tensor) -> Tensor:
            part = x[:, :turned]
            swapped = torch.cat((part[..., half:], part[..., :half]), dim=-1)
            part.mul_(cos).addcmul_(swapped, sin)
            return x

        return turn


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square norm, computed in fp32."""
    if x.dtype == torch.float32:
        return F.rms_norm(x, weight.shape, weight, eps)
    return F.rms_norm(x.float(), weight.shape, None, eps).to(x.dtype) * weight


def _mask(part: Part, device: torch.device) -> Tensor:
    """`[count, start + count]`: a row sees what came before it, and itself."""
    return torch.ones(part.count, part.start + part.count, dtype=torch.bool, device=device).tril_(part.start)


def _attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """`q` `[n, heads, head_dim]` against `[1, kv_heads, positions, head_dim]` each; returns `[n, hidden]`."""
    if mask is None:  # one row: the heads that share a key are like positions that all see the same
        made = F.scaled_dot_product_attention(q.view(1, keys.shape[1], -1, q.shape[2]), keys, values)
        return made.reshape(1, -1)
    queries = q.transpose(0, 1)[None]
    made = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=True)
    return made.transpose(1, 2).reshape(len(q), -1)
