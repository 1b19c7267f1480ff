"""A voice is learnt: what the models are given of a speaker, computed once of a recording."""

from typing import Final

import numpy as np

from server.engines.cosyvoice.config import ModelConfig, ModelVersion
from server.engines.cosyvoice.text.marks import markup
from server.engines.cosyvoice.text.wording import text_of, wording
from server.engines.cosyvoice.voice.data import VoiceData
from server.engines.cosyvoice.voice.features import MEL_RATE, SPEECH_RATE, flow_mel, speaker_features, speech_features
from server.engines.cosyvoice.voice.onnx_models import VoiceModels
from server.engines.cosyvoice.voice.recording import Recording
from server.text.languages import dominating_language
from server.text.normaliser import normalise
from server.text.tokens import Boundary, Cut, CutCause

_FASTEST: Final = 12  # words or Hanzi a second; auctioneers reach 7
_SLOWEST: Final = 0.3  # words or Hanzi a second, pauses included; who dictates slowly says one
_LETTERS: Final = 8  # of a word; where a script has no blanks, a "word" may be a sentence
_LONGEST_TEXT: Final = 2000  # characters
_FRAMES_PER_CODE: Final = 2


def learn_voice(recording: Recording, text: str, models: VoiceModels, config: ModelConfig) -> VoiceData:
    """`text`: what is said in the recording; empty: not told, then only the sound of the voice is learnt. Raises
    ValueError, one line that begins with "text", where that cannot be; ModelError where a model fails.
    """
    read = spoken_text(text, recording.seconds, config.version)
    speech = recording.at(SPEECH_RATE)
    mel = flow_mel(recording.at(MEL_RATE), config.mel_top_hz)
    codes = models.codes(speech_features(speech))
    # The flow needs two frames for each code: what either has more is let go of.
    length = min(len(codes), len(mel) // _FRAMES_PER_CODE)
    return VoiceData(
        read, codes[:length], np.ascontiguousarray(mel[: _FRAMES_PER_CODE * length]),
        models.embedding(speaker_features(speech)),
    )  # fmt: skip


def spoken_text(text: str, seconds: float, version: ModelVersion) -> str:
    """What is said in a recording of that length, as the language model reads it. Raises ValueError."""
    if not text.strip():
        return ""
    if len(text) > _LONGEST_TEXT:
        raise ValueError(f"text has {len(text):,} characters; at most {_LONGEST_TEXT:,} are allowed")
    cut = Cut(0, len(text), text, Boundary.SENTENCE, CutCause.END, dominating_language(text, "zh"))
    tokens = normalise(cut, markup=markup(version))
    words = sum(token.kind == "word" for token in tokens)
    if not words:
        raise ValueError("text says nothing: give what is said in the recording, or leave it out")
    if words > _FASTEST * seconds:
        raise ValueError(
            f"text has {words} words, which nobody says in {seconds:.1f} s: give exactly what is said in the recording"
        )
    said = sum(max(1, len(token.text) // _LETTERS) for token in tokens if token.kind == "word")
    if said < _SLOWEST * seconds:
        raise ValueError(
            f"text has {words} word{'s' * (words > 1)}, too few for {seconds:.1f} s of speech: give all that is said"
            " in the recording, or leave it out"
        )
    return text_of(wording(tokens, Boundary.SENTENCE))
