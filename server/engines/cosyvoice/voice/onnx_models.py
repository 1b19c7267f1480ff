"""The two models that come as ONNX files: speech to codes, and speech to a speaker.

A voice is learnt rarely and the files are large (about 500 MB and more), so each is loaded for one recording only.
"""

import hashlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

from server.engines.cosyvoice.config import ModelVersion
from server.engines.cosyvoice.sections import ModelError, one_line
from server.engines.cosyvoice.voice.features import Floats

EMBEDDING: Final = 192
_PART: Final = 1 << 20


class VoiceModels:
    """Those of one model folder."""

    def __init__(self, folder: Path, version: ModelVersion, codes: int) -> None:
        """`codes`: how many speech codes there are. Raises ModelError where a file is missing."""
        self._codec = folder / f"speech_tokenizer_v{version}.onnx"
        self._speaker = folder / "campplus.onnx"
        self._codes = codes
        self.fingerprint = _fingerprint(self._codec)  # of what makes the codes
        if not self._speaker.is_file():
            raise ModelError(f"{self._speaker}: is missing")

    def codes(self, features: Floats) -> tuple[int, ...]:
        """The speech codes, 25 a second, of `speech_features`. Raises ModelError."""
        length = np.array([features.shape[2]], np.int32)
        codes = tuple(int(code) for code in _run(self._codec, features, length).reshape(-1))
        if not codes or min(codes) < 0 or max(codes) >= self._codes:
            raise ModelError(f"{self._codec}: must give codes from 0 to {self._codes - 1:,}")
        return codes

    def embedding(self, features: Floats) -> Floats:
        """The speaker, `[192]`, of `speaker_features`. Raises ModelError."""
        embedding: Floats = _run(self._speaker, features[np.newaxis]).reshape(-1).astype(np.float32)
        if embedding.shape != (EMBEDDING,) or not np.isfinite(embedding).all():
            raise ModelError(f"{self._speaker}: must give {EMBEDDING} numbers")
        return embedding


def _run(file: Path, *inputs: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # it must not take the processors from those who are speaking
    options.log_severity_level = 4  # what goes wrong is raised
    try:
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        return session.run(None, dict(zip(names, inputs, strict=True)))[0]
    except Exception as error:  # the library raises classes of its own without a common one
        raise ModelError(f"{file}: cannot be used: {one_line(error)}") from error


def _fingerprint(file: Path) -> str:
    """By its size and both ends: reading all of it would take seconds of every start."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            digest = hashlib.sha256(f"{size}:".encode() + stream.read(_PART))
            stream.seek(max(0, size - _PART))
            digest.update(stream.read(_PART))
    except OSError as error:
        raise ModelError(
            f"{file}: {'is missing' if isinstance(error, FileNotFoundError) else error.strerror}"
        ) from None
    return digest.hexdigest()[:32]
