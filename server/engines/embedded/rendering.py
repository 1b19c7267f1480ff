"""What the engine and the voices share: how much to render at a time, chunks planned before rendered, word spans."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from server.engines.base import RenderPlan, Samples
from server.engines.embedded.shaping import HOP, SAMPLE_RATE

STREAM_FRAMES = (8, 24, 48, 80)
"""First chunk 100 ms for an early start, then larger ones: each costs up to 40 frames of context besides its own."""
BLOCK_FRAMES = 240
"""The most of a piece in one step of a block rendering, which costs 75 ms. Longer pieces are cut evenly; larger steps
gain nothing, since the vocoder slows down by what the missing context saves."""
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
        chosen = tuple(max(1, round(ms * SAMPLE_RATE / 1000 / HOP)) for ms in plan.chunk_ms)
        self._chosen = bool(chosen)
        self.blocks = plan.mode == "block" and not chosen
        """Pieces come in as few chunks as a bounded step allows; their acoustic model gets a step of its own."""
        self._sizes = chosen or STREAM_FRAMES
        self._used = 0
        self._pieces = 0

    @property
    def state(self) -> tuple[int, ...]:
        """What decides how the next piece is cut."""
        if self.blocks:
            return ()
        left = self._sizes[min(self._used, len(self._sizes) - 1) :]
        return (int(self._chosen or self._pieces == 0), *left)

    def cut(self, frames: int) -> Iterator[tuple[int, int]]:
        """Tile a piece of `frames` frames with `[start, end)`."""
        self._pieces += 1
        capped = self._pieces > 1 and not self._chosen
        blocks = -(-frames // BLOCK_FRAMES)
        start = 0
        while start < frames:
            if self.blocks:
                size = -(-frames // blocks)
            else:
                size = self._sizes[min(self._used, len(self._sizes) - 1)]
                self._used += 1
                size = min(size, LATER_PIECE_FRAMES) if start == 0 and capped else size
            end = start + size
            if frames - end < SMALLEST_REST:
                end = frames
            yield start, end
            start = end


def own_symbols(owners: Sequence[int | None], heard: slice) -> tuple[int, int] | None:
    """The first symbol that sounds for a piece's own words, and the one behind their last; None where there is none."""
    own = [i for i, owner in enumerate(owners) if owner is not None and heard.start <= owner < heard.stop]
    return (own[0], own[-1] + 1) if own else None


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
