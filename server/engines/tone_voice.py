"""How the test engine learns a voice: it sounds at the pitch that is strongest in the recording."""

import io
import json
import wave
from typing import Final

import numpy as np

LENGTH_S: Final = (3.0, 30.0)
LEAST_RATE: Final = 8_000
PITCH_HZ: Final = (50.0, 2_000.0)
SILENT: Final = 0.001  # -60 dBFS
_FULL_SCALE: Final = {1: ("<u1", 2**7), 2: ("<i2", 2**15), 4: ("<i4", 2**31)}  # by the bytes of a sample


def learn(recording: bytes, text: str) -> bytes:
    """What `pitch_of` reads, of a WAV file with 3 to 30 s of sound. Raises ValueError, one line."""
    if text and not any(character.isalnum() for character in text):
        raise ValueError("text has no word in it")
    try:
        with wave.open(io.BytesIO(recording)) as file:
            rate, width, channels = file.getframerate(), file.getsampwidth(), file.getnchannels()
            frames = file.readframes(round(LENGTH_S[1] * rate) + 1)
    except (wave.Error, EOFError, ValueError):
        raise ValueError("the recording is no WAV file with PCM samples") from None
    if rate < LEAST_RATE or width not in _FULL_SCALE:
        raise ValueError(f"the recording must have samples of 8, 16 or 32 bits at {LEAST_RATE} Hz or more")
    kind, full_scale = _FULL_SCALE[width]
    whole = len(frames) // (width * channels) * width * channels
    values = np.frombuffer(frames[:whole], kind).astype(np.float64) - full_scale * (width == 1)
    samples = values.reshape(-1, channels).mean(axis=1) / full_scale
    length = len(samples) / rate
    if not LENGTH_S[0] <= length <= LENGTH_S[1]:
        raise ValueError(f"the recording must be {LENGTH_S[0]:g} to {LENGTH_S[1]:g} s long, not {length:.1f} s")
    if np.abs(samples).max() < SILENT:
        raise ValueError("the recording is silent")
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    frequencies = np.fft.rfftfreq(len(samples), 1 / rate)
    heard = (frequencies >= PITCH_HZ[0]) & (frequencies <= PITCH_HZ[1])
    return json.dumps({"hz": round(float(frequencies[heard][np.argmax(spectrum[heard])]), 1)}).encode()


def pitch_of(voice: bytes) -> float:
    """The pitch of a learnt voice, in Hz."""
    return float(json.loads(voice)["hz"])
