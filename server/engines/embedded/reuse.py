"""What a model made of a piece is kept and found again, where the engine was given a cache."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from server.cache.keys import BlockKey
from server.engines.base import ContextCache, Samples
from server.engines.embedded.pieces import Piece

Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Spectrum:
    """What the Chinese acoustic model made of a row of symbols. Read-only."""

    mel: npt.NDArray[np.float32]  # [1, frames, 80], before the postnet
    durations: npt.NDArray[np.int64]  # frames of each symbol

    @property
    def size(self) -> int:
        """Bytes."""
        return self.mel.nbytes + self.durations.nbytes


@dataclass(frozen=True, slots=True)
class Wave:
    """The English voice's sound of a piece, without fades and pause, and where its words are in it. Read-only."""

    samples: Samples
    word_spans: Spans

    @property
    def size(self) -> int:
        """Bytes; a span counts as two numbers of 8 bytes."""
        return self.samples.nbytes + 16 * len(self.word_spans)


class Reuse:
    """One voice's view of the cache; without a cache nothing is kept and nothing found."""

    def __init__(self, voice: str) -> None:
        self._voice = voice
        self._fingerprint = ""
        self._cache: ContextCache | None = None

    def use(self, cache: ContextCache, fingerprint: str) -> None:
        """From here on keep and look things up in `cache`, under the engine's `fingerprint`."""
        self._cache, self._fingerprint = cache, fingerprint

    @property
    def active(self) -> bool:
        """Whether there is a cache."""
        return self._cache is not None

    def key(self, piece: Piece, *parameters: str | float) -> BlockKey:
        """The key of a piece; `parameters` are whatever else its voice goes by."""
        said = tuple(
            f"{word.text} {mark.value if mark else ''}" for word, mark in zip(piece.words, piece.marks, strict=True)
        )
        everything = (piece.ending.value, piece.after, *parameters)
        return BlockKey(self._fingerprint, self._voice, everything, said[piece.before :], said[: piece.before])

    def find(self, key: BlockKey) -> object | None:
        """What was kept under `key`."""
        return self._cache.get(key) if self._cache else None

    def keep(self, key: BlockKey, value: Spectrum | Wave) -> None:
        """Keep a result; nobody can change its arrays any more."""
        if self._cache is None:
            return
        arrays = (value.mel, value.durations) if isinstance(value, Spectrum) else (value.samples,)
        for array in arrays:
            array.setflags(write=False)
        self._cache.put(key, value, value.size)
