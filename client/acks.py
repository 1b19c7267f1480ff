"""How far audio may be acked, and when the next ack is due. Pure.

An ack confirms only what the consumer took plus `queue_bytes`, so that a slow consumer slows the server down instead of
filling memory.
"""

from collections import deque
from dataclasses import dataclass

from protocol.limits import ACK_BYTES, ACK_INTERVAL_S, ACK_TIMER_S


@dataclass(frozen=True, slots=True)
class Position:
    """A point in the session's audio and events. `cost`: bytes that had arrived by then; `event`: the last one."""

    utterance: int = 0
    sample: int = 0
    cost: int = 0
    event: int = 0


class AckSchedule:
    """At most every 100 ms on arrival or each `ack_bytes`; by a 200 ms timer where the session waits for something."""

    def __init__(self, queue_bytes: int, now: float, ack_bytes: int = ACK_BYTES) -> None:
        self.last = now
        self.position = Position()
        self._queue_bytes = queue_bytes
        self._ack_bytes = ack_bytes
        self._arrived = self._taken = self._acked = 0  # cost of everything that arrived, was consumed, was acked
        self._end = (0, 0)  # utterance and sample: how far audio has come
        self._held: deque[Position] = deque()  # arrived and not ackable yet; the server's window bounds it

    @property
    def owed(self) -> bool:
        """Something arrived that no ack covers."""
        return self._arrived > self._acked

    @property
    def holds_back(self) -> bool:
        """The consumer is so far behind that audio which is here is not acked: the server may have to wait for it."""
        return bool(self._held)

    @property
    def timer(self) -> float:
        """When the timer's ack is due."""
        return self.last + ACK_TIMER_S

    def arrived(self, utterance: int, sample: int, cost: int, event: int) -> None:
        """Audio up to `sample`, and `event`, are here and wait for their consumer, who will report `cost` bytes.

        The end of an utterance that was cancelled may come after audio of the next: acks never go back for it.
        """
        self._arrived += cost
        self._end = max(self._end, (utterance, sample))
        position = Position(*self._end, self._arrived, event)
        if self._held or position.cost - self._taken > self._queue_bytes:
            self._held.append(position)
        else:
            self.position = position

    def taken(self, cost: int) -> bool:
        """The consumer took that much. Returns whether that alone is worth an ack."""
        self._taken += cost
        if not self._held:
            return False
        while self._held and self._held[0].cost - self._taken <= self._queue_bytes:
            self.position = self._held.popleft()
        return self._is_much

    def forget(self) -> None:
        """Another session goes on: its audio is numbered anew. What consumers still hold counts on."""
        self._end = (0, 0)
        self._held.clear()
        self.position = Position(0, 0, self._arrived)
        self._acked = self._arrived

    def due_on_arrival(self, now: float) -> bool:
        """Whether audio that just arrived is acked at once. While the consumer is behind only the timer speaks."""
        return not self._held and (now - self.last >= ACK_INTERVAL_S or self._is_much)

    def sent(self, now: float) -> None:
        """An ack of `position` was made."""
        self.last = now
        self._acked = self.position.cost

    @property
    def _is_much(self) -> bool:
        return self.position.cost - self._acked >= self._ack_bytes
