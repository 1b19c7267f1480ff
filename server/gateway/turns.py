"""Fairness between sessions: `recv`, `send` and an empty segment need not wait for anything, so a busy session must say
itself when it is the others' turn."""

import asyncio
from typing import Final

STEPS: Final = 16  # about a millisecond of messages or works
BYTES: Final = 65_536  # of messages read: a large one takes as long to check


class Turns:
    """Counts what one task does without waiting."""

    def __init__(self) -> None:
        self._steps = 0
        self._bytes = 0

    async def step(self, size: int = 0) -> None:
        """After each piece of work of `size` bytes: gives the event loop a turn when it was enough."""
        self._steps += 1
        self._bytes += size
        if self._steps >= STEPS or self._bytes >= BYTES:
            self._steps = self._bytes = 0
            await asyncio.sleep(0)
