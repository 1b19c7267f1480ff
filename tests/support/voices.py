"""Recordings and requests for learnt voices."""

import io
import wave
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

BOUNDARY: Final = "a-boundary"
CONSENT: Final = {"consent": "true"}


def wav(hz: float = 330.0, seconds: float = 3.5, rate: int = 16_000, level: float = 0.3) -> bytes:
    """A WAV file with a tone."""
    samples = level * 32_767 * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


def form(fields: Mapping[str, str | bytes]) -> bytes:
    """A body of multipart/form-data; what is bytes is a file."""
    body = b""
    for name, value in fields.items():
        file = '; filename="a.wav"\r\nContent-Type: audio/wav' if isinstance(value, bytes) else ""
        body += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode()
        body += (value if isinstance(value, bytes) else value.encode()) + b"\r\n"
    return body + f"--{BOUNDARY}--\r\n".encode()


def strongest_hz(pcm: bytes, rate: int = 24_000) -> float:
    """The pitch that is strongest in s16 samples."""
    samples = np.frombuffer(pcm, "<i2").astype(np.float64)
    return float(np.argmax(np.abs(np.fft.rfft(samples))) * rate / len(samples))


def voice_fields(**fields: Any) -> dict[str, Any]:
    """What `VoiceStore.add` is given."""
    given = {"name": "Me", "owner": "ann", "text": "你好", "kind": "tone", "fingerprint": "f", "data": b"\x00\xffdata"}
    return {**given, **fields}
