"""CosyVoice 2's estimator: causal convolutions and transformer blocks, all at the frames' own rate.

Everything is `[rows, frames, channels]`: norms, attention and the linear layers want it so, and a causal convolution of
three frames is then one matrix product over windows.
"""

import math
from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from server.engines.cosyvoice.config import FlowConfig, UNetConfig
from server.engines.cosyvoice.flow.blocks import FlowCache, KvCache, attend_blocks
from server.engines.cosyvoice.flow.relative import identity

KERNEL = 3
ROWS = 2  # of a pass: with and without guidance
TIMES_KEPT = 64
TIME_SCALE = 1000.0  # of the flow's time, which goes from 0 to 1
TIME_PERIOD = 10_000.0


class Memory:
    """What one call of the estimator sees of what came before, for each of its passes, and what it leaves behind."""

    def __init__(self, blocks: Sequence[Sequence[int]], caches: Sequence[FlowCache] | None) -> None:
        """One of each per pass (two rows)."""
        self._blocks = blocks
        self._caches = caches
        self._lengths = [sum(pass_blocks) for pass_blocks in blocks]

    def behind(self, name: str, x: Tensor, width: int) -> Tensor:
        """`x` `[rows, frames, channels]` with the last `width` frames before it in front, zeros where none were."""
        if self._caches is None:
            return functional.pad(x, (0, 0, width, 0))
        empty = x.new_zeros(ROWS, width, x.shape[2])
        tails = [cache.tails.get(name, empty) for cache in self._caches]
        joined = torch.cat([tails[0] if len(tails) == 1 else torch.cat(tails), x], 1)
        for rows, length, cache in zip(torch.split(joined, ROWS), self._lengths, self._caches, strict=True):
            cache.tails[name] = rows[:, length : length + width].clone()
        return joined

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """All `[rows, frames, heads, size]`; returns `[rows, frames, heads * size]`."""
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        parts = zip(torch.split(q, ROWS), torch.split(k, ROWS), torch.split(v, ROWS), self._blocks, strict=True)
        if self._caches is None:
            results = [attend_blocks(*part) for part in parts]
        else:
            results = [cache.kv[0].attend(layer, *part) for part, cache in zip(parts, self._caches, strict=True)]
        return (results[0] if len(results) == 1 else torch.cat(results)).transpose(1, 2).flatten(2)

    def advance(self) -> None:
        """All layers have been called."""
        for cache, blocks, length in zip(
            self._caches or (), self._blocks, self._lengths, strict=self._caches is not None
        ):
            cache.kv[0].advance(blocks)
            cache.position += length


class CausalConv(nn.Conv1d):
    """A convolution over a frame and the two before it."""

    def __init__(self, inputs: int, outputs: int, name: str) -> None:
        super().__init__(inputs, outputs, KERNEL)
        self._name = name

    def causal(self, x: Tensor, memory: Memory) -> Tensor:
        """`[rows, frames, channels]` both; what came before `x` is remembered under this layer's name."""
        rows, frames, _ = x.shape
        # Windows as rows of one matrix, channel by channel as the weight lies: faster than a convolution, which would
        # want channels before frames.
        windows = memory.behind(self._name, x, KERNEL - 1).unfold(1, KERNEL, 1).reshape(rows, frames, -1)
        return functional.linear(windows, self.weight.flatten(1), self.bias)


class ConvBlock(nn.Module):
    """Convolution, norm, activation."""

    def __init__(self, inputs: int, outputs: int, name: str) -> None:
        super().__init__()
        self.block = nn.ModuleDict({"0": CausalConv(inputs, outputs, name), "2": nn.LayerNorm(outputs)})

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """`[rows, frames, channels]` both."""
        conv, norm = cast(CausalConv, self.block["0"]), self.block["2"]
        return functional.mish(norm(conv.causal(x, memory)))


class Resnet(nn.Module):
    """Two convolutions with the time of the flow between them, around a shortcut."""

    def __init__(self, inputs: int, outputs: int, time: int, name: str) -> None:
        super().__init__()
        self.mlp = nn.ModuleDict({"1": nn.Linear(time, outputs)})
        self.block1 = ConvBlock(inputs, outputs, f"{name}.1")
        self.block2 = ConvBlock(outputs, outputs, f"{name}.2")
        self.res_conv = nn.Conv1d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor, memory: Memory) -> Tensor:
        """`x` `[rows, frames, inputs]`; `time` `[rows or 1, 1, outputs]` went through `mlp`."""
        h = self.block1(x, memory).add_(time)
        return _pointwise(self.res_conv, x).add_(self.block2(h, memory))


class Transformer(nn.Module):
    """Attention and a feed-forward layer, norms first. No positions: the convolutions know them."""

    def __init__(self, channels: int, heads: int, head_dim: int, layer: int) -> None:
        super().__init__()
        inner = heads * head_dim
        self.norm1 = nn.LayerNorm(channels)
        self.attn1 = nn.ModuleDict(
            {
                "to_q": nn.Linear(channels, inner, bias=False),
                "to_k": nn.Linear(channels, inner, bias=False),
                "to_v": nn.Linear(channels, inner, bias=False),
                "to_out": nn.ModuleList([nn.Linear(inner, channels)]),
            }
        )
        self.norm3 = nn.LayerNorm(channels)
        widened = nn.ModuleDict({"proj": nn.Linear(channels, 4 * channels)})
        self.ff = nn.ModuleDict({"net": nn.ModuleDict({"0": widened, "2": nn.Linear(4 * channels, channels)})})
        self._heads = (heads, head_dim)
        self._layer = layer

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """`[rows, frames, channels]` both. Changes `x`."""
        attention = self.attn1
        h = self.norm1(x)
        q, k, v = (attention[name](h).unflatten(2, self._heads) for name in ("to_q", "to_k", "to_v"))
        x += cast(nn.ModuleList, attention["to_out"])[0](memory.attend(self._layer, q, k, v))
        net = cast(nn.ModuleDict, self.ff["net"])
        x += net["2"](functional.gelu(cast(nn.ModuleDict, net["0"])["proj"](self.norm3(x))))
        return x


class Level(nn.Module):
    """A resnet, transformer blocks and, but in the middle, a convolution."""

    def __init__(self, inputs: int, config: UNetConfig, number: int, *, ends: bool) -> None:
        """`number` counts the levels of the network."""
        super().__init__()
        channels = config.channels[0]
        self._number = number
        self.add_module("0", Resnet(inputs, channels, 4 * channels, f"{number}"))
        first = number * config.blocks
        self.add_module(
            "1",
            nn.ModuleList(
                Transformer(channels, config.heads, config.head_dim, layer)
                for layer in range(first, first + config.blocks)
            ),
        )
        if ends:
            self.add_module("2", CausalConv(channels, channels, f"{number}.3"))

    @property
    def resnet(self) -> Resnet:
        """Its first part."""
        return cast(Resnet, self._modules["0"])

    def forward(self, x: Tensor, times: Tensor, memory: Memory) -> Tensor:
        """`x` `[rows, frames, inputs]`, `times` `[rows or 1, levels, channels]`; returns `[rows, frames, channels]`,
        before the convolution.
        """
        x = self.resnet(x, times[:, self._number : self._number + 1], memory)
        for transformer in cast(Iterable[Transformer], self._modules["1"]):
            x = transformer(x, memory)
        return x

    def convolve(self, x: Tensor, memory: Memory) -> Tensor:
        """The level's last layer."""
        return cast(CausalConv, self._modules["2"]).causal(x, memory)


class UNet(nn.Module):
    """The estimator; see `base.Estimator`. Keys as under `decoder.estimator.`."""

    def __init__(self, config: FlowConfig) -> None:
        """Raises ValueError where the configuration has no network of one level."""
        super().__init__()
        unet = config.unet
        if unet is None or len(unet.channels) != 1:
            got = "none" if unet is None else str(len(unet.channels))
            raise ValueError(f"flow decoder channels: one level is supported (more are not causal), not {got}")
        channels = unet.channels[0]
        self._inputs = 4 * config.mels  # x, mu, speaker, condition
        self.time_mlp = nn.ModuleDict(
            {
                "linear_1": nn.Linear(self._inputs, 4 * channels),
                "linear_2": nn.Linear(4 * channels, 4 * channels),
            }
        )
        last = 1 + unet.mid_blocks
        self.down_blocks = nn.ModuleList([Level(self._inputs, unet, 0, ends=True)])
        self.mid_blocks = nn.ModuleList(Level(channels, unet, number, ends=False) for number in range(1, last))
        self.up_blocks = nn.ModuleList([Level(2 * channels, unet, last, ends=True)])
        self.final_block = ConvBlock(channels, channels, "final")
        self.final_proj = nn.Conv1d(channels, config.mels, 1)
        self._layers = (last + 1) * unet.blocks
        self._times: dict[float, Tensor] = {}
        self._times_of: tuple[object, ...] = ()

    def new_cache(self, history: int | None) -> FlowCache:
        """An empty cache for one step of the solver and both rows of guidance; see `base.Estimator`."""
        return FlowCache((KvCache(self._layers, history),))

    @torch.inference_mode()
    def velocity(
        self, x: Tensor, mu: Tensor, t: Sequence[float], speaker: Tensor, condition: Tensor,
        blocks: Sequence[Sequence[int]], caches: Sequence[FlowCache] | None,
    ) -> Tensor:  # fmt: skip
        """See `base.Estimator`."""
        memory = Memory(blocks, caches)
        times = self._projected(t)
        h = torch.cat((x, mu, speaker.unsqueeze(1).expand_as(x), condition), 2)
        down, up = cast(Level, self.down_blocks[0]), cast(Level, self.up_blocks[0])
        skipped = down(h, times, memory)
        h = down.convolve(skipped, memory)
        for level in self.mid_blocks:
            h = level(h, times, memory)
        h = up.convolve(up(torch.cat((h, skipped), 2), times, memory), memory)
        h = _pointwise(self.final_proj, self.final_block(h, memory))
        memory.advance()
        return h

    def _projected(self, t: Sequence[float]) -> Tensor:
        """What each level adds for the time, `[rows or 1, levels, channels]`. A solver asks for the same few times for
        ever, and reading the weights costs more than all else that depends on the time alone: kept by value.
        """
        weight = cast(nn.Linear, self.time_mlp["linear_1"]).weight
        if (times_of := identity(weight)) != self._times_of or len(self._times) > TIMES_KEPT:
            self._times, self._times_of = {}, times_of
        times = self._times  # another thread may replace it meanwhile
        for value in t:
            if value not in times:
                times[value] = self._project(value, weight.device, weight.dtype)
        if len(set(t)) == 1:
            return times[t[0]].unsqueeze(0)
        return torch.stack([times[value] for value in t]).repeat_interleave(ROWS, 0)

    def _project(self, t: float, device: torch.device, dtype: torch.dtype) -> Tensor:
        """`[levels, channels]`; the angles in float32, they are large."""
        half = self._inputs // 2
        steps = torch.arange(half, device=device, dtype=torch.float32)
        angles = TIME_SCALE * t * torch.exp(steps * (-math.log(TIME_PERIOD) / (half - 1)))
        waves = torch.cat((angles.sin(), angles.cos())).to(dtype)
        first, second = self.time_mlp["linear_1"], self.time_mlp["linear_2"]
        time = functional.mish(second(functional.silu(first(waves))))
        levels = cast(Iterable[Level], (*self.down_blocks, *self.mid_blocks, *self.up_blocks))
        return torch.stack([level.resnet.mlp["1"](time) for level in levels])


def _pointwise(conv: nn.Conv1d, x: Tensor) -> Tensor:
    """A convolution over single frames, of `[rows, frames, channels]`."""
    return functional.linear(x, conv.weight.squeeze(2), conv.bias)
