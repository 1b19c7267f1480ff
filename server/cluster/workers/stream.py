"""A segment as its session reads it: rendered by one worker after the other, where workers are lost."""

import asyncio
from dataclasses import dataclass, replace
from typing import Final, Protocol, Self

from server.cluster.base import PoolUnavailable, Urgency, WorkerLost
from server.cluster.workers.connection import Answer, WorkerConnection
from server.engines.base import EngineError, FailureKind, WordTiming
from server.engines.rendering import RenderedChunk, SegmentRequest

MAX_BLAME: Final = 4
"""What a stream is given up for, when workers are lost with it and it gets no further. Each counts 1, and 2 where it is
known to have hung in a step with it, as in one process."""
HUNG_BLAME: Final = 2
SUSPECT_BLAME: Final = 2
"""From here on a stream is tried alone: of all suspects, one at a time is given to a worker. Those that only shared one
with the stream that it died of get further then, and are acquitted."""


class Workers(Protocol):
    """What a stream asks of its pool."""

    loop: asyncio.AbstractEventLoop

    async def assign(self, stream: "WorkerStream") -> WorkerConnection | None:
        """A worker for it; None where the stream is over meanwhile. Raises PoolUnavailable."""

    def acquit(self, stream: "WorkerStream") -> None:
        """It got further than where workers were lost with it."""

    def finished(self, stream: "WorkerStream") -> None:
        """It is over."""


class WorkerStream:
    """One segment at one worker after the other."""

    def __init__(self, pool: Workers, request: SegmentRequest, start_sample: int, principal: str) -> None:
        self.urgency = Urgency()
        self._pool = pool
        self._request = request
        self._next_sample = start_sample
        self._principal = principal
        self._connection: WorkerConnection | None = None
        self._number = 0  # of the stream, there
        self._waiter: asyncio.Future[Answer | _Lost] | None = None
        self._words: set[WordTiming] = set()  # that were given; those of one segment
        self._codes: list[int] = []  # that were given, too
        self._moved = False
        self._blame = 0
        self._over = False

    @property
    def over(self) -> bool:
        """Whether nothing more is wanted."""
        return self._over

    @property
    def suspect(self) -> bool:
        """Whether workers may die of it."""
        return self._blame >= SUSPECT_BLAME

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RenderedChunk:
        while not self._over:
            answer = await self._answer()
            if isinstance(answer, RenderedChunk):
                if (chunk := self._fresh(answer)) is not None:
                    return chunk
            elif isinstance(answer, _Lost):
                self._blame += answer.blame
                if self._blame >= MAX_BLAME:
                    self._end()
                    kind: FailureKind = "time_out" if answer.blame == HUNG_BLAME else "worker_lost"
                    raise WorkerLost("one worker after the other was lost with this segment", kind)
            elif not self._over:
                self._end()
                if answer is not None:
                    raise answer
        raise StopAsyncIteration

    async def _answer(self) -> "Answer | _Lost":
        try:
            connection = self._connection
            if connection is None or not connection.usable:
                connection = await self._move()
                if connection is None:
                    return None
            self._waiter = self._pool.loop.create_future()
            slack_s = self.urgency.due - self._pool.loop.time()
            connection.ask(self._number, slack_s, first=self.urgency.first)
            return await self._waiter
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            self._waiter = None

    async def _move(self) -> WorkerConnection | None:
        """To a worker, where one takes it. None where the stream was cancelled meanwhile. Raises PoolUnavailable and
        EngineError.
        """
        try:
            connection = await self._pool.assign(self)
            if connection is None:
                return None
            self._let_go()
            self._moved, self._connection = self._connection is not None, None
            request = self._request
            if self._codes:
                request = replace(request, codes=(*request.codes, *self._codes))
            self._number = connection.begin(self, request, self._next_sample, self._principal)
        except (PoolUnavailable, EngineError):
            self._end()
            raise
        self._connection = connection
        return connection

    def _fresh(self, chunk: RenderedChunk) -> RenderedChunk | None:
        """What was not given before: samples are left out by the worker, words that it repeats are left out here."""
        words = chunk.words
        if words:
            if self._moved:
                words = tuple(word for word in words if word not in self._words)
            self._words.update(words)
        self._codes += chunk.codes
        if not chunk.pcm and not words and not chunk.codes:
            return None
        if self._blame:
            self._blame = 0
            self._pool.acquit(self)
        self._next_sample += chunk.samples
        return chunk if words is chunk.words else replace(chunk, words=words)

    def cancel(self) -> None:
        """See SegmentStream."""
        if not self._over:
            self._end()
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    def answered(self, answer: Answer) -> None:
        """See Asker."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(answer)

    def lost(self, blame: int) -> None:
        """See Asker."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(_Lost(blame))

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.forget(self._number)

    def _end(self) -> None:
        self._over = True
        self._let_go()
        self._pool.finished(self)


@dataclass(frozen=True, slots=True)
class _Lost:
    """In place of an answer: the worker is lost, and this may have been the reason."""

    blame: int
