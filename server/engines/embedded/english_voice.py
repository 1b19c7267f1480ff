"""The English voice at work: phonemes -> spectrum of the whole piece -> samples, a stretch of frames at a time."""

import json
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from hibari import dsp
from hibari.g2p import G2P
from hibari.g2p.oov import OOV

from server.engines.base import Samples
from server.engines.embedded.english_phonemes import EnglishPhonemes, PhonemeRow
from server.engines.embedded.model import Model
from server.engines.embedded.pieces import Ending, Piece
from server.engines.embedded.rendering import ChunkSizes, PlannedChunk, SpokenPiece, word_spans
from server.engines.embedded.shaping import HOP, fade_edges, pause_samples

GAIN = 1.6  # makes it as loud as the Chinese voice
STEP_FRAMES = 2  # a duration counts steps of 25 ms: two frames
LEAD_FRAMES = 3
TAIL_FRAMES = 2
JOIN_TAIL_FRAMES = 1
SOUND_LEADS_FRAMES = 6  # inside a phrase a word's sound begins about this much before its duration says

# No phoneme is shorter than a step of 25 ms, so the network must be asked for more speed than is wanted. Measured on 20
# sentences; what is asked for 2.0 gives 1.85.
_SPEED_WANTED = (0.5, 1.0, 1.1, 1.25, 1.4, 1.5, 1.75, 2.0)
_SPEED_ASKED = (0.5, 1.0, 1.11, 1.29, 1.49, 1.62, 2.1, 3.0)

_BINS = dsp.N_FFT // 2 + 1
_SILENT_RMS = 0.003
_NOISE_BLOCK = 32  # frames of noise drawn at once
_CONTEXT = dsp.N_FFT // HOP // 2  # frames each side that overlap a frame

Floats = npt.NDArray[np.float32]


class EnglishVoice:
    """Shared by all jobs; holds nothing of any of them."""

    def __init__(self, model: Path, assets: Path, threads: int) -> None:
        """Open the network that `voice_build` wrote and hibari's own tables. Raises `EngineError`."""
        self._network = Model(model, threads)
        vocabulary = json.loads((assets / "vocab.json").read_text("utf-8"))
        unknown_words = OOV(str(assets / "oov.onnx"), session=Model(assets / "oov.onnx", threads).session)
        self._phonemes = EnglishPhonemes(G2P(oov=unknown_words), vocabulary)

    def speak(self, piece: Piece, speed: float, pitch: float, seed: int, sizes: ChunkSizes) -> SpokenPiece | None:
        """Run the network and plan the chunks. None when no word has a phoneme.

        The noise in the voice is drawn from `seed` and the phonemes, so a piece sounds the same wherever it is made.
        """
        row = self._phonemes.row(piece)
        if not row.ids:
            return None
        ids = np.array([row.ids], np.int64)
        asked = np.interp(speed, _SPEED_WANTED, _SPEED_ASKED)
        *outputs, durations = self._network.run({"ids": ids, "speed": np.array([asked], np.float32)})
        *spectrum, f0 = (output[0] for output in outputs)
        noise_seed = (seed & 0xFFFF_FFFF_FFFF_FFFF, zlib.crc32(ids.tobytes()))
        wave = _Wave(spectrum, f0 * np.float32(pitch), noise_seed)
        ends = np.cumsum(durations) * STEP_FRAMES
        tail = JOIN_TAIL_FRAMES if piece.ending is Ending.JOIN else TAIL_FRAMES
        begin, end = wave.speech_frames(int(ends[0]), int(ends[_last_sounding(row) - 1]), tail)
        pause = pause_samples(piece.pause_ms, speed, LEAD_FRAMES + tail)
        spans = word_spans(row.owners, ends - SOUND_LEADS_FRAMES, len(piece.words), begin, end)
        return SpokenPiece(spans, _chunks(wave, begin, end, sizes, pause))


class _Wave:
    """One piece's spectrum, turned into samples where asked, by the arithmetic of `dsp.synth`."""

    def __init__(self, spectrum: list[Floats], f0: Floats, noise_seed: tuple[int, int]) -> None:
        self._harmonic, self._rotation, self._noise, self._rest, self._phase = spectrum
        self.frames = len(f0)
        self._pulses = np.pad(dsp.pulses(f0), dsp.N_FFT // 2, mode="reflect")
        self._noise_seed = noise_seed
        self._noise_blocks: dict[int, npt.NDArray[np.complex64]] = {}

    def samples(self, first: int, end: int) -> Samples:
        """Samples of frames `[first, end)`."""
        low, high = max(0, first - _CONTEXT), min(self.frames, end + _CONTEXT)
        windows = np.lib.stride_tricks.sliding_window_view(self._pulses, dsp.N_FFT)[low * HOP : high * HOP : HOP]
        spectrum = np.ascontiguousarray(dsp.rfft(windows * dsp.WIN_SRC, 1).T)
        rotation = np.tanh(self._rotation[:, low:high]) * np.float32(np.pi)
        spectrum *= dsp.ex(self._harmonic[:, low:high]) * _turn(rotation)
        spectrum += self._noise_rows(low, high) * dsp.ex(self._noise[:, low:high])
        spectrum += dsp.ex(self._rest[:, low:high]) * _turn(self._phase[:, low:high])
        audio: Samples = dsp.ola(spectrum)
        return audio[(first - low) * HOP : (end - low) * HOP]

    def _noise_rows(self, low: int, high: int) -> npt.NDArray[np.complex64]:
        """Unit noise `[bins, high - low]`; a frame's values depend on the seed and its number alone."""
        first = low // _NOISE_BLOCK
        blocks = [self._noise_block(number) for number in range(first, (high - 1) // _NOISE_BLOCK + 1)]
        return np.concatenate(blocks)[low - first * _NOISE_BLOCK : high - first * _NOISE_BLOCK].T

    def _noise_block(self, number: int) -> npt.NDArray[np.complex64]:
        if number not in self._noise_blocks:
            rng = np.random.default_rng([*self._noise_seed, number])
            drawn = rng.standard_normal((_NOISE_BLOCK, 2 * _BINS), dtype=np.float32)
            self._noise_blocks[number] = drawn.view(np.complex64)
        return self._noise_blocks[number]

    def speech_frames(self, first_phoneme: int, last_phoneme: int, tail: int) -> tuple[int, int]:
        """First and end frame of what is spoken, from the loudness near the frames where the durations place it.

        The network pads each piece with about 300 ms before and 400 ms after.
        """
        head_end = min(self.frames, first_phoneme + 24)
        loud = np.flatnonzero(self._levels(0, head_end) > _SILENT_RMS)
        begin = max(0, min(int(loud[0]) if len(loud) else first_phoneme, first_phoneme + 12) - LEAD_FRAMES)
        tail_start = max(begin + 1, min(last_phoneme, self.frames) - 4)
        loud = np.flatnonzero(self._levels(tail_start, self.frames) > _SILENT_RMS)
        end = tail_start + (int(loud[-1]) + 1 if len(loud) else 0)
        return begin, max(begin + 1, min(self.frames, end + tail))

    def _levels(self, first: int, end: int) -> Floats:
        """Root mean square of each frame in `[first, end)`."""
        if end <= first:
            return np.empty(0, np.float32)
        blocks = self.samples(first, end).reshape(-1, HOP)
        levels: Floats = np.sqrt((blocks * blocks).mean(axis=1))
        return levels


def _turn(angle: Floats) -> npt.NDArray[np.complex64]:
    """exp(i * angle)."""
    turned = np.empty(angle.shape, np.complex64)
    np.cos(angle, out=turned.real)
    np.sin(angle, out=turned.imag)
    return turned


def _chunks(wave: _Wave, begin: int, end: int, sizes: ChunkSizes, pause: int) -> Iterator[PlannedChunk]:
    total = end - begin

    def render(first: int, stop: int, silence: int) -> Samples:
        audio = wave.samples(begin + first, begin + stop) * np.float32(GAIN)
        shaped = fade_edges(audio, first * HOP, total * HOP)
        return np.concatenate([shaped, np.zeros(silence, np.float32)]) if silence else shaped

    for first, stop in sizes.cut(total):
        silence = pause if stop == total else 0
        yield PlannedChunk((stop - first) * HOP + silence, partial(render, first, stop, silence))


def _last_sounding(row: PhonemeRow) -> int:
    return max(i for i, owner in enumerate(row.owners) if owner is not None)
