"""Who speaks a task of a segment that recovers: the engine, or the one behind it. What a wait for them is worth."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from server.cluster.base import EnginePool, SegmentStream
from server.cluster.parts import fallback_request, part_request
from server.engines.rendering import SegmentRequest
from server.scheduler.recovery import Task

T = TypeVar("T")


class Fallback(Protocol):
    """The engine that speaks what the other one fails at."""

    def pool(self) -> Coroutine[Any, Any, EnginePool | None]:
        """Where it speaks; None while it cannot be had. It may take seconds to load."""

    async def close(self) -> None:
        """Free it."""


class Speakers:
    """One segment's."""

    def __init__(self, engine: EnginePool, fallback: Fallback | None, request: SegmentRequest, principal: str) -> None:
        self._engine = engine
        self._fallback = fallback
        self._request = request
        self._principal = principal
        self._waiting: asyncio.Task[object] | None = None  # for something else than audio
        self._left = False

    async def pool_for(self, task: Task) -> EnginePool | None:
        """Who speaks it; None where the fallback engine cannot be had, or has no voice of the language."""
        if task.source == "engine":
            return self._engine
        pool = await self.behind()
        able = pool is not None and fallback_request(self._request, task, pool.capabilities) is not None
        return pool if able else None

    def ask(self, pool: EnginePool, task: Task, start_sample: int, codes: Sequence[int] = ()) -> SegmentStream:
        """A task, of what `pool_for` gave for it, from a sample of its own on. `codes`: more than are known of it."""
        if task.source == "fallback":
            request = fallback_request(self._request, task, pool.capabilities)
            assert request is not None
        else:
            request = part_request(self._request, task)
            if codes:
                request = replace(request, codes=(*request.codes, *codes))
        return pool.synthesize(request, start_sample, principal=self._principal)

    async def behind(self) -> EnginePool | None:
        """The fallback engine, loaded if need be; None where it cannot be had."""
        return None if self._fallback is None else await self.wait_for(self._fallback.pool())

    async def wait_for(self, something: Coroutine[Any, Any, T]) -> T | None:
        """Its result; None as soon as nobody wants the segment any more."""
        self._waiting = waiting = asyncio.ensure_future(something)
        try:
            await asyncio.wait((waiting,))  # it raises only what happens to whoever waits here
        finally:
            self._waiting = None
            waiting.cancel()
        return None if self._left or waiting.cancelled() else waiting.result()

    def leave(self) -> None:
        """Nobody wants the segment any more."""
        self._left = True
        if self._waiting is not None:
            self._waiting.cancel()
