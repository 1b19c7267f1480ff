"""The sessions at work: how many there may be at a time, and who has to be told when the server stops."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from server.observe.metrics import Metrics


class Stoppable(Protocol):
    """A session of any kind."""

    async def stop(self, deadline_ms: int) -> None:
        """Finish within this time, or be cut off. Returns when the session is over, or soon after the deadline."""


class Sessions:
    """Counts the sessions of clients who proved who they are, and remembers every session until it is over."""

    def __init__(self, limit: int, metrics: Metrics) -> None:
        self.taken = 0
        self._limit = limit
        self._gauge = metrics.sessions
        self._members: set[Stoppable] = set()

    def admit(self) -> bool:
        """Count a session in; False when there are too many. Every True needs a `release`."""
        if self.taken >= self._limit:
            return False
        self.taken += 1
        self._gauge.set(self.taken)
        return True

    def release(self) -> None:
        """Count a session out."""
        self.taken -= 1
        self._gauge.set(self.taken)

    @contextmanager
    def member(self, session: Stoppable) -> Iterator[None]:
        """Meanwhile `session` is among those that `stop` tells."""
        self._members.add(session)
        try:
            yield
        finally:
            self._members.discard(session)

    async def stop(self, deadline_ms: int) -> None:
        """Stop them all, side by side."""
        await asyncio.gather(*(session.stop(deadline_ms) for session in list(self._members)))
