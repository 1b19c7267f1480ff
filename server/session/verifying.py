"""What a session from a journal must prove before its client may hear it: that it goes on with the same audio."""

from collections import deque
from dataclasses import dataclass, field, replace
from hashlib import sha256
from zlib import crc32

from protocol.server_messages import Done
from server.session.refusal import ResumeRefused
from server.session.utterance import OpenSegment, Utterance
from server.session.work import SpeakSegment, Work


@dataclass(slots=True)
class KnownSegment:
    """A segment that another process began to render. `samples` None: it did not finish."""

    work: Work
    segment: OpenSegment
    samples: int | None = None
    digest: bytes = b""
    codes: list[int] = field(default_factory=list)

    def again(self) -> tuple[Work, OpenSegment]:
        """The same work, to be placed anew; what was rendered otherwise than asked for is rendered so again."""
        segment = replace(
            self.segment, begun=False, samples=0, digest=sha256(), planned=True, recorded=self.samples is not None
        )
        work = self.work
        if (segment.parts or self.codes) and isinstance(work, SpeakSegment):
            parts, codes = segment.parts, tuple(self.codes)
            request = replace(work.request, parts=parts, reported=segment.recorded, codes=codes)
            work = SpeakSegment(work.utterance, request)
        return work, segment


@dataclass(slots=True)
class KnownUtterance:
    """What a journal tells of one utterance. `chunks`: end sample and CRC-32 of each rendered chunk, in order."""

    segments: list[KnownSegment] = field(default_factory=list)
    chunks: list[tuple[int, int]] = field(default_factory=list)
    done: Done | None = None

    @property
    def end(self) -> int:
        """Timeline samples that are known."""
        return self.chunks[-1][0] if self.chunks else 0

    def prepare(self, utterance: Utterance, first_sample: int) -> int:
        """Make `utterance` render again from the segment that reaches `first_sample` on. Returns where that begins."""
        known = deque(self.segments)
        utterance.rewind()
        while known:
            oldest = known[0]
            if oldest.samples is None or oldest.segment.first_sample + oldest.samples >= first_sample:
                break  # also where it ends exactly there: the client may lack the news of its end
            known.popleft()
            utterance.samples += oldest.samples
            utterance.settle(replace(oldest.segment, samples=oldest.samples), oldest.digest)
        utterance.again = deque(each.again() for each in known)
        return utterance.samples

    def text_position(self, sample: int) -> int:
        """Where the text of the segment with this sample begins."""
        spoken = [each.segment for each in self.segments if each.segment.first_sample <= sample]
        return spoken[-1].start if spoken else 0


class Restored:
    """What a session made from a journal knows, and how far its new audio must agree with the old."""

    def __init__(self) -> None:
        self.utterances: dict[int, KnownUtterance] = {}
        self.continued = False  # a client has come back
        self.verified = False  # what it has agrees with what is rendered now
        self._utterance = 0
        self._position = 0
        self._crc = 0
        self._expected: deque[tuple[int, int]] = deque()

    def knows(self, utterance: int, end_sample: int) -> bool:
        """Whether the journal has the timeline up to here."""
        known = self.utterances.get(utterance)
        return known is not None and end_sample <= known.end

    def expect(self, utterance: int, start: int, heard: int) -> None:
        """The client has `utterance` up to timeline sample `heard`; rendering begins at `start`."""
        self.continued = True
        known = self.utterances.get(utterance)
        self._utterance, self._position, self._crc = utterance, heard, 0
        self._expected = deque(self._between(known.chunks, start, heard) if known else ())
        self.verified = not self._expected

    @staticmethod
    def _between(chunks: list[tuple[int, int]], start: int, heard: int) -> list[tuple[int, int]]:
        """The chunks that begin at or after `start` and before `heard`."""
        begins = [0, *(end for end, _ in chunks)]
        return [chunk for begin, chunk in zip(begins, chunks, strict=False) if start <= begin < heard]

    def agrees_now(self, utterance: int, first_sample: int, pcm: bytes) -> bool:
        """Check what was rendered again, in whatever pieces it comes. Returns whether this was the last that counts.

        Raises ResumeRefused where it differs.
        """
        if self.verified or utterance != self._utterance:
            return False
        view, at = memoryview(pcm), first_sample
        while self._expected and len(view):
            end, crc = self._expected[0]
            count = min(end - at, len(view) // 2)
            self._crc = crc32(view[: 2 * count], self._crc)
            view, at = view[2 * count :], at + count
            if at == end:
                if self._crc != crc:
                    raise self.refusal()
                self._expected.popleft()
                self._crc = 0
        self.verified = not self._expected
        return self.verified

    def refusal(self) -> ResumeRefused:
        """The audio of now is not that of before."""
        known = self.utterances.get(self._utterance)
        return ResumeRefused(
            "epoch", self._utterance or None, known.text_position(self._position) if known is not None else None
        )
