"""Voices that a gateway has a worker learn: who waits for which of them."""

import asyncio


class Lessons:
    """Those of one connection, by number. Bounded by the uploads that this gateway lets in."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, number: int) -> bool:
        return number in self._waiting

    def begin(self, number: int) -> "asyncio.Future[bytes]":
        """What becomes of it; nobody waits any more once that is cancelled."""
        waiting: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        waiting.add_done_callback(lambda _: self._waiting.pop(number, None))
        return waiting

    def end(self, number: int, result: bytes | Exception) -> None:
        """The worker has answered. Harmless where nobody waits."""
        waiting = self._waiting.get(number)
        if waiting is None or waiting.done():
            return
        if isinstance(result, Exception):
            waiting.set_exception(result)
        else:
            waiting.set_result(result)

    def end_all(self, error: Exception) -> None:
        """The worker will not answer."""
        for number in list(self._waiting):
            self.end(number, error)
