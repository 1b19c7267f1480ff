"""The English voice at work: phonemes -> spectrum of the whole piece -> samples, a stretch of frames at a time."""

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from hibari.g2p import G2P
from hibari.g2p.oov import OOV

from server.engines.base import Samples
from server.engines.embedded.catalog import ENGLISH
from server.engines.embedded.english_phonemes import EnglishPhonemes, PhonemeRow
from server.engines.embedded.model import Model
from server.engines.embedded.pieces import Ending, Piece
from server.engines.embedded.rendering import ChunkSizes, PlannedChunk, SpokenPiece, own_symbols, word_spans
from server.engines.embedded.reuse import Reuse, Spans, Wave
from server.engines.embedded.shaping import HOP, fade_edges, pause_samples
from server.engines.embedded.source_filter import LEAD_FRAMES, SourceFilter

GAIN = 1.6  # makes it as loud as the Chinese voice
STEP_FRAMES = 2  # a duration counts steps of 25 ms: two frames
TAIL_FRAMES = 2
JOIN_TAIL_FRAMES = 1
LEAST_FRAMES = 2  # of sound: "a" before another word
SOUND_LEADS_FRAMES = 6  # inside a phrase a word's sound begins about this much before its duration says

# No phoneme is shorter than a step of 25 ms, so the network must be asked for more speed than is wanted. Measured on 20
# sentences; what is asked for 2.0 gives 1.85.
_SPEED_WANTED = (0.5, 1.0, 1.1, 1.25, 1.4, 1.5, 1.75, 2.0)
_SPEED_ASKED = (0.5, 1.0, 1.11, 1.29, 1.49, 1.62, 2.1, 3.0)


class EnglishVoice:
    """Shared by all jobs; holds nothing of any of them."""

    def __init__(self, model: Path, assets: Path, threads: int) -> None:
        """Open the network that `voice_build` wrote and hibari's own tables. Raises `EngineError`."""
        self._network = Model(model, threads)
        vocabulary = json.loads((assets / "vocab.json").read_text("utf-8"))
        unknown_words = OOV(str(assets / "oov.onnx"), session=Model(assets / "oov.onnx", threads).session)
        self._phonemes = EnglishPhonemes(G2P(oov=unknown_words), vocabulary)
        self.reuse = Reuse(ENGLISH.id)

    def speak(self, piece: Piece, speed: float, pitch: float, seed: int, sizes: ChunkSizes) -> SpokenPiece | None:
        """Run the network and plan the chunks. None when no word has a phoneme.

        The noise in the voice is drawn from `seed` and the phonemes, so a piece sounds the same wherever it is made.
        """
        seed &= 0xFFFF_FFFF_FFFF_FFFF
        tail = JOIN_TAIL_FRAMES if piece.ending is Ending.JOIN else TAIL_FRAMES
        pause = pause_samples(piece.pause_ms, speed, LEAD_FRAMES + tail)
        # A chunk's samples are the same to the bit only where chunks are cut alike.
        key = self.reuse.key(piece, speed, pitch, seed, *sizes.state)
        found = self.reuse.find(key)
        if isinstance(found, Wave):
            return SpokenPiece(found.word_spans, _chunks(_Kept(found.samples), sizes, pause))
        row = self._phonemes.row(piece)
        own = own_symbols(row.owners, piece.heard)
        if own is None:
            return None
        speech, spans = self._synthesised(row, own, piece, speed, pitch, seed, tail)
        if self.reuse.active:
            speech = _Keeping(speech, lambda samples: self.reuse.keep(key, Wave(samples, spans)))
        return SpokenPiece(spans, _chunks(speech, sizes, pause))

    def _synthesised(
        self, row: PhonemeRow, own: tuple[int, int], piece: Piece, speed: float, pitch: float, seed: int, tail: int
    ) -> tuple["_Speech", Spans]:
        """Run the network; the speech of the piece's own words, and where each of them is in it."""
        ids = np.array([row.ids], np.int64)
        asked = np.interp(speed, _SPEED_WANTED, _SPEED_ASKED)
        *outputs, durations = self._network.run({"ids": ids, "speed": np.array([asked], np.float32)})
        *spectrum, f0 = (output[0] for output in outputs)
        wave = SourceFilter(spectrum, f0 * np.float32(pitch), (seed, zlib.crc32(ids.tobytes())))
        ends = np.cumsum(durations) * STEP_FRAMES
        first, stop = own
        sounding = [index for index, owner in enumerate(row.owners) if owner is not None]
        previous = max((index for index in sounding if index < first), default=None)
        following = next((index for index in sounding if index >= stop), None)
        if previous is None:
            begin = wave.onset(int(ends[0]))
        elif piece.marks[piece.before - 1] is None:
            begin = wave.between_words(int(ends[previous - 1]), int(ends[first - 1]))
        else:
            begin = wave.after_pause(int(ends[first - 1]))
        if following is None:
            end = wave.end(begin, int(ends[stop - 2]), tail)
        else:
            sound = begin + (LEAD_FRAMES if previous is None else 0)
            end = wave.between_words(int(ends[stop - 2]), int(ends[following - 1]), sound + LEAST_FRAMES)
        spans = word_spans(row.owners, ends - SOUND_LEADS_FRAMES, len(piece.words), begin, end)
        return _Synthesised(wave, begin, end), spans[piece.heard]


class _Speech(Protocol):
    """The sound of a piece, made when it is asked for."""

    @property
    def frames(self) -> int: ...

    def samples(self, first: int, end: int) -> Samples:
        """Samples of frames `[first, end)`, before fades."""


@dataclass(frozen=True, slots=True)
class _Synthesised:
    """Frames `[begin, end)` of a wave."""

    wave: SourceFilter
    begin: int
    end: int

    @property
    def frames(self) -> int:
        return self.end - self.begin

    def samples(self, first: int, end: int) -> Samples:
        return self.wave.samples(self.begin + first, self.begin + end) * np.float32(GAIN)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Made before."""

    whole: Samples

    @property
    def frames(self) -> int:
        return len(self.whole) // HOP

    def samples(self, first: int, end: int) -> Samples:
        return self.whole[first * HOP : end * HOP]


class _Keeping:
    """Remembers what it passes on, and hands it to `keep` if the whole piece was asked for, from its first frame on."""

    def __init__(self, speech: _Speech, keep: Callable[[Samples], None]) -> None:
        self._speech = speech
        self._keep = keep
        self._parts: list[Samples] = []
        self._made = 0

    @property
    def frames(self) -> int:
        return self._speech.frames

    def samples(self, first: int, end: int) -> Samples:
        samples = self._speech.samples(first, end)
        if first == self._made:
            self._parts.append(samples)
            self._made = end
            if end == self.frames:
                self._keep(np.concatenate(self._parts))
                self._parts.clear()
        return samples


def _chunks(speech: _Speech, sizes: ChunkSizes, pause: int) -> Iterator[PlannedChunk]:
    total = speech.frames

    def render(first: int, stop: int, silence: int) -> Samples:
        shaped = fade_edges(speech.samples(first, stop), first * HOP, total * HOP)
        return np.concatenate([shaped, np.zeros(silence, np.float32)]) if silence else shaped

    for first, stop in sizes.cut(total):
        silence = pause if stop == total else 0
        yield PlannedChunk((stop - first) * HOP + silence, partial(render, first, stop, silence))
