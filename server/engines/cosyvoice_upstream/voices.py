"""Learnt voices: the recording itself and its text, since upstream learns nothing that it could keep."""

import io
import json
from dataclasses import dataclass
from typing import Final

import soundfile

from server.engines.cosyvoice.voice.recording import read_recording

KIND: Final = "cosyvoice-upstream-1"


@dataclass(frozen=True, slots=True)
class RecordedVoice:
    """`wav`: a whole file, mono. `text`: what is said in it; empty: not told."""

    wav: bytes
    text: str


def make_recorded(recording: bytes, text: str) -> RecordedVoice:
    """A recording that was looked at. Raises ValueError, one line for its sender."""
    found = read_recording(recording)
    file = io.BytesIO()
    soundfile.write(file, found.samples, found.rate, format="WAV", subtype="PCM_16")
    return RecordedVoice(file.getvalue(), " ".join(text.split()))


def to_bytes(voice: RecordedVoice) -> bytes:
    """A line of JSON, then the sound file."""
    return json.dumps({"kind": KIND, "text": voice.text}).encode() + b"\n" + voice.wav


def from_bytes(data: bytes) -> RecordedVoice:
    """What `to_bytes` was given. Raises ValueError where these are other bytes."""
    line, _, wav = data.partition(b"\n")
    try:
        told = json.loads(line)
        if told["kind"] == KIND:
            return RecordedVoice(wav, str(told["text"]))
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError("these are no bytes of a voice that was learnt for cosyvoice-upstream")
