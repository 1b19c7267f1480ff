"""How much audio may be on its way: bytes not yet acked, and the lead over what the listener has heard."""

from collections import deque

from protocol.limits import MAX_UNACKED_BYTES


class Flow:
    """Counts samples over all utterances of a session, in the order they are sent.

    `max_lead` (samples, None: no bound) is how far sending may run ahead of playing.
    """

    def __init__(self, max_lead: int | None) -> None:
        self.max_lead = max_lead
        self.unacked_bytes = 0
        self._sent = 0  # samples of all utterances
        self._played = 0  # on the same scale
        self._bases: dict[int, int] = {}  # utterance -> where it begins on that scale
        self._unacked: deque[tuple[int, int, int]] = deque()  # (utterance, end sample, bytes); bounded by unacked_bytes

    @property
    def lead(self) -> int:
        """Samples sent and, as far as known, not yet played."""
        return self._sent - self._played

    def may_send(self, samples: int, size: int) -> bool:
        """Whether a frame of this many samples and bytes may go now. One frame may always be on its way."""
        if self._unacked and self.unacked_bytes + size > MAX_UNACKED_BYTES:
            return False
        return self.max_lead is None or self.lead <= 0 or self.lead + samples <= self.max_lead

    def sent(self, utterance: int, end_sample: int, samples: int, size: int) -> None:
        """A frame went out. Nobody has to ack one without samples."""
        if not samples:
            return
        self._bases.setdefault(utterance, self._sent)
        self._sent += samples
        self.unacked_bytes += size
        self._unacked.append((utterance, end_sample, size))

    def acked(self, utterance: int, next_sample: int, played_sample: int) -> None:
        """The client has `utterance` up to `next_sample`, and all before it, and played up to `played_sample`."""
        while self._unacked and self._unacked[0][:2] <= (utterance, next_sample):
            self.unacked_bytes -= self._unacked.popleft()[2]
        base = self._bases.get(utterance)
        if base is None or not played_sample:
            return  # an earlier utterance may still be heard
        self._played = max(self._played, base + played_sample)
        for older in [known for known in self._bases if known < utterance]:
            del self._bases[older]

    def drop(self, utterance: int) -> None:
        """The utterance was cancelled: what was sent of it, and of those before it, is not waited for."""
        while self._unacked and self._unacked[0][0] <= utterance:
            self.unacked_bytes -= self._unacked.popleft()[2]
        if self._bases.pop(utterance, None) is not None:
            later = [base for known, base in self._bases.items() if known > utterance]
            self._played = max(self._played, min(later, default=self._sent))

    @property
    def idle(self) -> bool:
        """Nothing is unacked."""
        return not self._unacked
