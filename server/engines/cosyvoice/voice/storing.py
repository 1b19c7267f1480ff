"""Voices as bytes: a safetensors file with the text and what it was made by."""

import json
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from server.engines.cosyvoice.config import ModelVersion
from server.engines.cosyvoice.voice.data import VoiceData

FORMAT: Final = 1
_NAME: Final = "cosyvoice"


def to_bytes(voice: VoiceData, version: ModelVersion, tokenizer: str) -> bytes:
    """`tokenizer` is the fingerprint of what made its codes: the speech tokenizer's file."""
    told = {"format": FORMAT, "version": version, "tokenizer": tokenizer, "text": voice.text}
    arrays: dict[str, npt.NDArray[Any]] = {
        "codes": np.array(voice.codes, np.uint16),
        "mel": np.ascontiguousarray(voice.mel, np.float32),
        "embedding": np.ascontiguousarray(voice.embedding, np.float32),
    }
    return save(arrays, {_NAME: json.dumps(told, ensure_ascii=False)})


def from_bytes(data: bytes, version: ModelVersion, tokenizer: str) -> VoiceData:
    """The voice that `to_bytes` made. Raises ValueError, one line that says why it cannot be used: it is none, or was
    learnt with another model.
    """
    try:
        arrays = load(data)
        told = json.loads(_metadata(data)[_NAME])
        text, made = str(told["text"]), (told["format"], told["version"], told["tokenizer"])
        codes, mel, embedding = arrays["codes"], arrays["mel"], arrays["embedding"]
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise ValueError("this is no voice of CosyVoice") from error
    if made[0] != FORMAT:
        raise ValueError(f"the voice is of format {made[0]}; this server reads format {FORMAT}: learn it again")
    if made[1:] != (version, tokenizer):
        raise ValueError(f"the voice was learnt with another model (CosyVoice {made[1]}): learn it again with this one")
    if mel.dtype != np.float32 or embedding.dtype != np.float32 or codes.ndim != 1:
        raise ValueError("this is no voice of CosyVoice")
    return VoiceData(text, tuple(codes.tolist()), mel, embedding)


def _metadata(data: bytes) -> dict[str, str]:
    """What a safetensors file tells in its header; the library reads it of files only."""
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    assert isinstance(metadata, dict)
    return metadata
