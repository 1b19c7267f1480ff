"""CosyVoice 3's estimator: a diffusion transformer whose every layer is modulated by the solver's time."""

import math
from collections.abc import Callable, Sequence
from typing import Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from server.engines.cosyvoice.config import DitConfig, FlowConfig
from server.engines.cosyvoice.flow.blocks import FlowCache, KvCache, attend_blocks, behind_tails
from server.engines.cosyvoice.flow.relative import identity
from server.engines.cosyvoice.linear import FastLinear

TIME_SIZE = 256
TIME_SCALE = 1000
POSITION_KERNEL = 31
POSITION_GROUPS = 16
NORM_EPS = 1e-6
LAYER_PARTS = 6  # of the modulation: shift, scale and gate of the attention, then of the feed-forward layers
TIMES_KEPT = 64  # more than a solver has steps


class TimeEmbedding(nn.Module):
    """The solver's time as a vector."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.time_mlp = nn.Sequential(nn.Linear(TIME_SIZE, size), nn.SiLU(), nn.Linear(size, size))

    def embedded(self, time: float) -> Tensor:
        """`[1, size]`."""
        weight = cast(Tensor, self.time_mlp[0].weight)
        half = TIME_SIZE // 2
        rates = torch.exp(torch.arange(half, device=weight.device).float() * -(math.log(10000) / (half - 1)))
        angles = TIME_SCALE * torch.tensor([time], device=weight.device)[:, None] * rates[None]
        return cast(Tensor, self.time_mlp(torch.cat([angles.sin(), angles.cos()], 1).to(weight.dtype)))


class PositionConvolutions(nn.Module):
    """Two causal convolutions, through which frames learn where they are."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv1d(size, size, POSITION_KERNEL, groups=POSITION_GROUPS), nn.Mish())
        self.conv2 = nn.Sequential(nn.Conv1d(size, size, POSITION_KERNEL, groups=POSITION_GROUPS), nn.Mish())

    def convolved(self, x: Tensor, caches: Sequence[FlowCache] | None, lengths: Sequence[int]) -> Tensor:
        """`x` and the result `[rows, frames, size]`."""
        x = self.conv1(behind_tails(x.mT, caches, "position1", POSITION_KERNEL - 1, lengths))
        x = self.conv2(behind_tails(x, caches, "position2", POSITION_KERNEL - 1, lengths))
        return x.mT


class InputEmbedding(nn.Module):
    """Noisy frames with everything that is known of them."""

    def __init__(self, size: int, mels: int) -> None:
        super().__init__()
        self.proj = nn.Linear(4 * mels, size)
        self.conv_pos_embed = PositionConvolutions(size)


class RotaryEmbedding(nn.Module):
    """Rates of the rotation; a buffer because checkpoints hold it. It stays in float32, whatever the weights are."""

    inv_freq: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / (10000 ** (torch.arange(0, size, 2).float() / size)))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        exact = self.inv_freq
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if not exact.is_meta:
            self.inv_freq = exact.to(self.inv_freq.device)
        return self

    def turns(self, positions: Tensor) -> Tensor:
        """Complex numbers of length 1, `[..., size / 2]`, for int64 positions `[...]`."""
        angles = positions[..., None].float() * self.inv_freq.float()
        return torch.polar(torch.ones_like(angles), angles)


def turn(x: Tensor, turns: Tensor) -> Tensor:
    """Neighbouring pairs as complex numbers, turned: `x` `[..., size]`, `turns` `[..., size / 2]`."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


class Modulation(nn.Module):
    """What the time adds to and multiplies with."""

    def __init__(self, size: int, parts: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, parts * size)


class Attention(nn.Module):
    """Its projections."""

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        inner = config.heads * config.head_dim
        self.to_q = nn.Linear(config.dim, inner)
        self.to_k = nn.Linear(config.dim, inner)
        self.to_v = nn.Linear(config.dim, inner)
        self.to_out = nn.ModuleList([nn.Linear(inner, config.dim)])


class FeedForward(nn.Module):
    """Two linear layers; the names of the checkpoint's keys have them so deep."""

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        inner = config.dim * config.ff_mult
        first = nn.Sequential(nn.Linear(config.dim, inner), nn.GELU(approximate="tanh"))
        self.ff = nn.Sequential(first, nn.Identity(), nn.Linear(inner, config.dim))


class Block(nn.Module):
    """A layer of the transformer."""

    def __init__(self, config: DitConfig) -> None:
        super().__init__()
        self.attn_norm = Modulation(config.dim, LAYER_PARTS)
        self.attn = Attention(config)
        self.ff = FeedForward(config)


class _FastBlock:
    """A layer's weights as they are computed with."""

    def __init__(self, block: Block) -> None:
        attention, feed = block.attn, block.ff.ff
        self.projected = _fast(attention.to_q, attention.to_k, attention.to_v)
        self.out = _fast(attention.to_out[0])
        self.inner = _fast(cast(nn.Sequential, feed[0])[0])
        self.outer = _fast(feed[2])


class _Made:
    """What is made of the weights before they are used: layouts, and the modulation of each time of the solver."""

    def __init__(self, dit: "Dit") -> None:
        self.entry = _fast(dit.input_embed.proj)
        self.layers = [_FastBlock(cast(Block, block)) for block in dit.transformer_blocks]
        self.exit = _fast(dit.proj_out)
        self.modulations: dict[float, Tensor] = {}


class Dit(nn.Module):
    """See `Estimator`. A pass's result does not depend on those that it is packed with: to the last bit on a CPU for
    which `FastLinear` packs weights (as measured), to rounding (1e-5) elsewhere.
    """

    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        assert config.dit is not None
        self._config = config.dit
        self.time_embed = TimeEmbedding(config.dit.dim)
        self.input_embed = InputEmbedding(config.dit.dim, config.mels)
        self.rotary_embed = RotaryEmbedding(config.dit.head_dim)
        self.transformer_blocks = nn.ModuleList(Block(config.dit) for _ in range(config.dit.depth))
        self.norm_out = Modulation(config.dit.dim, 2)
        self.proj_out = nn.Linear(config.dit.dim, config.mels)
        self._made: _Made | None = None
        self._made_of: tuple[object, ...] = ()

    def new_cache(self, history: int | None) -> FlowCache:
        """See `Estimator`."""
        return FlowCache((KvCache(self._config.depth, history),))

    def velocity(
        self, x: Tensor, mu: Tensor, t: Sequence[float], speaker: Tensor, condition: Tensor,
        blocks: Sequence[Sequence[int]], caches: Sequence[FlowCache] | None,
    ) -> Tensor:  # fmt: skip
        """See `Estimator`."""
        made = self._prepared()
        lengths = [sum(part) for part in blocks]
        speakers = speaker[:, None].expand(-1, x.shape[1], -1)
        x = made.entry(torch.cat([x, condition, mu, speakers], 2))
        x = self.input_embed.conv_pos_embed.convolved(x, caches, lengths) + x
        starts = [0] * len(blocks) if caches is None else [cache.position for cache in caches]
        positions = torch.tensor(starts, device=x.device)[:, None] + torch.arange(x.shape[1], device=x.device)
        turns = self.rotary_embed.turns(positions).repeat_interleave(2, 0)[:, :, None]
        modulation = self._modulation(t, made)
        for number, block in enumerate(made.layers):
            parts = modulation[LAYER_PARTS * number : LAYER_PARTS * (number + 1)].unbind(0)
            x = self._layer(number, block, x, parts, turns, blocks, caches)
        for cache, part, length in zip(caches or (), blocks, lengths, strict=bool(caches)):
            cache.kv[0].advance(part)
            cache.position += length
        scale, shift = modulation[-2:].unbind(0)
        return made.exit(_modulated(x, scale, shift))

    def _layer(
        self, number: int, block: _FastBlock, x: Tensor, modulation: Sequence[Tensor], turns: Tensor,
        blocks: Sequence[Sequence[int]], caches: Sequence[FlowCache] | None,
    ) -> Tensor:  # fmt: skip
        shift, scale, gate, ff_shift, ff_scale, ff_gate = modulation
        projected = block.projected(_modulated(x, scale, shift))
        projected = projected.view(*x.shape[:2], 3, self._config.heads, self._config.head_dim)
        first = projected[:, :, :2, 0]  # only the first head of queries and keys knows positions: so it was trained
        first.copy_(turn(first, turns))
        query, key, value = projected.permute(2, 0, 3, 1, 4).unbind(0)
        attended = []
        for item, lengths in enumerate(blocks):
            rows = slice(2 * item, 2 * item + 2)
            if caches is None:
                attended.append(attend_blocks(query[rows], key[rows], value[rows], lengths))
            else:
                cache = caches[item].kv[0]
                attended.append(cache.attend(number, query[rows], key[rows], value[rows], lengths))
        joined = (attended[0] if len(attended) == 1 else torch.cat(attended)).transpose(1, 2).flatten(2)
        x = torch.addcmul(x, gate, block.out(joined))
        inner = functional.gelu(block.inner(_modulated(x, ff_scale, ff_shift)), approximate="tanh")
        return torch.addcmul(x, ff_gate, block.outer(inner))

    def _prepared(self) -> _Made:
        """What is made of the weights, anew where they have changed."""
        made_of = identity(self.proj_out.weight)
        if self._made is None or made_of != self._made_of:
            self._made, self._made_of = _Made(self), made_of
        return self._made

    def _modulation(self, times: Sequence[float], made: _Made) -> Tensor:
        """Of all layers and of the end, `[6 depth + 2, rows, 1, dim]`; rows is 1 where all passes are at the same time.
        The solver's times are few and always the same, so they are computed once.
        """
        known = made.modulations
        if len(known) > TIMES_KEPT:
            known.clear()
        for time in set(times) - known.keys():
            known[time] = self._modulation_at(time)
        if len(set(times)) == 1:
            return known[times[0]]
        return torch.cat([known[time] for time in times for _ in range(2)], 1)

    def _modulation_at(self, time: float) -> Tensor:
        embedded = functional.silu(self.time_embed.embedded(time))
        layers = [cast(Block, block).attn_norm for block in self.transformer_blocks]
        parts = torch.cat([layer.linear(embedded)[0] for layer in (*layers, self.norm_out)])
        parts = parts.view(-1, 1, 1, self._config.dim)
        scales = [*range(1, LAYER_PARTS * len(layers), LAYER_PARTS // 2), len(parts) - 2]
        parts[scales] += 1  # to multiply with
        return parts


def _modulated(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return torch.addcmul(shift, functional.layer_norm(x, x.shape[-1:], eps=NORM_EPS), scale)


def _fast(*layers: nn.Module) -> FastLinear:
    return FastLinear([cast(Tensor, one.weight) for one in layers], [cast(Tensor, one.bias) for one in layers])
