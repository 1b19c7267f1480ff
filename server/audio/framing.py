"""Cutting a timeline's PCM into frames."""

from typing import Final

_BYTES_PER_SAMPLE: Final = 2


class PcmFramer:
    """Cuts s16le bytes, as they come, into frames of `frame_samples` samples.

    Frames inside one piece are views of it, without a copy; only a frame that spans pieces is put together. A view
    keeps its whole piece in memory, so pieces should be small beside what the holder of frames may keep.
    """

    def __init__(self, frame_samples: int) -> None:
        self._begun = bytearray()  # less than a frame, except just after the frames were made shorter
        self.set_frame_samples(frame_samples)

    @property
    def frame_samples(self) -> int:
        """Samples in a full frame."""
        return self._frame_bytes // _BYTES_PER_SAMPLE

    @property
    def held_samples(self) -> int:
        """Samples taken in that are in no frame yet."""
        return len(self._begun) // _BYTES_PER_SAMPLE

    def set_frame_samples(self, frame_samples: int) -> None:
        """Another frame length from the next frame on, the one begun included."""
        if frame_samples < 1:
            raise ValueError(f"a frame must have at least 1 sample, not {frame_samples}")
        self._frame_bytes = frame_samples * _BYTES_PER_SAMPLE

    def push(self, pcm: bytes) -> list[memoryview]:
        """Take PCM, any number of samples; return the frames that are now full. Raises ValueError for half a sample."""
        if len(pcm) % _BYTES_PER_SAMPLE:
            raise ValueError(f"{len(pcm)} bytes are not a whole number of 16-bit samples")
        view = memoryview(pcm)
        size = self._frame_bytes
        frames: list[memoryview] = []
        taken = 0
        while self._begun:
            missing = max(0, size - len(self._begun))
            self._begun += view[taken : taken + missing]
            taken = min(len(view), taken + missing)
            if len(self._begun) < size:
                return frames
            frames.append(memoryview(bytes(self._begun[:size])))
            del self._begun[:size]
        while len(view) - taken >= size:
            frames.append(view[taken : taken + size])
            taken += size
        self._begun += view[taken:]
        return frames

    def flush(self) -> list[memoryview]:
        """The frames begun, the last of them shorter than the others; none if there is nothing."""
        frames = self.push(b"")
        if self._begun:
            frames.append(memoryview(bytes(self._begun)))
            self._begun.clear()
        return frames
