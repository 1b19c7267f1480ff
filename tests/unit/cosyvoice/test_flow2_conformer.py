"""The encoder of CosyVoice 2's flow: hop by hop, looking back so far, against the same written out plainly."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from server.engines.cosyvoice.config import ConformerConfig, FlowConfig, UNetConfig
from server.engines.cosyvoice.flow.conformer import ConformerCache, ConformerEncoder
from server.engines.cosyvoice.synthetic import fill_randomly

SIZE = 24
CONFIG = FlowConfig(
    version=2,
    codes=32,
    input_size=SIZE,
    encoder=ConformerConfig(dim=SIZE, heads=2, ffn=16, blocks=2, up_blocks=2),
    unet=UNetConfig(channels=(16,), heads=2, head_dim=8, blocks=1, mid_blocks=1),
)
BOUND = 1e-4


@pytest.fixture(scope="module")
def encoder() -> ConformerEncoder:
    made = ConformerEncoder(CONFIG)
    fill_randomly(made, 3)
    return made.requires_grad_(False)


def embedded(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, SIZE, generator=torch.Generator().manual_seed(seed))


def seen(blocks: Sequence[int], pinned: int, history: int | None) -> Tensor:
    """Which positions (columns) each position (row) sees."""
    total = sum(blocks)
    mask = torch.zeros(total, total, dtype=torch.bool)
    begin = 0
    for block in blocks:
        end = begin + block
        first = 0 if history is None else max(pinned, begin - history)
        mask[begin:end, first:end] = True
        mask[begin:end, : min(pinned, end)] = True
        begin = end
    return mask


def plainly(
    encoder: ConformerEncoder, codes: Tensor, ahead: Tensor | None, blocks: Sequence[int], pinned: int = 0,
    history: int | None = None,
) -> Tensor:  # fmt: skip
    """The encoder as its authors describe it, dense and masked."""
    weights = encoder.state_dict()

    def linear(name: str, x: Tensor) -> Tensor:
        return functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def norm(name: str, x: Tensor, eps: float) -> Tensor:
        return functional.layer_norm(x, (SIZE,), weights[f"{name}.weight"], weights[f"{name}.bias"], eps)

    def conv(name: str, x: Tensor, before: int, after: int) -> Tensor:
        padded = functional.pad(x.T[None], (before, after))
        return functional.conv1d(padded, weights[f"{name}.weight"], weights[f"{name}.bias"])[0].T

    def embed(name: str, x: Tensor) -> Tensor:
        return norm(f"{name}.out.1", linear(f"{name}.out.0", x), 1e-5) * math.sqrt(SIZE)

    def layer(name: str, x: Tensor, mask: Tensor) -> Tensor:
        count, heads = len(x), 2
        h = norm(f"{name}.norm_mha", x, 1e-12)
        q, k, v = (linear(f"{name}.self_attn.linear_{part}", h).view(count, heads, -1) for part in "qkv")
        apart = (torch.arange(count)[:, None] - torch.arange(count)[None]).float()
        angles = apart[..., None] * torch.exp(torch.arange(0, SIZE, 2) * (-math.log(10_000.0) / SIZE))
        waves = torch.stack((angles.sin(), angles.cos()), -1).flatten(2)
        p = linear(f"{name}.self_attn.linear_pos", waves).view(count, count, heads, -1)
        u, w = weights[f"{name}.self_attn.pos_bias_u"], weights[f"{name}.self_attn.pos_bias_v"]
        scores = torch.einsum("ihd,jhd->hij", q + u, k) + torch.einsum("ihd,ijhd->hij", q + w, p)
        shares = (scores / math.sqrt(k.shape[2])).masked_fill(~mask, -torch.inf).softmax(-1)
        x = x + linear(f"{name}.self_attn.linear_out", torch.einsum("hij,jhd->ihd", shares, v).flatten(1))
        h = norm(f"{name}.norm_ff", x, 1e-12)
        h = functional.silu(linear(f"{name}.feed_forward.w_1", h))
        return x + linear(f"{name}.feed_forward.w_2", h)

    x = embed("embed", codes)
    mixed = torch.cat((x, x.new_zeros(3, SIZE) if ahead is None else embed("embed", ahead)))
    mixed = functional.leaky_relu(conv("pre_lookahead_layer.conv1", mixed, 0, 0))
    x = x + conv("pre_lookahead_layer.conv2", mixed, 2, 0)
    mask = seen(blocks, pinned, None if history is None else history // 2)
    for number in range(2):
        x = layer(f"encoders.{number}", x, mask)
    x = embed("up_embed", conv("up_layer.conv", x.repeat_interleave(2, 0), 4, 0))
    mask = seen([2 * block for block in blocks], 2 * pinned, history)
    for number in range(2):
        x = layer(f"up_encoders.{number}", x, mask)
    return norm("after_norm", x, 1e-5)


def in_hops(encoder: ConformerEncoder, codes: Tensor, hops: Sequence[int], cache: ConformerCache) -> Tensor:
    """Each hop is a block; the three codes after it are looked at, nothing after the last."""
    parts, begin = [], 0
    for hop in hops:
        end = begin + hop
        ahead = codes[end : end + 3] if end < sum(hops) else None
        parts.append(encoder.encode(codes[begin:end], ahead, (hop,), cache))
        begin = end
    return torch.cat(parts)


@pytest.mark.parametrize("blocks", [(40,), (25, 15), (7, 25, 3, 5)])
def test_without_a_cache_each_block_sees_itself_and_all_before_it(
    encoder: ConformerEncoder, blocks: tuple[int, ...]
) -> None:
    codes = embedded(43)
    expected = plainly(encoder, codes[:40], codes[40:], blocks)
    torch.testing.assert_close(encoder.encode(codes[:40], codes[40:], blocks, None), expected, atol=BOUND, rtol=0)


def test_what_is_computed_in_hops_equals_the_whole_in_the_same_blocks(encoder: ConformerEncoder) -> None:
    hops = (4, 25, 1, 9, 2, 25, 14)
    codes = embedded(sum(hops))
    expected = plainly(encoder, codes, None, hops)
    got = in_hops(encoder, codes, hops, encoder.new_cache(None))
    torch.testing.assert_close(got, expected, atol=BOUND, rtol=0)


def test_a_call_may_have_several_blocks_and_go_on_from_there(encoder: ConformerEncoder) -> None:
    codes = embedded(60)
    cache = encoder.new_cache(None)
    first = encoder.encode(codes[:31], codes[31:34], (25, 6), cache)
    second = encoder.encode(codes[31:], None, (10, 19), cache)
    expected = plainly(encoder, codes, None, (25, 6, 10, 19))
    torch.testing.assert_close(torch.cat((first, second)), expected, atol=BOUND, rtol=0)


@pytest.mark.parametrize("history", [0, 12, 40])
@pytest.mark.parametrize("prompt", [0, 11])
def test_a_history_hides_what_is_older_but_not_the_prompt(encoder: ConformerEncoder, history: int, prompt: int) -> None:
    hops = (9, 14, 3, 5, 8, 13, 1, 6, 20)
    codes = embedded(prompt + sum(hops))
    cache, parts = encoder.new_cache(history), []
    if prompt:
        parts.append(encoder.encode(codes[:prompt], codes[prompt : prompt + 3], (prompt - 4, 4), cache))
    cache.pin()
    parts.append(encoder.encode(codes[prompt : prompt + 9], codes[prompt + 9 : prompt + 12], (9,), cache))
    parts.append(encoder.encode(codes[prompt + 9 : prompt + 26], codes[prompt + 26 : prompt + 29], (14, 3), cache))
    begin = prompt + 26
    for hop in hops[3:]:
        end = begin + hop
        parts.append(
            encoder.encode(codes[begin:end], codes[end : end + 3] if end < len(codes) else None, (hop,), cache)
        )
        begin = end
    blocks = (prompt - 4, 4, *hops) if prompt else hops
    expected = plainly(encoder, codes, None, blocks, prompt, history)
    torch.testing.assert_close(torch.cat(parts), expected, atol=BOUND, rtol=0)
    assert not torch.allclose(expected, plainly(encoder, codes, None, blocks), atol=10 * BOUND)


def test_a_long_block_and_long_distances_need_no_more_than_the_plain_way(encoder: ConformerEncoder) -> None:
    codes = embedded(170)
    expected = plainly(encoder, codes, None, (170,))
    torch.testing.assert_close(encoder.encode(codes, None, (170,), None), expected, atol=BOUND, rtol=0)
    blocks = (25,) * 16
    codes = embedded(400)
    got = in_hops(encoder, codes, blocks, encoder.new_cache(None))
    torch.testing.assert_close(got, encoder.encode(codes, None, blocks, None), atol=BOUND, rtol=0)


def test_copies_go_on_by_themselves_and_share_what_was_there(encoder: ConformerEncoder) -> None:
    codes = embedded(50)
    cache = encoder.new_cache(None)
    encoder.encode(codes[:20], codes[20:23], (20,), cache)
    cache.pin()
    prefix_bytes = cache.bytes + cache.pinned_bytes
    one, other = cache.copy(), cache.copy()
    assert one.bytes == cache.bytes  # the ends of convolutions' inputs, a few frames
    assert cache.bytes < prefix_bytes / 4
    expected = plainly(encoder, codes, None, (20, 30))[40:]
    changed = torch.cat((codes[:20], -codes[20:]))
    encoder.encode(changed[20:], None, (30,), one)
    torch.testing.assert_close(encoder.encode(codes[20:], None, (30,), other), expected, atol=BOUND, rtol=0)
    assert one.bytes > prefix_bytes
    # The one they were copied from goes on, too.
    torch.testing.assert_close(encoder.encode(codes[20:], None, (30,), cache), expected, atol=BOUND, rtol=0)


def test_with_a_history_memory_does_not_grow(encoder: ConformerEncoder) -> None:
    cache = encoder.new_cache(100)
    encoder.encode(embedded(30), embedded(3), (30,), cache)
    cache.pin()
    cache = cache.copy()
    sizes = set()
    for number in range(30):
        encoder.encode(embedded(25, number), embedded(3, number), (25,), cache)
        sizes.add(cache.bytes)
    places = (30 + 50 + 50 + 25) + 2 * (30 + 50 + 50 + 25)  # prompt, history, room, a hop; at both rates
    assert max(sizes) <= 2 * 2 * SIZE * 4 * places + cache.tails["lookahead"].nbytes + cache.tails["up"].nbytes
    assert len(sizes) <= 3


def test_other_weights_are_noticed() -> None:
    encoder = ConformerEncoder(CONFIG)
    fill_randomly(encoder, 4)
    codes = embedded(30)
    before = encoder.encode(codes, None, (30,), None)
    fill_randomly(encoder, 5)
    after = encoder.encode(codes, None, (30,), None)
    torch.testing.assert_close(after, plainly(encoder, codes, None, (30,)), atol=BOUND, rtol=0)
    assert not torch.allclose(before, after, atol=0.01)


def test_half_precision_stays_close(encoder: ConformerEncoder) -> None:
    half = ConformerEncoder(CONFIG)
    half.load_state_dict(encoder.state_dict())
    half.bfloat16()
    codes = embedded(43)
    cache = half.new_cache(None)
    got = half.encode(codes[:40].bfloat16(), codes[40:].bfloat16(), (25, 15), cache)
    assert got.dtype == torch.bfloat16
    expected = plainly(encoder, codes[:40], codes[40:], (25, 15))
    assert (got.float() - expected).abs().mean() < 0.05


def test_a_model_without_this_encoder_is_told_apart() -> None:
    with pytest.raises(ValueError, match="flow encoder: missing"):
        ConformerEncoder(FlowConfig(version=3, codes=32, input_size=SIZE))
