"""Blocks of frames, and what is kept of those that came before: keys, values and the ends of convolutions' inputs.

A block sees itself and what came before it, so its frames need no mask: each block is one attention over the keys that
are there when it has come. Keys carry their positions, so their order is free: where only so many frames are looked
back at, newer ones take the places of the oldest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

GROWTH = 1.5  # of a buffer that is full


def grid(start: int, count: int, block: int) -> tuple[int, ...]:
    """The lengths of the pieces that a grid of `block` cuts `start` to `start + count` into."""
    ends = [*range((start // block + 1) * block, start + count, block), start + count]
    return tuple(end - begin for begin, end in zip([start, *ends[:-1]], ends, strict=True)) if count else ()


def pieces(count: int, block: int) -> tuple[int, ...]:
    """`count` in pieces of `block`, the last one shorter where it must be."""
    return grid(0, count, block)


def attend(query: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """Attention over keys that lie in one or two pieces. `query` `[rows, heads, n, size]`, each of `keys` and `values`
    `[rows, heads, any, size]`; returns `[rows, heads, n, size]`.

    Two pieces are joined for the fused kernel: the copy costs less than two products of each kind and their scores
    put together, on a CPU too (13 % less at 150 and 350 keys, 14 % at 150 and 1,000).
    """
    key, value = (parts[0] if len(parts) == 1 else torch.cat(list(parts), 2) for parts in (keys, values))
    return functional.scaled_dot_product_attention(query, key, value)


def attend_blocks(query: Tensor, key: Tensor, value: Tensor, blocks: Sequence[int]) -> Tensor:
    """Attention in blocks where nothing came before. All `[rows, heads, at least sum(blocks), size]`; what lies behind
    the blocks is padding, and is zero in the result.
    """
    if len(blocks) == 1 and blocks[0] == query.shape[2]:
        return attend(query, [key], [value])
    result = torch.zeros_like(query)
    start = 0
    for block in blocks:
        end = start + block
        result[:, :, start:end] = attend(query[:, :, start:end], [key[:, :, :end]], [value[:, :, :end]])
        start = end
    return result


@dataclass(slots=True)
class _Window:
    """Where the frames after the pinned ones lie: `held` of them in a ring of `history` places, the oldest at
    `oldest`. A block is written behind them, attended with them, and then moved into the ring where that is full.
    """

    history: int | None
    held: int = 0
    oldest: int = 0

    def moves(self, count: int) -> list[tuple[int, int, int]]:
        """Take in `count` frames that were written behind what was held: the copies (from, to, length) it needs."""
        if self.history is None or self.held + count <= self.history:
            self.held += count
            return []
        if count >= self.history:
            moves = [(self.held + count - self.history, 0, self.history)]
            self.held, self.oldest = self.history, 0
            return moves if self.history else []
        moves = []
        start, left = self.history, self.held + count - self.history  # those before `start` lie in their places
        while left:
            length = min(left, self.history - self.oldest)
            moves.append((start, self.oldest, length))
            self.oldest = (self.oldest + length) % self.history
            start, left = start + length, left - length
        self.held = self.history
        return moves


class KvCache:
    """Keys and values of some layers of equal shape. Whoever uses it calls `attend` for each layer in turn, with the
    same blocks, and then `advance`. Everything is kept until it is pinned, and then `history` frames besides.
    """

    def __init__(self, layers: int, history: int | None) -> None:
        self._layers = layers
        self._history = history
        self._window = _Window(None)
        self._is_pinned = False
        self._pinned: Tensor | None = None  # [layers, 2, rows, heads, frames, size], shared with copies, never written
        self._own: Tensor | None = None  # the same with the window's frames, and room behind them

    @property
    def bytes(self) -> int:
        """What it holds, without what it shares with the cache that it is a copy of."""
        return 0 if self._own is None else self._own.nbytes

    @property
    def pinned_bytes(self) -> int:
        """What it shares with its copies."""
        return 0 if self._pinned is None else self._pinned.nbytes

    def pin(self) -> None:
        """Keep what is in it now, whatever the history. Once."""
        if self._is_pinned:
            raise RuntimeError("pinned already")
        if self._own is not None:
            self._pinned = self._own[..., : self._window.held, :].clone()
            self._own = None
        self._window = _Window(self._history)
        self._is_pinned = True

    def copy(self) -> "KvCache":
        """One that goes on by itself."""
        copy = KvCache(self._layers, self._history)
        copy._pinned, copy._is_pinned = self._pinned, self._is_pinned
        copy._own = None if self._own is None else self._own.clone()
        copy._window = _Window(self._window.history, self._window.held, self._window.oldest)
        return copy

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, blocks: Sequence[int]) -> Tensor:
        """Attention of new frames, all `[rows, heads, at least sum(blocks), size]`; see `attend_blocks`."""
        own = self._room(key, blocks)[layer]
        window = _Window(self._window.history, self._window.held, self._window.oldest)
        pinned = [] if self._pinned is None else [self._pinned[layer]]
        padded = sum(blocks) < query.shape[2]
        result = torch.zeros_like(query) if padded or len(blocks) > 1 else query
        start = 0
        for block in blocks:
            end, held = start + block, window.held + block
            own[0, :, :, window.held : held] = key[:, :, start:end]
            own[1, :, :, window.held : held] = value[:, :, start:end]
            seen = [*pinned, own[..., :held, :]]
            attended = attend(query[:, :, start:end], [piece[0] for piece in seen], [piece[1] for piece in seen])
            if result is query:
                result = attended
            else:
                result[:, :, start:end] = attended
            for source, target, length in window.moves(block):
                moved = own[..., source : source + length, :]
                own[..., target : target + length, :] = moved.clone() if source < target + length else moved
            start = end
        return result

    def advance(self, blocks: Sequence[int]) -> None:
        """All layers have attended these blocks."""
        for block in blocks:
            self._window.moves(block)

    def _room(self, like: Tensor, blocks: Sequence[int]) -> Tensor:
        """The own buffer, with room for the blocks."""
        history, held = self._window.history, self._window.held
        need = held + sum(blocks) if history is None else min(history, held + sum(blocks)) + max(blocks)
        if self._own is not None and self._own.shape[4] >= need:
            return self._own
        room = need
        if self._own is not None:
            room = max(need, int(self._own.shape[4] * GROWTH))
            room = room if history is None else max(need, min(room, history + max(blocks)))
        rows, heads, _, size = like.shape
        grown = like.new_empty(self._layers, 2, rows, heads, room, size)
        if self._own is not None:
            grown[..., :held, :] = self._own[..., :held, :]
        self._own = grown
        return grown


@dataclass(slots=True)
class FlowCache:
    """What one network keeps of what came before: keys and values of its layers (in groups of equal shape), and the
    ends of its causal convolutions' inputs by name.
    """

    kv: tuple[KvCache, ...]
    tails: dict[str, Tensor] = field(default_factory=dict)  # [rows, channels, width]; replaced, never written into
    position: int = 0  # of the next frame (or code)

    @property
    def bytes(self) -> int:
        """What it holds, without what it shares with the cache that it is a copy of (tails are counted)."""
        return sum(cache.bytes for cache in self.kv) + sum(tail.nbytes for tail in self.tails.values())

    @property
    def pinned_bytes(self) -> int:
        """What it shares with its copies."""
        return sum(cache.pinned_bytes for cache in self.kv)

    def pin(self) -> None:
        """Keep what is in it now, whatever the history. Once."""
        for cache in self.kv:
            cache.pin()

    def copy(self) -> Self:
        """One that goes on by itself."""
        return type(self)(tuple(cache.copy() for cache in self.kv), dict(self.tails), self.position)


def behind_tails(
    x: Tensor, caches: Sequence[FlowCache] | None, name: str, width: int, lengths: Sequence[int]
) -> Tensor:
    """`x` `[rows, channels, frames]` with the last `width` frames that came before it in front (zeros where none did),
    for a causal convolution; keeps its own last ones. Rows are shared out evenly among the caches; `lengths` are the
    frames of each cache's rows that are no padding.
    """
    rows, channels, _ = x.shape
    if caches is None:
        return functional.pad(x, (width, 0))
    each = rows // len(caches)
    empty = x.new_zeros(each, channels, width)
    tails = [cache.tails.get(name, empty) for cache in caches]
    joined = torch.cat([tails[0] if len(tails) == 1 else torch.cat(tails), x], 2)
    for number, (cache, length) in enumerate(zip(caches, lengths, strict=True)):
        cache.tails[name] = joined[number * each : (number + 1) * each, :, length : length + width].clone()
    return joined
