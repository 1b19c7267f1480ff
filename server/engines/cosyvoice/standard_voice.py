"""The voice of a model that comes with none: it is learnt from a sentence that the embedded engine says.

Its English voice is free for any use, so whoever starts a server hears something before anybody was recorded.
"""

import io
from typing import Final

import numpy as np
import soundfile

from server.engines.base import Chunk, RenderPlan, Segment, SegmentEnd, SegmentFailed, Voice
from server.engines.embedded import create
from server.text.normaliser import normalise
from server.text.tokens import Boundary, Cut, CutCause

STANDARD_VOICE: Final = Voice(
    "hibari",
    "Hibari",
    ("zh", "en"),
    "learnt from a sentence of the embedded voice en-hibari; learn a voice of a recording for a natural one",
    "Apache-2.0",
)
_TEXT: Final = (
    "The lighthouse keeper climbed the narrow stairs every evening, lit the lamp before the ships came in,"
    " and listened to the waves until the morning."
)


def standard_recording() -> tuple[bytes, str]:
    """A WAV file, and what is said in it. Takes a second. Raises EngineError where the embedded voice cannot be had."""
    engine = create({"voices": "en-hibari"})
    cut = Cut(0, len(_TEXT), _TEXT, Boundary.SENTENCE, CutCause.END, "en")
    sound = []
    try:
        job = engine.prepare(Segment(0, normalise(cut), Boundary.SENTENCE, "en-hibari"), RenderPlan("block"))
        while True:
            for event in engine.step([job]):
                if isinstance(event, Chunk):
                    sound.append(event.samples)
                elif isinstance(event, SegmentFailed):
                    raise event.error
                elif isinstance(event, SegmentEnd):
                    file = io.BytesIO()
                    rate = engine.capabilities.sample_rate
                    soundfile.write(file, np.concatenate(sound), rate, format="WAV", subtype="PCM_16")
                    return file.getvalue(), _TEXT
    finally:
        engine.close()
