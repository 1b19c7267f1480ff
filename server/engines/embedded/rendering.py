"""What the engine and the voices share: how much to render at a time, chunks planned before rendered, word spans."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from server.engines.base import RenderPlan, Samples
from server.engines.embedded.shaping import HOP, SAMPLE_RATE

STREAM_FRAMES = (8, 24, 48, 80)
"""First chunk 100 ms for an early start, then larger ones: each costs up to 40 frames of context besides its own."""
BLOCK_FRAMES = (160,)
LATER_PIECE_FRAMES = 24  # cap on the chunk that also runs a later piece's acoustic model, to bound a step
SMALLEST_REST = 8  # a shorter remainder joins the chunk before it


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """The next `length` samples of a piece. They are computed when `render` is called; skipped ones never are."""

    length: int
    render: Callable[[], Samples]


@dataclass(frozen=True, slots=True)
class SpokenPiece:
    """A piece after its acoustic model ran: where each word sounds (samples from the piece's start), and the chunks."""

    word_spans: tuple[tuple[int, int], ...]
    chunks: Iterator[PlannedChunk]


class ChunkSizes:
    """Chunk sizes of one segment, in frames, carried on from piece to piece."""

    def __init__(self, plan: RenderPlan) -> None:
        """The sizes that `plan` asks for, else those of its mode."""
        self._chosen = bool(plan.chunk_ms)
        default = STREAM_FRAMES if plan.mode == "stream" else BLOCK_FRAMES
        frames = tuple(max(1, round(ms * SAMPLE_RATE / 1000 / HOP)) for ms in plan.chunk_ms) or default
        self._sizes = itertools.chain(frames, itertools.repeat(frames[-1]))
        self._pieces = 0

    def cut(self, frames: int) -> Iterator[tuple[int, int]]:
        """Tile a piece of `frames` frames with `[start, end)`."""
        self._pieces += 1
        start = 0
        while start < frames:
            size = next(self._sizes)
            if start == 0 and self._pieces > 1 and not self._chosen:
                size = min(size, LATER_PIECE_FRAMES)
            end = start + size
            if frames - end < SMALLEST_REST:
                end = frames
            yield start, end
            start = end


def word_spans(
    owners: Sequence[int | None],
    ends: npt.NDArray[np.int64],
    words: int,
    begin: int,
    end: int,
    heard: npt.NDArray[np.bool_] | None = None,
) -> tuple[tuple[int, int], ...]:
    """Samples `[first, end)` of each word, counted from frame `begin`, out of the durations of the symbols it owns.

    `ends[i]` is the frame where symbol `i` ends; frames `[begin, end)` are spoken. The last word reaches to `end`,
    where its sound has died away. A word that owns no symbol gets an empty span at its place. With `heard`, the
    frames that can be heard, a word after silence begins where it is heard: models count part of the silence to it.
    """
    frames: list[tuple[int, int] | None] = [None] * words
    after_silence = set()
    for index, owner in enumerate(owners):
        if owner is not None:
            known = frames[owner]
            frames[owner] = (int(ends[index - 1]) if known is None else known[0], int(ends[index]))
            if known is None and owners[index - 1] is None:
                after_silence.add(owner)
    spans: list[tuple[int, int]] = []
    position = begin
    for number, span in enumerate(frames):
        first, stop = span or (position, position)
        if heard is not None and number in after_silence:
            audible = np.flatnonzero(heard[first:stop])
            first += int(audible[0]) if len(audible) else 0
        if span and all(later is None for later in frames[number + 1 :]):
            stop = end
        first, stop = min(max(first, position), end), min(max(stop, position), end)
        spans.append(((first - begin) * HOP, (stop - begin) * HOP))
        position = stop
    return tuple(spans)
