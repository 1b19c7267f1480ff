"""The estimator of CosyVoice 2's flow: hop by hop, several passes in a call, against the same written out plainly."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from server.engines.cosyvoice.config import FlowConfig, UNetConfig
from server.engines.cosyvoice.flow.blocks import FlowCache
from server.engines.cosyvoice.flow.unet import UNet
from server.engines.cosyvoice.synthetic import fill_randomly

CONFIG = FlowConfig(
    version=2,
    codes=32,
    input_size=24,
    mels=6,
    unet=UNetConfig(channels=(16,), heads=2, head_dim=4, blocks=2, mid_blocks=2),
)
BOUND = 1e-4


@dataclass(frozen=True)
class Given:
    """What the estimator is asked about: `[2, frames, 6]`, and a speaker `[2, 6]`."""

    x: Tensor
    mu: Tensor
    condition: Tensor
    speaker: Tensor

    def part(self, begin: int, end: int) -> "Given":
        rows = slice(None), slice(begin, end)
        return Given(self.x[rows], self.mu[rows], self.condition[rows], self.speaker)


@pytest.fixture(scope="module")
def unet() -> UNet:
    made = UNet(CONFIG)
    fill_randomly(made, 3)
    return made.requires_grad_(False)


def given(frames: int, seed: int = 1) -> Given:
    generator = torch.Generator().manual_seed(seed)
    x, mu, condition = (torch.randn(2, frames, CONFIG.mels, generator=generator) for _ in range(3))
    return Given(x, mu, condition, torch.randn(2, CONFIG.mels, generator=generator))


def seen(blocks: Sequence[int], pinned: int, history: int | None) -> Tensor:
    """Which frames (columns) each frame (row) sees."""
    mask = torch.zeros(sum(blocks), sum(blocks), dtype=torch.bool)
    begin = 0
    for block in blocks:
        end = begin + block
        first = 0 if history is None else max(pinned, begin - history)
        mask[begin:end, first:end] = True
        mask[begin:end, : min(pinned, end)] = True
        begin = end
    return mask


def plainly(
    unet: UNet, asked: Given, t: float, blocks: Sequence[int], pinned: int = 0, history: int | None = None
) -> Tensor:
    """The network as its authors describe it: dense, masked, channels before frames in its convolutions."""
    weights = unet.state_dict()
    mask = seen(blocks, pinned, history)

    def linear(name: str, x: Tensor) -> Tensor:
        return functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(name: str, x: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"])

    def conv(name: str, x: Tensor) -> Tensor:
        kernel = weights[f"{name}.weight"]
        return functional.conv1d(functional.pad(x.mT, (kernel.shape[2] - 1, 0)), kernel, weights[f"{name}.bias"]).mT

    def block(name: str, x: Tensor) -> Tensor:
        return functional.mish(norm(f"{name}.block.2", conv(f"{name}.block.0", x)))

    def transformer(name: str, x: Tensor) -> Tensor:
        h = norm(f"{name}.norm1", x)
        q, k, v = (linear(f"{name}.attn1.to_{part}", h).unflatten(2, (2, 4)) for part in "qkv")  # type: ignore[no-untyped-call]
        scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(4)
        shares = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        x = x + linear(f"{name}.attn1.to_out.0", torch.einsum("bhij,bjhd->bihd", shares, v).flatten(2))
        h = functional.gelu(linear(f"{name}.ff.net.0.proj", norm(f"{name}.norm3", x)))
        return x + linear(f"{name}.ff.net.2", h)

    def level(name: str, x: Tensor) -> Tensor:
        h = block(f"{name}.0.block1", x) + linear(f"{name}.0.mlp.1", functional.mish(time))
        x = conv(f"{name}.0.res_conv", x) + block(f"{name}.0.block2", h)
        for number in range(2):
            x = transformer(f"{name}.1.{number}", x)
        return x

    size = 4 * CONFIG.mels
    rates = torch.exp(torch.arange(size // 2) * (-math.log(10_000) / (size // 2 - 1)))
    waves = torch.cat(((1_000 * t * rates).sin(), (1_000 * t * rates).cos()))
    time = linear("time_mlp.linear_2", functional.silu(linear("time_mlp.linear_1", waves)))
    speaker = asked.speaker[:, None].expand_as(asked.x)
    first = level("down_blocks.0", torch.cat((asked.x, asked.mu, speaker, asked.condition), 2))
    h = conv("down_blocks.0.2", first)
    for number in range(2):
        h = level(f"mid_blocks.{number}", h)
    h = conv("up_blocks.0.2", level("up_blocks.0", torch.cat((h, first), 2)))
    return conv("final_proj", block("final_block", h))


def ask(unet: UNet, asked: Given, t: float, blocks: Sequence[int], cache: FlowCache | None = None) -> Tensor:
    caches = None if cache is None else [cache]
    return unet.velocity(asked.x, asked.mu, [t], asked.speaker, asked.condition, [blocks], caches)


@pytest.mark.parametrize("blocks", [(40,), (25, 15), (7, 25, 3, 5)])
def test_without_a_cache_each_block_sees_itself_and_all_before_it(unet: UNet, blocks: tuple[int, ...]) -> None:
    asked = given(40)
    torch.testing.assert_close(ask(unet, asked, 0.3, blocks), plainly(unet, asked, 0.3, blocks), atol=BOUND, rtol=0)


@pytest.mark.parametrize("history", [None, 0, 12, 40, 1000])
@pytest.mark.parametrize("prompt", [0, 22])
def test_hops_equal_the_whole_that_sees_the_prompt_and_as_much_of_the_rest(
    unet: UNet, history: int | None, prompt: int
) -> None:
    calls = ((18,), (28, 6), (10,), (1,), (16,), (26,), (2,), (12, 40))
    hops = [block for call in calls for block in call]
    asked = given(prompt + sum(hops))
    cache, parts = unet.new_cache(history), []
    if prompt:
        parts.append(ask(unet, asked.part(0, prompt), 0.2, (prompt - 8, 8), cache))
    cache.pin()
    cache = cache.copy()
    begin = prompt
    for call in calls:
        parts.append(ask(unet, asked.part(begin, begin + sum(call)), 0.2, call, cache))
        begin += sum(call)
    blocks = (prompt - 8, 8, *hops) if prompt else hops
    expected = plainly(unet, asked, 0.2, blocks, prompt, history)
    torch.testing.assert_close(torch.cat(parts, 1), expected, atol=BOUND, rtol=0)
    if history is not None and history < 100:
        assert not torch.allclose(expected, plainly(unet, asked, 0.2, blocks), atol=10 * BOUND)


def test_passes_of_other_lengths_and_times_share_a_call_and_stay_apart(unet: UNet) -> None:
    lengths, times, blocks = (20, 13, 20), (0.1, 0.7, 0.1), ((20,), (6, 7), (20,))
    before = [given(30, seed) for seed in range(3)]
    askeds = [given(length, 10 + length + seed) for seed, length in enumerate(lengths)]
    last = [given(5, 20 + seed) for seed in range(3)]
    apart, together = ([unet.new_cache(None) for _ in range(3)] for _ in range(2))
    for caches in (apart, together):
        for asked, t, cache in zip(before, times, caches, strict=True):
            ask(unet, asked, t, (30,), cache)
    expected = [
        ask(unet, asked, t, mine, cache) for asked, t, mine, cache in zip(askeds, times, blocks, apart, strict=True)
    ]

    def rows(parts: list[Tensor]) -> Tensor:
        return torch.cat([functional.pad(part, (0, 0, 0, 20 - part.shape[1]), value=9.0) for part in parts])

    got = unet.velocity(
        rows([asked.x for asked in askeds]),
        rows([asked.mu for asked in askeds]),
        times,
        torch.cat([asked.speaker for asked in askeds]),
        rows([asked.condition for asked in askeds]),
        blocks,
        together,
    )
    for number, (length, mine) in enumerate(zip(lengths, expected, strict=True)):
        torch.testing.assert_close(got[2 * number : 2 * number + 2, :length], mine, atol=BOUND, rtol=0)
    # Nothing of the padding, or of each other, was kept.
    for asked, t, one, other in zip(last, times, apart, together, strict=True):
        torch.testing.assert_close(ask(unet, asked, t, (5,), one), ask(unet, asked, t, (5,), other), atol=BOUND, rtol=0)


def test_passes_without_caches_share_a_call_too(unet: UNet) -> None:
    one, other = given(12, 1), given(12, 2)
    both = Given(*(torch.cat(parts) for parts in zip(*(vars(item).values() for item in (one, other)), strict=True)))
    got = unet.velocity(both.x, both.mu, [0.5, 0.5], both.speaker, both.condition, [(12,), (4, 8)], None)
    torch.testing.assert_close(got[:2], plainly(unet, one, 0.5, (12,)), atol=BOUND, rtol=0)
    torch.testing.assert_close(got[2:], plainly(unet, other, 0.5, (4, 8)), atol=BOUND, rtol=0)


def test_with_a_history_memory_does_not_grow_and_the_prompt_is_shared(unet: UNet) -> None:
    prefix = unet.new_cache(60)
    ask(unet, given(40), 0.5, (40,), prefix)
    prefix.pin()
    state = prefix.copy()
    one_frame = 2 * 2 * 8 * 4 * 8  # keys and values, rows, channels of attention, float32, layers
    assert prefix.pinned_bytes == state.pinned_bytes == 40 * one_frame
    sizes = []
    for number in range(20):
        ask(unet, given(20, number), 0.5, (20,), state)
        sizes.append(state.bytes)
    assert sizes[-1] == sizes[4]
    assert sizes[-1] - prefix.bytes <= (60 + 20) * one_frame  # prefix.bytes: the ends of convolutions' inputs


def test_other_weights_are_noticed() -> None:
    unet, asked = UNet(CONFIG), given(10)
    fill_randomly(unet, 4)
    before = ask(unet, asked, 0.5, (10,))
    fill_randomly(unet, 5)
    after = ask(unet, asked, 0.5, (10,))
    torch.testing.assert_close(after, plainly(unet, asked, 0.5, (10,)), atol=BOUND, rtol=0)
    assert not torch.allclose(before, after, atol=0.01)


def test_many_times_are_not_all_kept(unet: UNet) -> None:
    asked = given(4)
    for number in range(100):
        ask(unet, asked, number / 100, (4,))
    assert len(unet._times) < 80
    torch.testing.assert_close(ask(unet, asked, 0.25, (4,)), plainly(unet, asked, 0.25, (4,)), atol=BOUND, rtol=0)


def test_half_precision_stays_close(unet: UNet) -> None:
    half = UNet(CONFIG)
    half.load_state_dict(unet.state_dict())
    half.bfloat16()
    asked = given(40)
    low = Given(*(part.bfloat16() for part in vars(asked).values()))
    cache = half.new_cache(None)
    got = torch.cat([ask(half, low.part(0, 25), 0.5, (25,), cache), ask(half, low.part(25, 40), 0.5, (15,), cache)], 1)
    assert got.dtype == torch.bfloat16
    assert (got.float() - plainly(unet, asked, 0.5, (25, 15))).abs().mean() < 0.05


@pytest.mark.parametrize(("channels", "said"), [((16, 16), "not 2"), ((), "not 0"), (None, "not none")])
def test_a_network_that_is_not_causal_is_refused(channels: tuple[int, ...] | None, said: str) -> None:
    assert CONFIG.unet is not None
    unet = None if channels is None else replace(CONFIG.unet, channels=channels)
    with pytest.raises(ValueError, match=f"flow decoder channels: one level is supported.*{said}"):
        UNet(replace(CONFIG, unet=unet))
