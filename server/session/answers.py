"""Answers that wait to be sent. They are for one connection and go before everything else."""

from collections import deque
from typing import Final

from protocol import server_messages as s

MAX_ANSWERS: Final = 64  # pongs and the like that a client has not read


class Answers:
    """A queue. The session reads no more from a client that does not read it."""

    def __init__(self) -> None:
        self._queue: deque[s.ServerMessage] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, message: s.ServerMessage) -> None:
        """One more."""
        self._queue.append(message)

    def next(self) -> s.ServerMessage | None:
        """Take the first."""
        return self._queue.popleft() if self._queue else None

    def clear(self) -> None:
        """The connection they were for is gone."""
        self._queue.clear()
