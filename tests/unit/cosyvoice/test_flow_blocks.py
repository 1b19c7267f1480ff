"""Blocks of frames, and the keys and values that are kept for them."""

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from server.engines.cosyvoice.flow.blocks import FlowCache, KvCache, attend, attend_blocks, behind_tails, grid, pieces
from tests.support.cosyvoice_flow import masked

LAYERS, ROWS, HEADS, SIZE = 2, 2, 3, 8


def _made(frames: int, seed: int = 0) -> list[list[Tensor]]:
    """Query, key and value of each layer."""
    generator = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(ROWS, frames, HEADS, SIZE, generator=generator).transpose(1, 2) for _ in range(3)]
        for _ in range(LAYERS)
    ]


def _cached(cache: KvCache, made: list[list[Tensor]], start: int, calls: Sequence[Sequence[int]]) -> list[Tensor]:
    """What each layer attends, in calls of several blocks each."""
    results: list[list[Tensor]] = [[] for _ in made]
    for blocks in calls:
        end = start + sum(blocks)
        for layer, parts in enumerate(made):
            query, key, value = (part[:, :, start:end] for part in parts)
            results[layer].append(cache.attend(layer, query, key, value, blocks))
        cache.advance(blocks)
        start = end
    return [torch.cat(result, 2) for result in results]


def test_a_grid_cuts_at_its_multiples() -> None:
    assert grid(0, 60, 25) == (25, 25, 10)
    assert grid(22, 33, 25) == (3, 25, 5)
    assert grid(25, 25, 25) == (25,)
    assert grid(26, 3, 25) == (3,)
    assert grid(7, 0, 25) == ()


def test_pieces_are_whole_but_for_the_last() -> None:
    assert pieces(51, 25) == (25, 25, 1)
    assert pieces(50, 25) == (25, 25)
    assert pieces(0, 25) == ()


def test_blocks_without_a_cache_are_attention_with_their_mask() -> None:
    for blocks in ((7,), (3, 4), (1, 1, 5)):
        query, key, value = _made(7)[0]
        expected = masked(query, key, value, blocks, 0, None)
        torch.testing.assert_close(attend_blocks(query, key, value, blocks), expected)


def test_padding_behind_blocks_is_not_attended() -> None:
    query, key, value = _made(9)[0]
    made = attend_blocks(query, key, value, (3, 4))
    query, key, value = (part[:, :, :7] for part in (query, key, value))
    torch.testing.assert_close(made[:, :, :7], masked(query, key, value, (3, 4), 0, None))
    assert not made[:, :, 7:].any()


def test_keys_in_two_pieces_are_as_good_as_in_one() -> None:
    query, key, value = _made(20)[0]
    whole = attend(query, [key], [value])
    torch.testing.assert_close(attend(query, [key[:, :, :6], key[:, :, 6:]], [value[:, :, :6], value[:, :, 6:]]), whole)


@pytest.mark.parametrize("history", [None, 0, 1, 5, 12, 100])
@pytest.mark.parametrize("pinned", [0, 6])
def test_a_cache_sees_what_the_mask_lets_it_see(history: int | None, pinned: int) -> None:
    chance = random.Random(f"{history} {pinned}")
    for seed in range(2):
        calls = [[chance.randint(1, 14) for _ in range(chance.randint(1, 3))] for _ in range(6)]
        blocks = [block for call in calls for block in call]
        total = pinned + sum(blocks)
        made = _made(total, seed)
        cache = KvCache(LAYERS, history)
        if pinned:
            _cached(cache, made, 0, [[pinned]])
        cache.pin()
        results = _cached(cache, made, pinned, calls)
        for result, (query, key, value) in zip(results, made, strict=True):
            expected = masked(query, key, value, [*([pinned] if pinned else []), *blocks], pinned, history)
            torch.testing.assert_close(result, expected[:, :, pinned:])


def test_copies_go_on_by_themselves() -> None:
    made, other = _made(30), _made(30, 9)
    cache = KvCache(LAYERS, 8)
    _cached(cache, made, 0, [[4]])
    cache.pin()
    _cached(cache, made, 4, [[5]])
    copy = cache.copy()
    expected = _cached(cache.copy(), made, 9, [[6], [7, 8]])
    _cached(copy, other, 9, [[6], [7, 8]])  # nothing of this reaches the first
    for result, again in zip(_cached(cache, made, 9, [[6], [7, 8]]), expected, strict=True):
        assert torch.equal(result, again)


def test_what_is_pinned_is_shared_and_counted_once() -> None:
    cache = KvCache(LAYERS, None)
    _cached(cache, _made(10), 0, [[10]])
    cache.pin()
    copy = cache.copy()
    assert cache.pinned_bytes == copy.pinned_bytes == LAYERS * 2 * ROWS * HEADS * 10 * SIZE * 4
    assert cache.bytes == copy.bytes == 0
    with pytest.raises(RuntimeError):
        cache.pin()


def test_a_cache_with_a_history_does_not_grow() -> None:
    cache = KvCache(LAYERS, 20)
    cache.pin()
    made = _made(400)
    _cached(cache, made, 0, [[10]] * 4)
    held = cache.bytes
    assert held == LAYERS * 2 * ROWS * HEADS * (20 + 10) * SIZE * 4
    _cached(cache, made, 40, [[10]] * 30)
    assert cache.bytes == held


def test_a_cache_of_everything_grows_by_shares_not_by_frames() -> None:
    cache = KvCache(LAYERS, None)
    made = _made(400)
    sizes = set()
    for start in range(0, 400, 4):
        _cached(cache, made, start, [[4]])
        sizes.add(cache.bytes)
    assert len(sizes) < 15
    assert cache.bytes <= 1.6 * LAYERS * 2 * ROWS * HEADS * 400 * SIZE * 4


def test_tails_make_pieces_of_a_causal_convolution_its_whole() -> None:
    kernel = torch.randn(4, 4, 5, generator=torch.Generator().manual_seed(1))
    x = torch.randn(4, 4, 30, generator=torch.Generator().manual_seed(2))
    whole = torch.conv1d(behind_tails(x, None, "end", 4, [30]), kernel)
    caches = [FlowCache(()), FlowCache(())]
    made, start = [], 0
    for length in (1, 9, 2, 18):
        part = x[:, :, start : start + length]
        made.append(torch.conv1d(behind_tails(part, caches, "end", 4, [length, length]), kernel))
        start += length
    torch.testing.assert_close(torch.cat(made, 2), whole)


def test_padding_is_no_tail() -> None:
    x = torch.arange(24.0).view(4, 1, 6)
    caches = [FlowCache(()), FlowCache(())]
    behind_tails(x, caches, "end", 2, [6, 3])
    assert caches[0].tails["end"].tolist() == [[[4.0, 5.0]], [[10.0, 11.0]]]
    assert caches[1].tails["end"].tolist() == [[[13.0, 14.0]], [[19.0, 20.0]]]
