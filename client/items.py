"""What an utterance yields: stretches of audio, and the server's events between them, in the order of the timeline."""

from dataclasses import dataclass, field
from typing import TypeAlias

from protocol.frames import AudioFrame, Codec, FrameFlag, unpack_packets
from protocol.server_messages import Event


@dataclass(frozen=True, slots=True)
class Audio:
    """One stretch of an utterance's timeline.

    `first_sample` counts samples from the utterance's start at the session's rate. `pcm` is s16le mono, empty when the
    session was opened with `decode=False` and Opus; then `packets` holds the Opus packets as the server sent them and
    `first_sample` and `count` are coded samples (the decoder's delay, `session.pre_skip`, not yet removed). `reset`:
    these packets are for a new decoder, and may begin before the end of what came already: that part only warms it up.
    """

    utterance: int
    first_sample: int
    count: int
    pcm: bytes = field(default=b"", repr=False)
    packets: tuple[bytes, ...] = field(default=(), repr=False)
    last: bool = False
    reset: bool = False

    @property
    def end_sample(self) -> int:
        """The sample after the last one."""
        return self.first_sample + self.count


Item: TypeAlias = Audio | Event


def audio_item(frame: AudioFrame, skip: int, shift: int = 0) -> Audio:
    """What a frame holds after its first `skip` samples, which are known already. Opus packets stay whole; a new
    decoder gets all of them.

    `shift`: samples of the utterance that came before the frame's own numbering.
    """
    last = bool(frame.flags & FrameFlag.LAST)
    first = frame.first_sample + shift
    if frame.codec is Codec.OPUS:
        reset = bool(frame.flags & FrameFlag.DECODER_RESET)
        packets = tuple(unpack_packets(frame.payload))
        length = frame.count // max(1, len(packets))
        known = 0 if reset or not length else skip // length
        return Audio(
            frame.utterance, first + known * length, frame.count - known * length, b"", packets[known:], last, reset
        )
    count = frame.count - skip
    pcm = bytes(2 * count) if frame.flags & FrameFlag.SILENCE_RUN else bytes(frame.payload[2 * skip :])
    return Audio(frame.utterance, first + skip, count, pcm, (), last)
