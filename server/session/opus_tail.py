"""Opus packets that a client has, kept to warm a new decoder up."""

from collections import deque
from typing import Final

from protocol.frames import AudioFrame, Codec, FrameFlag
from server.session.entries import Entry, Place, end_of

MOST: Final = 40  # packets: 80 ms of the shortest, 2.5 ms, and some


class OpusTail:
    """The newest packets that were confirmed."""

    def __init__(self) -> None:
        self._entries: deque[tuple[AudioFrame, int]] = deque(maxlen=MOST)  # with what of the journal they waited for

    def __len__(self) -> int:
        return len(self._entries)

    def confirmed(self, frame: AudioFrame, after_record: int) -> None:
        """The client has this frame. What warmed a decoder up comes again, and is here already."""
        newer = not self._entries or end_of(frame) > end_of(self._entries[-1][0])
        if frame.codec is Codec.OPUS and newer:
            self._entries.append((frame, after_record))

    def before(self, place: Place, preroll: int) -> list[Entry]:
        """The packets that reach into the `preroll` coded samples before `place`; none where the utterance has no other
        to decode.
        """
        utterance, sample = place
        warm = [
            (frame, after_record)
            for frame, after_record in self._entries
            if frame.utterance == utterance and sample - preroll < frame.end_sample <= sample
        ]
        if any(frame.flags & FrameFlag.LAST for frame, _ in warm):
            return []
        return [Entry(frame, after_record) for frame, after_record in warm]
