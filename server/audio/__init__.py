"""From an engine's samples to frames on the wire: gain, resampling, limiting and 16-bit PCM per segment
(`SegmentChain`), and the cutting of the timeline into frames (`PcmFramer`). Pure: no clock, no task, no socket. Codecs
and containers, which the client needs too, are in `protocol.media`.
"""

from server.audio.chain import SegmentChain
from server.audio.framing import PcmFramer
from server.audio.resample import Resampler, scale_position

__all__ = ["PcmFramer", "Resampler", "SegmentChain", "scale_position"]
