"""How much audio may be on its way: bytes not yet acked, and the lead over what the listener has heard."""

from collections import deque
from dataclasses import dataclass

from protocol.frames import HEADER


@dataclass(frozen=True, slots=True)
class _Span:
    """What is on its way of one utterance, in samples as frames count them."""

    sent: int
    played: int


@dataclass(frozen=True, slots=True)
class _Unacked:
    utterance: int
    end_sample: int
    size: int
    sent_at: float


class Flow:
    """Counts over all utterances of a session, in the order they are sent.

    `max_lead_samples` (None: no bound) is how far sending may run ahead of playing.
    """

    def __init__(self, max_lead_samples: int | None) -> None:
        self.max_lead_samples = max_lead_samples
        self.lead_samples = 0  # sent and, as far as known, not yet played
        self.unacked_bytes = 0  # headers included, so that silence without payload counts
        self._spans: dict[int, _Span] = {}  # utterances that are not known to be heard; at most the unfinished ones
        self._unacked: deque[_Unacked] = deque()  # bounded by unacked_bytes

    @property
    def idle(self) -> bool:
        """Nothing is unacked."""
        return not self._unacked

    @property
    def oldest_sent_at(self) -> float | None:
        """When the oldest audio that is unacked was sent."""
        return self._unacked[0].sent_at if self._unacked else None

    def may_send(self, samples: int, size: int, window: int) -> bool:
        """Whether a frame of this many samples and payload bytes may go now, where `window` bytes may be unacked.

        One may always be on its way.
        """
        if self._unacked and self.unacked_bytes + size + HEADER.size > window:
            return False
        if self.max_lead_samples is None:
            return True
        return self.lead_samples <= 0 or self.lead_samples + samples <= self.max_lead_samples

    def sent(self, utterance: int, end_sample: int, samples: int, size: int, now: float) -> None:
        """A frame went out. Nobody has to ack one without samples."""
        if not samples:
            return
        span = self._spans.get(utterance, _Span(0, 0))
        self._set(utterance, max(span.sent, end_sample), span.played)
        self.unacked_bytes += size + HEADER.size
        self._unacked.append(_Unacked(utterance, end_sample, size + HEADER.size, now))

    def acked(self, utterance: int, next_sample: int, played_sample: int) -> tuple[int, float | None]:
        """The client has `utterance` up to `next_sample`, and all before it, and played up to `played_sample`.

        Returns how many bytes that covers for the first time, and when the newest of them was sent.
        """
        size, sent_at = 0, None
        while self._unacked and (self._unacked[0].utterance, self._unacked[0].end_sample) <= (utterance, next_sample):
            frame = self._unacked.popleft()
            size, sent_at = size + frame.size, frame.sent_at
        self.unacked_bytes -= size
        span = self._spans.get(utterance)
        if span is not None and played_sample:  # without, an earlier utterance may still be heard
            self._set(utterance, span.sent, min(span.sent, max(span.played, played_sample)))
            for earlier in [known for known in self._spans if known < utterance]:
                self._remove(earlier)
        return size, sent_at

    def heard(self, utterance: int) -> None:
        """All of an utterance was heard, whatever its last frame was padded with."""
        self._remove(utterance)

    def drop(self, *utterances: int) -> None:
        """Utterances were cancelled: what was sent of them is not waited for."""
        for utterance in utterances:
            self._remove(utterance)
        dropped = set(utterances)
        kept = deque(frame for frame in self._unacked if frame.utterance not in dropped)
        self.unacked_bytes = sum(frame.size for frame in kept)
        self._unacked = kept

    def restart(self, utterance: int, next_sample: int, played_sample: int, *, live: bool) -> None:
        """On a new connection: the client has `utterance` up to `next_sample`, and nothing after it.

        `live`: that utterance is not known to be heard, nor cancelled: only then its audio counts.
        """
        self._unacked.clear()
        self.unacked_bytes = 0
        for number in [known for known in self._spans if known > utterance or (known == utterance and not next_sample)]:
            self._remove(number)
        if live and next_sample:
            span = self._spans.get(utterance, _Span(0, 0))
            self._set(utterance, next_sample, min(next_sample, max(span.played, played_sample)))

    def _set(self, utterance: int, sent: int, played: int) -> None:
        self._remove(utterance)
        self._spans[utterance] = _Span(sent, played)
        self.lead_samples += sent - played

    def _remove(self, utterance: int) -> None:
        span = self._spans.pop(utterance, None)
        if span is not None:
            self.lead_samples -= span.sent - span.played
