"""The speakers that a model folder comes with: `spk2info.pt`."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from server.engines.cosyvoice.sections import ModelError, one_line
from server.engines.cosyvoice.text.prompts import recorded_text
from server.engines.cosyvoice.text.tokenizer import TextTokenizer
from server.engines.cosyvoice.voice.data import VoiceData


def read_speakers(file: Path, tokenizer: TextTokenizer, codes: int) -> dict[str, VoiceData]:
    """By id, in the file's order; `codes`: how many speech codes there are. No file: none. A speaker is an embedding
    alone (trained in), or what was kept of a recording. Only tensors and plain values are read of the file. Raises
    ModelError.
    """
    if not file.is_file():
        return {}
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise ModelError(f"{file}: cannot be read as speakers: {one_line(error)}") from error
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise ModelError(f"{file}: must hold speakers by their names")
    return {name: _speaker(file, name, told, tokenizer, codes) for name, told in found.items()}


def _speaker(file: Path, name: str, told: Any, tokenizer: TextTokenizer, codes: int) -> VoiceData:
    try:
        embedding = told["embedding"] if "embedding" in told else told["flow_embedding"]
        speaker = _floats(embedding).reshape(-1)
        if "flow_prompt_speech_token" not in told:
            return VoiceData("", (), np.zeros((0, 80), np.float32), speaker)
        spoken = tuple(int(code) for code in told["flow_prompt_speech_token"].reshape(-1))
        if spoken and not 0 <= min(spoken) <= max(spoken) < codes:
            raise ValueError(f"has codes beyond 0 to {codes - 1:,}")
        ids = [int(number) for number in told["prompt_text"].reshape(-1)] if "prompt_text" in told else []
        mel = _floats(told["prompt_speech_feat"]).reshape(-1, 80)
        length = min(len(spoken), len(mel) // 2)
        return VoiceData(recorded_text(ids, tokenizer), spoken[:length], mel[: 2 * length], speaker)
    except (AttributeError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"{file}: {name[:50]!r} is no speaker: {one_line(error)}") from error


def _floats(tensor: Any) -> npt.NDArray[np.float32]:
    array: npt.NDArray[np.float32] = np.ascontiguousarray(tensor.detach().float().numpy())
    if not np.isfinite(array).all():
        raise ValueError("holds numbers that are none")
    return array
