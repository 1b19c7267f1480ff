"""How much audio may be on its way: bytes not yet acked, and the lead over what the listener has heard."""

from collections import deque
from dataclasses import dataclass

from protocol.frames import HEADER
from protocol.limits import MAX_UNACKED_BYTES


@dataclass(slots=True)
class _Span:
    """What is on its way of one utterance, in samples as frames count them."""

    sent: int = 0
    played: int = 0


class Flow:
    """Counts over all utterances of a session, in the order they are sent.

    `max_lead` (samples, None: no bound) is how far sending may run ahead of playing.
    """

    def __init__(self, max_lead: int | None) -> None:
        self.max_lead = max_lead
        self.unacked_bytes = 0  # headers included, so that silence without payload counts
        self._spans: dict[int, _Span] = {}  # utterances that are not known to be heard; at most the unfinished ones
        self._unacked: deque[tuple[int, int, int]] = deque()  # (utterance, end sample, bytes); bounded by unacked_bytes

    @property
    def lead(self) -> int:
        """Samples sent and, as far as known, not yet played."""
        return sum(span.sent - span.played for span in self._spans.values())

    @property
    def idle(self) -> bool:
        """Nothing is unacked."""
        return not self._unacked

    def may_send(self, samples: int, size: int) -> bool:
        """Whether a frame of this many samples and payload bytes may go now. One may always be on its way."""
        if self._unacked and self.unacked_bytes + size + HEADER.size > MAX_UNACKED_BYTES:
            return False
        if self.max_lead is None:
            return True
        lead = self.lead
        return lead <= 0 or lead + samples <= self.max_lead

    def sent(self, utterance: int, end_sample: int, samples: int, size: int) -> None:
        """A frame went out. Nobody has to ack one without samples."""
        if not samples:
            return
        self._spans.setdefault(utterance, _Span()).sent += samples
        self.unacked_bytes += size + HEADER.size
        self._unacked.append((utterance, end_sample, size + HEADER.size))

    def acked(self, utterance: int, next_sample: int, played_sample: int) -> None:
        """The client has `utterance` up to `next_sample`, and all before it, and played up to `played_sample`."""
        while self._unacked and self._unacked[0][:2] <= (utterance, next_sample):
            self.unacked_bytes -= self._unacked.popleft()[2]
        span = self._spans.get(utterance)
        if span is None or not played_sample:
            return  # an earlier utterance may still be heard
        span.played = min(span.sent, max(span.played, played_sample))
        for earlier in [known for known in self._spans if known < utterance]:
            del self._spans[earlier]

    def heard(self, utterance: int) -> None:
        """All of an utterance was heard, whatever its last frame was padded with."""
        self._spans.pop(utterance, None)

    def drop(self, utterance: int) -> None:
        """An utterance was cancelled: what was sent of it is not waited for."""
        self._spans.pop(utterance, None)
        kept = deque(frame for frame in self._unacked if frame[0] != utterance)
        self.unacked_bytes = sum(frame[2] for frame in kept)
        self._unacked = kept
