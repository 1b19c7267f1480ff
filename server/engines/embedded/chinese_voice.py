"""The Chinese voice at work: symbols -> mel of the whole piece -> samples, a stretch of frames at a time."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from server.engines.base import Samples
from server.engines.embedded.catalog import CHINESE
from server.engines.embedded.chinese_symbols import PAUSE, SILENCE, SymbolRow, symbols_for
from server.engines.embedded.model import Model
from server.engines.embedded.pieces import Ending, Piece
from server.engines.embedded.rendering import ChunkSizes, PlannedChunk, SpokenPiece, own_symbols, word_spans
from server.engines.embedded.reuse import Reuse, Spectrum
from server.engines.embedded.shaping import HOP, fade_edges, pause_samples
from server.engines.embedded.transpose import reach, read_at

POSTNET_CONTEXT = 10  # frames; see fastspeech2_graph
VOCODER_CONTEXT = 20  # frames each side: the result then differs from the whole by less than one 16-bit step
SOUND_LEADS_FRAMES = 1  # a word's sound begins about this much before its duration says
LEAD_FRAMES = 3  # silence kept before speech: 37.5 ms
JOIN_CONTEXT = 8  # frames of neighbouring speech at a join of words: there the vocoder must sound right, not be exact
LEAST_FRAMES = 10  # the vocoder's widest reflecting pad, 27 after threefold upsampling, needs more than 9
TAIL_FRAMES = 2  # silence kept after speech
JOIN_TAIL_FRAMES = 1
_SILENT_MEL = -1.2  # mean of the normalised mel below which a frame is silent: about -55 dB full scale
_ONSET_BANDS, _ONSET_MEL = 16, 0.35  # mean of the strongest bands where speech begins to be heard: about -44 dB

# Where the pitch goes when a constant is added to the model's normalised pitch (median of 10
# sentences). The model does not follow further; what is missing is made by reading its samples faster or slower.
_PITCH_SHIFT = (-3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0)
_PITCH_FACTOR = (0.683, 0.754, 0.797, 0.857, 0.913, 1.0, 1.079, 1.142, 1.193, 1.213)

Floats = npt.NDArray[np.float32]


class ChineseVoice:
    """Shared by all jobs; holds nothing of any of them."""

    def __init__(self, folder: Path, weight_type: str, threads: int) -> None:
        """Open the models that `voice_build` put into `folder`; `threads` for each call. Raises `EngineError`."""
        self._acoustic = Model(folder / f"acoustic_{weight_type}.onnx", threads)
        self._postnet = Model(folder / f"postnet_{weight_type}.onnx", threads)
        self._vocoder = Model(folder / "vocoder.onnx", threads)
        self._symbols: dict[str, int] = json.loads((folder / "symbols.json").read_text("utf-8"))
        self.reuse = Reuse(CHINESE.id)

    def speak(self, piece: Piece, speed: float, pitch: float, sizes: ChunkSizes) -> SpokenPiece | None:
        """Run the acoustic model and plan the chunks. None when no character has a reading."""
        row = symbols_for(piece, self._symbols)
        own = own_symbols(row.owners, piece.heard)
        if own is None:
            return None
        shift, ratio = _pitch_controls(pitch)
        spectrum = self._spectrum(piece, row, ratio / speed, shift)
        mel, ends = spectrum.mel, np.cumsum(spectrum.durations)
        heard = _heard(mel[0])
        place = _place(mel[0], heard, row, ends, own, piece.ending)
        kept = LEAD_FRAMES + (JOIN_TAIL_FRAMES if piece.ending is Ending.JOIN else TAIL_FRAMES)
        pause = pause_samples(piece.pause_ms, speed, kept)
        speech = _Speech(self, mel, place, ratio)
        spans = word_spans(row.owners, ends - SOUND_LEADS_FRAMES, len(piece.words), place.begin, place.end, heard)
        scaled = tuple((round(a / ratio), min(round(b / ratio), speech.samples)) for a, b in spans[piece.heard])
        return SpokenPiece(scaled, speech.chunks(sizes, pause))

    def _spectrum(self, piece: Piece, row: SymbolRow, duration_scale: float, pitch_shift: float) -> Spectrum:
        key = self.reuse.key(piece, duration_scale, pitch_shift)
        found = self.reuse.find(key)
        if isinstance(found, Spectrum):
            return found
        mel, durations = self._acoustic.run(
            {
                "ids": np.array([[self._symbols[s] for s in row.symbols]], np.int64),
                "duration_scale": np.array([duration_scale], np.float32),
                "pitch_scale": np.ones(1, np.float32),
                "pitch_shift": np.array([pitch_shift], np.float32),
            },
        )
        if self.reuse.active:  # what is kept must not hold on to the model's own memory
            mel, durations = mel.copy(), durations.copy()
        spectrum = Spectrum(mel, durations)
        self.reuse.keep(key, spectrum)
        return spectrum

    def refine(self, mel: Floats) -> Floats:
        """A decoder's mel `[1, frames, 80]` sharpened by the postnet; exact but for `POSTNET_CONTEXT` at its edges."""
        refined: Floats = self._postnet.run({"mel_before": mel})[0]
        return refined

    def vocode(self, mel: Floats) -> Samples:
        """`HOP` samples a frame of a refined mel `[1, frames, 80]`; exact but for `VOCODER_CONTEXT` at its edges."""
        frames = mel.shape[1]
        if frames < LEAST_FRAMES:
            mel = np.pad(mel, ((0, 0), (0, LEAST_FRAMES - frames), (0, 0)), mode="edge")
        audio: Samples = self._vocoder.run({"mel": mel})[0][0]
        return audio[: frames * HOP]


def _pitch_controls(pitch: float) -> tuple[float, float]:
    """What to add to the model's pitch, and by how much faster than written its samples are to be read (mostly 1)."""
    shift = float(np.interp(pitch, _PITCH_FACTOR, _PITCH_SHIFT))
    return shift, pitch / min(max(pitch, _PITCH_FACTOR[0]), _PITCH_FACTOR[-1])


@dataclass(frozen=True, slots=True)
class _Place:
    """Frames `[begin, end)` of a mel are a piece; `left` and `right` more are speech to lead the vocoder in and out."""

    begin: int
    end: int
    left: int = 0
    right: int = 0


class _Speech:
    """One piece's mel, refined as far as needed. Frames before it are postnet context, and only those at a join of
    words are vocoded, too: others are silence.

    `ratio` samples of the vocoder go into one sample of output.
    """

    def __init__(self, voice: ChineseVoice, mel: Floats, place: _Place, ratio: float) -> None:
        self._voice = voice
        self._mel = mel[:, : place.end + place.right]
        self._begin = place.begin
        self._lowest, self._highest = -place.left, place.end - place.begin + place.right
        self._ratio = ratio
        self._vocoder_frames = place.end - place.begin
        self._frames: int = max(1, round(self._vocoder_frames / ratio))

    @property
    def samples(self) -> int:
        return self._frames * HOP

    def chunks(self, sizes: ChunkSizes, pause: int) -> Iterator[PlannedChunk]:
        for first, end in sizes.cut(self._frames):
            silence = pause if end == self._frames else 0
            yield PlannedChunk((end - first) * HOP + silence, partial(self._render, first, end, silence))

    def _render(self, first: int, end: int, silence: int) -> Samples:
        audio = self._vocoded(first, end) if self._ratio == 1 else self._transposed(first * HOP, end * HOP)
        shaped = fade_edges(audio, first * HOP, self.samples)
        return np.concatenate([shaped, np.zeros(silence, np.float32)]) if silence else shaped

    def _transposed(self, first: int, end: int) -> Samples:
        """Output samples `[first, end)` read from the vocoder's at another speed."""
        margin = reach(self._ratio) + 1
        low = max(0, int(first * self._ratio - margin) // HOP)
        high = min(self._vocoder_frames, -(-int(end * self._ratio + margin) // HOP))
        return read_at(self._vocoded(low, high), low * HOP, first, end, self._ratio)

    def _vocoded(self, first: int, end: int) -> Samples:
        """The vocoder's samples of its frames `[first, end)`."""
        low, high = max(self._lowest, first - VOCODER_CONTEXT), min(self._highest, end + VOCODER_CONTEXT)
        return self._voice.vocode(self._refined(low, high))[(first - low) * HOP : (end - low) * HOP]

    def _refined(self, low: int, high: int) -> Floats:
        """Refined mel frames `[low, high)`, counted from the first frame spoken."""
        low, high = low + self._begin, high + self._begin
        left, right = max(0, low - POSTNET_CONTEXT), min(self._mel.shape[1], high + POSTNET_CONTEXT)
        return self._voice.refine(self._mel[:, left:right])[:, low - left : high - left]


def _heard(mel: Floats) -> npt.NDArray[np.bool_]:
    """Which frames can be heard as speech, by their strongest bands: this finds hissing consonants too."""
    heard: npt.NDArray[np.bool_] = np.partition(mel, -_ONSET_BANDS, axis=1)[:, -_ONSET_BANDS:].mean(axis=1) > _ONSET_MEL
    return heard


def _place(
    mel: Floats,
    heard: npt.NDArray[np.bool_],
    row: SymbolRow,
    ends: npt.NDArray[np.int64],
    own: tuple[int, int],
    ending: Ending,
) -> _Place:
    """Where the words of the symbols `own` are in the mel, with the silence kept around them.

    The last vowel dies away inside the closing pause; what the model emits behind that is not speech. Next to other
    words the durations decide.
    """
    first, stop = own
    begin, left = _begin(heard[: ends[stop - 1]], row, ends, first)
    if row.owners[stop] is not None:
        end = max(begin + 1, int(ends[stop - 1]) - SOUND_LEADS_FRAMES)
        return _Place(begin, end, left, min(JOIN_CONTEXT, len(mel) - end))
    loud = mel.mean(axis=1) > _SILENT_MEL
    assert row.symbols[stop] in (PAUSE, SILENCE)
    sound_ends, last_possible = int(ends[stop - 1]), int(ends[stop])
    while sound_ends < last_possible and loud[sound_ends]:
        sound_ends += 1
    tail = JOIN_TAIL_FRAMES if ending is Ending.JOIN else TAIL_FRAMES
    return _Place(begin, max(begin + 1, min(sound_ends + tail, len(mel))), left)


def _begin(heard: npt.NDArray[np.bool_], row: SymbolRow, ends: npt.NDArray[np.int64], first: int) -> tuple[int, int]:
    """The first frame to be heard, and how many before it are speech, if the symbol before `first` is no silence."""
    at = int(ends[first - 1])
    if row.owners[first - 1] is not None:
        begin = max(0, at - SOUND_LEADS_FRAMES)
        return begin, min(JOIN_CONTEXT, begin)
    silence = int(ends[first - 2]) if first > 1 else 0
    searched = heard[max(silence, at - LEAD_FRAMES) if first > 1 else 0 :]
    onset = len(heard) - len(searched) + int(np.argmax(searched)) if searched.any() else at
    return max(silence, onset - LEAD_FRAMES), 0
