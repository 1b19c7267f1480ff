"""From an engine's samples to payloads on the wire: gain, resampling, limiting and 16-bit PCM per segment
(`SegmentChain`), then the coders that cut or encode an utterance's timeline (`wire.py`). Pure: no clock, no task, no
socket. Codecs and containers, which the client needs too, are in `protocol.media`.
"""

from server.audio.chain import SegmentChain
from server.audio.resample import Resampler, scale_position

__all__ = ["Resampler", "SegmentChain", "scale_position"]
