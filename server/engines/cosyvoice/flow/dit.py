"""CosyVoice 3's estimator: a diffusion transformer whose every layer is modulated by the solver's time."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from server.engines.cosyvoice.config import DitConfig, FlowConfig

from server.engines.cosyvoice.flow.blocks import FlowCache, KvCache, attend_blocks, behind_tails

TIME_SIZE = 256
TIME_SCALE = 1000
POSITION_KERNEL = 31
POSITION_GROUPS = 16
NORM_EPS = 1e-6
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
    """Rates of the rotation; a buffer because checkpoints hold it."""

    inv_freq: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / (10000 ** (torch.arange(0, size, 2).float() / size)))

    def turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine, `[..., size / 2]` float32, for int64 positions `[...]`."""
        angles = positions[..., None].float() * self.inv_freq.float()
        return angles.cos(), angles.sin()


def turn(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotates neighbouring pairs. `x` `[..., size]`, the others `[..., size / 2]`."""
    even, odd = x.float()[..., 0::2], x.float()[..., 1::2]
    return torch.stack([even * cosine - odd * sine, odd * cosine + even * sine], -1).flatten(-2).to(x.dtype)


class Modulation(nn.Module):
    """What the time adds to and multiplies with, of a layer."""

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
        self.attn_norm = Modulation(config.dim, 6)
        self.attn = Attention(config)
        self.ff = FeedForward(config)


class Dit(nn.Module):
    """See `Estimator`."""

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
        self._modulations: dict[float, list[Tensor]] = {}
        self.register_load_state_dict_post_hook(lambda *_: self._modulations.clear())

    def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]  # as torch has it
        self._modulations.clear()  # they were of other weights
        return super()._apply(fn, recurse)

    def new_cache(self, history: int | None) -> FlowCache:
        """See `Estimator`."""
        return FlowCache((KvCache(self._config.depth, history),))

    def velocity(
        self, x: Tensor, mu: Tensor, t: Sequence[float], speaker: Tensor, condition: Tensor,
        blocks: Sequence[Sequence[int]], caches: Sequence[FlowCache] | None,
    ) -> Tensor:  # fmt: skip
        """See `Estimator`."""
        lengths = [sum(part) for part in blocks]
        speakers = speaker[:, None].expand(-1, x.shape[1], -1)
        x = self.input_embed.proj(torch.cat([x, condition, mu, speakers], 2))
        x = self.input_embed.conv_pos_embed.convolved(x, caches, lengths) + x
        starts = [0] * len(blocks) if caches is None else [cache.position for cache in caches]
        positions = torch.tensor(starts, device=x.device)[:, None] + torch.arange(x.shape[1], device=x.device)
        turns = [part.repeat_interleave(2, 0) for part in self.rotary_embed.turns(positions)]
        modulations = self._modulation(t)
        for number, block in enumerate(self.transformer_blocks):
            x = self._layer(number, cast(Block, block), x, modulations[number], turns, blocks, caches)
        for cache, part, length in zip(caches or (), blocks, lengths, strict=bool(caches)):
            cache.kv[0].advance(part)
            cache.position += length
        scale, shift = modulations[-1].unbind(0)
        return cast(Tensor, self.proj_out(_modulated(x, scale, shift)))

    def _layer(
        self, number: int, block: Block, x: Tensor, modulation: Tensor, turns: Sequence[Tensor],
        blocks: Sequence[Sequence[int]], caches: Sequence[FlowCache] | None,
    ) -> Tensor:  # fmt: skip
        shift, scale, gate, ff_shift, ff_scale, ff_gate = modulation.unbind(0)
        attention, size = block.attn, self._config.head_dim
        normed = _modulated(x, scale, shift)
        query, key = attention.to_q(normed), attention.to_k(normed)
        for turned in (query, key):  # only the first head's share knows positions: so they were trained
            turned[..., :size] = turn(turned[..., :size], turns[0], turns[1])
        heads = [part.unflatten(2, (-1, size)).transpose(1, 2) for part in (query, key, attention.to_v(normed))]
        attended = []
        for item, lengths in enumerate(blocks):
            parts = [part[2 * item : 2 * item + 2] for part in heads]
            if caches is None:
                attended.append(attend_blocks(*parts, lengths))
            else:
                attended.append(caches[item].kv[0].attend(number, *parts, lengths))
        joined = (attended[0] if len(attended) == 1 else torch.cat(attended)).transpose(1, 2).flatten(2)
        x = x + gate * attention.to_out[0](joined)
        return x + ff_gate * block.ff.ff(_modulated(x, ff_scale, ff_shift))

    def _modulation(self, times: Sequence[float]) -> list[Tensor]:
        """Of every layer and of the end, `[6 (2), rows, 1, dim]`; or rows 1, where all passes are at the same time.
        The solver's times are few and always the same, so they are computed once.
        """
        for time in times:
            if time not in self._modulations:
                if len(self._modulations) >= TIMES_KEPT:
                    self._modulations.clear()
                self._modulations[time] = self._modulation_at(time)
        if len(set(times)) == 1:
            return self._modulations[times[0]]
        each = [self._modulations[time] for time in times for _ in range(2)]
        return [torch.cat(parts, 1) for parts in zip(*each, strict=True)]

    def _modulation_at(self, time: float) -> list[Tensor]:
        embedded = functional.silu(self.time_embed.embedded(time))
        layers = [cast(Block, block).attn_norm for block in self.transformer_blocks]
        dim = self._config.dim
        return [layer.linear(embedded).view(-1, 1, 1, dim) for layer in (*layers, self.norm_out)]


def _modulated(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], eps=NORM_EPS) * (1 + scale) + shift
