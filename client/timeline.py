"""One utterance as it arrives: no gap, nothing twice, and the digests that prove it whole. Pure."""

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from client.errors import DigestMismatch, Gap, ServerMisbehaved
from client.saved import SavedSession
from protocol.frames import AudioFrame, Codec, FrameFlag
from protocol.server_messages import Done, SegmentBegin, SegmentEnd

if TYPE_CHECKING:
    from hashlib import _Hash

MAX_OPEN_SEGMENTS: Final = 4_096  # begun, and audio or end still missing; a server has a handful
ZEROS: Final = bytes(65_536)


@dataclass(slots=True)
class _Segment:
    number: int
    first_sample: int
    hash: "_Hash" = field(default_factory=hashlib.sha256)
    samples: int | None = None  # known from segment_end on
    digest: str = ""
    is_checked: bool = True  # False: its first samples came to another process


class Timeline:
    """Follows the audio frames and segment events of one utterance.

    Samples are the frame's own: timeline samples for PCM, coded samples for Opus. PCM may go on as Opus. Every method
    raises ServerMisbehaved (or DigestMismatch) when the server contradicts itself, Gap where something is missing.
    """

    def __init__(self, utterance: int, pre_skip: int = 0) -> None:
        self.utterance = utterance
        self.next_sample = 0
        self.payload_bytes = 0
        self.segments = 0
        self._pre_skip = pre_skip
        self.last_came = False  # the frame that says it is the last one
        self._codec: Codec | None = None
        self._pcm_end: int | None = None  # where Opus took over from PCM: what comes later has no samples to hash
        self._open: deque[_Segment] = deque()
        self._known_end = 0  # where the last segment that is complete ends
        self._digests = hashlib.sha256()
        self._wire = hashlib.sha256()
        self._from_start = True  # False: what came before was checked by another process

    def go_on(self, saved: SavedSession) -> None:
        """Another process took the PCM before `saved.next_sample`: only segments that begin later can be checked."""
        self._from_start = False
        self._codec, self.next_sample = Codec.PCM, saved.next_sample
        self._open.extend(
            _Segment(each.number, each.first_sample, samples=each.samples, digest=each.digest, is_checked=False)
            for each in saved.segments
        )

    @property
    def is_coded(self) -> bool:
        """Whether positions count coded samples (Opus) instead of timeline samples."""
        return self._codec is Codec.OPUS

    @property
    def received(self) -> int:
        """How far the timeline is here, in its own samples: without the codec's delay, without the last padding."""
        if not self.is_coded:
            return self.next_sample
        received = max(0, self.next_sample - self._pre_skip)
        return min(received, self._known_end) if self.last_came else received

    def new_generation(self) -> None:
        """Another connection carries the session from here on: the wire's digest covers what it brings."""
        self._wire = hashlib.sha256()

    def audio(self, frame: AudioFrame) -> int:
        """Takes a frame. Returns how many of its first samples are already known (its whole count: a duplicate)."""
        next_sample = self.next_sample
        if self._codec is Codec.PCM and frame.codec is Codec.OPUS:
            next_sample += self._pre_skip
        elif self._codec is Codec.OPUS and frame.codec is Codec.PCM:
            raise ServerMisbehaved(f"utterance {self.utterance} went from Opus back to PCM")
        known = next_sample - frame.first_sample
        if known < 0:
            raise Gap(f"utterance {self.utterance} has a gap: sample {frame.first_sample} came after {next_sample}")
        if self._codec is not frame.codec:
            self._pcm_end = None if frame.codec is Codec.PCM else self.next_sample
            self._codec, self.next_sample = frame.codec, next_sample
        self.last_came |= bool(frame.flags & FrameFlag.LAST)
        self._wire.update(frame.payload)
        self.payload_bytes += len(frame.payload)
        if known >= frame.count:
            return frame.count
        if frame.codec is Codec.PCM:
            self._hash_samples(frame, known)
        self.next_sample = frame.end_sample
        self._close_segments()
        return known

    def begin(self, event: SegmentBegin) -> None:
        """A segment starts."""
        if len(self._open) >= MAX_OPEN_SEGMENTS:
            raise ServerMisbehaved(f"utterance {self.utterance} has more than {MAX_OPEN_SEGMENTS} unfinished segments")
        if self._open and event.first_sample < self._open[-1].first_sample:
            raise ServerMisbehaved(f"segment {event.segment} starts before segment {self._open[-1].number}")
        self._open.append(_Segment(event.segment, event.first_sample))

    def end(self, event: SegmentEnd) -> None:
        """A segment is complete on the server's side; its audio may still be on the way."""
        for segment in self._open:
            if segment.number == event.segment:
                segment.samples, segment.digest = event.samples, event.digest
                self._close_segments()
                return
        raise ServerMisbehaved(f"segment {event.segment} of utterance {self.utterance} ended but never began")

    def lacks_audio(self, event: Done) -> bool:
        """Whether audio is missing: that of a cancelled utterance does not come again after a resume."""
        return self.next_sample < event.samples + (self._pre_skip if self.is_coded else 0)

    def done(self, event: Done) -> None:
        """Checks the whole utterance against `done`."""
        end = event.samples
        if self._codec is Codec.OPUS:
            if self.next_sample < end + self._pre_skip:
                raise ServerMisbehaved(
                    f"utterance {self.utterance} has {end + self._pre_skip} coded samples, {self.next_sample} arrived"
                )
        elif self.next_sample != end:
            raise ServerMisbehaved(f"utterance {self.utterance} has {end} samples, {self.next_sample} arrived")
        if self._open:
            raise ServerMisbehaved(f"segment {self._open[0].number} of utterance {self.utterance} never ended")
        if self._from_start and self._digests.hexdigest() != event.digest:
            raise DigestMismatch(f"utterance {self.utterance} is not the sum of its segments: discard it")
        if self._wire.hexdigest() != event.wire_digest:
            raise DigestMismatch(f"the audio of utterance {self.utterance} was altered on its way: discard it")

    def _hash_samples(self, frame: AudioFrame, skip: int) -> None:
        """Feeds new PCM samples to the segments they belong to: each to the last one that began at or before it."""
        at, end = frame.first_sample + skip, frame.end_sample
        for segment, until in self._shares(at, end):
            count = until - at
            if count > 0:
                if frame.flags & FrameFlag.SILENCE_RUN:
                    _hash_zeros(segment.hash, 2 * count)
                else:
                    offset = 2 * (at - frame.first_sample)
                    segment.hash.update(frame.payload[offset : offset + 2 * count])
                at = until
        if at < end:
            raise ServerMisbehaved(f"audio of utterance {self.utterance} at sample {at} belongs to no segment")

    def _shares(self, at: int, end: int) -> Iterator[tuple[_Segment, int]]:
        for index, segment in enumerate(self._open):
            following = self._open[index + 1].first_sample if index + 1 < len(self._open) else end
            if segment.samples is not None:
                following = min(following, segment.first_sample + segment.samples)
            if segment.first_sample <= at < following:
                until = min(following, end)
                yield segment, until
                at = until

    def _close_segments(self) -> None:
        while self._open and (head := self._open[0]).samples is not None:
            end = head.first_sample + head.samples
            if self._codec is not Codec.OPUS and end > self.next_sample:
                return
            provable = head.is_checked and (self._pcm_end is None or end <= self._pcm_end)
            if provable and head.hash.hexdigest() != head.digest:
                raise DigestMismatch(
                    f"segment {head.number} of utterance {self.utterance} is not what the server made: discard it"
                )
            self._known_end = end
            self._digests.update(_raw(head.digest))
            self.segments += 1
            self._open.popleft()


def _raw(digest: str) -> bytes:
    try:
        return bytes.fromhex(digest)
    except ValueError:
        raise ServerMisbehaved(f"a digest is 64 hex digits, not {digest[:80]!r}") from None


def _hash_zeros(state: "_Hash", size: int) -> None:
    while size > 0:
        state.update(ZEROS[:size] if size < len(ZEROS) else ZEROS)
        size -= len(ZEROS)
