"""Attention by content and by distance, as the conformer's: what is kept of it, and the scores of distances."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

PERIOD = 10_000.0
FIRST_BEHIND, FIRST_BEFORE = 512, 64  # distances that a table begins with; a streamed block looks 49 frames forward
GROWTH = 1.5  # of room that is full
ROWS = 256  # queries at once: the scores of an utterance that is one block would take gigabytes


def identity(weight: Tensor) -> tuple[object, ...]:
    """Changes when a weight is replaced, written into, moved or cast: what was computed from it is stale then."""
    version = 0 if weight.is_inference() else weight._version
    return weight.data_ptr(), version, weight.device, weight.dtype


def _doubled(room: int, need: int) -> int:
    while room < need:
        room *= 2
    return room


class _Table(NamedTuple):
    """Projected distances `[heads, size, behind + 1 + before]`, from the longest way back to the longest forward."""

    projected: Tensor
    behind: int
    before: int
    made_of: tuple[object, ...]


class RelativePositions:
    """The scores of queries by distance alone. The projected distances are kept in a table: it grows by doubling, is
    shared by all utterances, and is made anew when the weight has changed.
    """

    def __init__(self, heads: int, size: int) -> None:
        self._shape = (heads, size)
        self._table: _Table | None = None

    def scores(self, q: Tensor, keys: int, distance: int, weight: Tensor) -> Tensor:
        """`q` `[heads, n, size]`; `keys` is the number of neighbouring keys, the first of them `distance` before the
        first query; `weight` projects a distance, `[heads * size, dim]`. Returns `[heads, n, keys]`, a view.
        """
        heads, n, _ = q.shape
        longest, width = distance + n - 1, keys + n - 1
        table, behind = self._distances(longest, width - 1 - longest, weight)
        over_distances = torch.matmul(q, table[:, :, behind - longest : behind - longest + width])
        # Query i and key j are `distance + i - j` apart, which is column `n - 1 - i + j`: reading rows that are one
        # shorter than they are shifts each by one more.
        return over_distances.as_strided((heads, n, keys), (n * width, width - 1, 1), n - 1)

    def _distances(self, behind: int, before: int, weight: Tensor) -> tuple[Tensor, int]:
        """A table that reaches so far, and how far back it begins."""
        table, made_of = self._table, identity(weight)
        reach = FIRST_BEHIND, FIRST_BEFORE
        if table is not None and table.made_of == made_of:
            if behind <= table.behind and before <= table.before:
                return table.projected, table.behind
            reach = table.behind, table.before
        behind, before = _doubled(reach[0], behind), _doubled(reach[1], before)
        table = _Table(self._project(weight, behind, before), behind, before, made_of)
        self._table = table  # at once: another thread may be reading it
        return table.projected, behind

    def _project(self, weight: Tensor, behind: int, before: int) -> Tensor:
        dim = weight.shape[1]
        distances = torch.arange(behind, -before - 1, -1, device=weight.device, dtype=torch.float32)
        steps = torch.arange(0, dim, 2, device=weight.device, dtype=torch.float32)
        angles = distances.unsqueeze(1) * torch.exp(steps * (-math.log(PERIOD) / dim))
        waves = torch.stack((angles.sin(), angles.cos()), 2).flatten(1).to(weight.dtype)
        return (weight @ waves.T).reshape(*self._shape, -1)


class OrderedKv:
    """Keys and values of some layers of equal shape, in the order of their positions. Whoever uses it calls `attend`
    for each layer in turn, with the same blocks, and then `advance`.
    """

    def __init__(self, layers: int, history: int | None) -> None:
        """`history` is how many positions are kept of those after the pinned ones; None: all. Until something is
        pinned, everything is kept.
        """
        self._layers = layers
        self._history = history
        self._limit: int | None = None  # the history, once it counts
        self._room: Tensor | None = None  # [layers, 2, heads, places, size]
        self._shared = False  # with a copy: not to be written into
        self._length = 0
        self._pinned = 0
        self._dropped = 0  # positions behind the pinned ones that are gone

    @property
    def bytes(self) -> int:
        """What it holds, spare room included, without what it shares with copies."""
        return 0 if self._room is None or self._shared else self._room.nbytes

    @property
    def pinned_bytes(self) -> int:
        """What it shares with copies."""
        return self._room.nbytes if self._room is not None and self._shared else 0

    def pin(self) -> None:
        """Keep what is in it now, whatever the history. Once."""
        self._pinned, self._limit = self._length, self._history
        self._shared = True

    def copy(self) -> "OrderedKv":
        """One that goes on by itself; what is there now is shared until either goes on."""
        self._shared = True
        twin = OrderedKv(self._layers, self._history)
        twin._room, twin._shared, twin._length = self._room, True, self._length
        twin._limit, twin._pinned, twin._dropped = self._limit, self._pinned, self._dropped
        return twin

    def attend(
        self, layer: int, queries: tuple[Tensor, Tensor], k: Tensor, v: Tensor, blocks: Sequence[int],
        positions: RelativePositions, weight: Tensor,
    ) -> Tensor:  # fmt: skip
        """`queries` by content and by distance, `k`, `v`: all `[heads, n, size]`, new; see `RelativePositions` for
        the last two. Returns `[heads, n, size]`.
        """
        own = self._prepare(k)[layer]
        end = self._length + k.shape[1]
        own[0, :, self._length : end], own[1, :, self._length : end] = k, v
        scale = k.shape[2] ** -0.5
        parts = []
        begin = self._length
        for block in blocks:
            end = begin + block
            first = 0 if self._limit is None else max(self._pinned, begin - self._limit)
            parted = first > self._pinned or (first == self._pinned and self._dropped > 0)
            seen = own[:, :, first:end]
            if parted and self._pinned:
                seen = own[:, :, :end] if first == self._pinned else torch.cat((own[:, :, : self._pinned], seen), 2)
            elif not parted:
                first, seen = 0, own[:, :, :end]
            for start in range(begin, end, ROWS):
                rows = slice(start - self._length, min(end, start + ROWS) - self._length)
                bias = positions.scores(queries[1][:, rows], end - first, start - first, weight)
                if parted and self._pinned:
                    distance = start + self._dropped
                    bias = torch.cat((positions.scores(queries[1][:, rows], self._pinned, distance, weight), bias), 2)
                parts.append(
                    functional.scaled_dot_product_attention(
                        queries[0][None, :, rows], seen[None, 0], seen[None, 1], attn_mask=(bias * scale)[None]
                    )[0]
                )
            begin = end
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def advance(self, count: int) -> None:
        """All layers have attended so many positions."""
        self._length += count

    def _prepare(self, k: Tensor) -> Tensor:
        """Room for what comes, which nobody else reads."""
        heads, count, size = k.shape
        room = self._room
        if room is not None and not self._shared and self._length + count <= room.shape[3]:
            return room
        after = self._length - self._pinned
        dropped = 0 if self._limit is None else max(0, after - self._limit)
        length = self._length - dropped
        kept = slice(self._pinned + dropped, self._length)
        if room is not None and not self._shared and dropped and length + count <= room.shape[3]:
            room[:, :, :, self._pinned : length] = room[:, :, :, kept].clone()
        else:
            # With a history, room for as much again: then it is moved to the front once every so many positions.
            spare = int(length * (GROWTH - 1)) if self._limit is None else self._limit
            grown = k.new_empty(self._layers, 2, heads, length + count + (spare if length else 0), size)
            if room is not None:
                grown[:, :, :, : self._pinned] = room[:, :, :, : self._pinned]
                grown[:, :, :, self._pinned : length] = room[:, :, :, kept]
            self._room, self._shared, room = grown, False, grown
        self._length, self._dropped = length, self._dropped + dropped
        return room
