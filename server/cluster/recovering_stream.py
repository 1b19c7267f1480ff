"""One segment on its one timeline, whoever speaks it: see `recovering.py`."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from server.audio.clip import with_seam
from server.cluster.base import EnginePool, PoolUnavailable, SegmentStream, Urgency
from server.cluster.failures import Attempt, FailedSegment, Outcome
from server.cluster.parts import (
    FAILURES,
    ClipStream,
    Rendering,
    attempt_of,
    failure_of,
    fallback_request,
    fits,
    known_recipe,
    part_request,
    placed,
    reached,
    rendered_from,
    worse,
)
from server.engines.base import FailureKind
from server.engines.rendering import Part, RenderedChunk, SegmentRequest
from server.scheduler.recovery import LOSSES, Recovery, Task

if TYPE_CHECKING:
    from server.cluster.recovering import RecoveringPool

T = TypeVar("T")

MAX_PAUSE_S: Final = 10.0  # before a pool without any engine at work is asked again


class RecoveringStream:
    """A SegmentStream. It raises only where the server is stopping."""

    def __init__(self, pool: "RecoveringPool", request: SegmentRequest, start_sample: int, principal: str) -> None:
        self.urgency = Urgency()
        self._pool = pool
        self._request = request
        self._principal = principal
        self._time = asyncio.get_running_loop().time
        self._start = start_sample
        self._next = rendered_from(request, start_sample)  # of the segment, to come
        self._tail = b""  # the latest audio
        self._begun = bool(request.parts)
        self._over = False
        self._doing: Rendering | None = None
        self._from = self._next
        self._recipe = known_recipe(request, self._next)
        self._following = bool(self._recipe)  # the recipe: what it says is rendered so far
        self._recovery: Recovery | None = None  # once something failed, or a recipe ended before its text
        self._attempts: list[Attempt] = []
        self._outcome: Outcome = "recovered"
        self._reason: FailureKind = "exception"  # why another one takes over: the first failure ...
        self._new_reason = True  # ... since anything came of it
        self._waiting: asyncio.Task[object] | None = None  # for something else than audio

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RenderedChunk:
        try:
            while self._wanted():
                doing = self._doing
                if doing is None:
                    doing = await self._begin()
                    if not self._wanted():
                        break
                    if doing is None:
                        self._end()
                        break
                    self._doing = doing
                doing.stream.urgency = self.urgency
                asked = self._time()
                try:
                    chunk = await anext(doing.stream)
                except StopAsyncIteration:
                    if self._wanted() and (last := self._finished(doing)) is not None:
                        return last
                except FAILURES as error:
                    if self._wanted():
                        await self._failed(doing, error, self._time() - asked)
                else:
                    if not doing.plain:
                        return self._placed(doing, chunk)
                    if chunk.pcm:
                        self._tail = chunk.pcm
                        self._next += len(chunk.pcm) // 2
                    if chunk.words:
                        doing.words.extend(chunk.words)
                    return chunk
        except BaseException:  # nobody asks again: whoever waits for this segment to be over must hear of it
            self.cancel()
            raise
        raise StopAsyncIteration

    def cancel(self) -> None:
        """See SegmentStream."""
        if not self._over:
            self._outcome = "abandoned"
            if self._doing is not None:
                self._doing.stream.cancel()
            if self._waiting is not None:
                self._waiting.cancel()
            self._end()

    def _wanted(self) -> bool:
        """Whether it goes on; it may be cancelled while it waits."""
        return not self._over

    # ---- one chunk after the other ----

    def _placed(self, doing: Rendering, chunk: RenderedChunk) -> RenderedChunk:
        """A chunk of whoever speaks, as one of the segment."""
        pcm, words = chunk.pcm, chunk.words
        if doing.until is not None and self._next + chunk.samples >= doing.until:
            pcm = pcm[: 2 * (doing.until - self._next)]
            doing.stream.cancel()
            self._doing = None
        if doing.broken_off:
            pcm = with_seam(pcm, self._next - doing.first, doing.broken_off, self._request.sample_rate)
        unasked = max(0, self._start - self._next)
        self._tail = pcm or self._tail
        self._next += len(pcm) // 2
        pcm = pcm[2 * unasked :] if unasked else pcm
        if words:
            words = placed(words, doing)
            doing.words.extend(words)
        part, doing.part = doing.part, None
        self._new_reason = True
        return chunk if part is None and pcm is chunk.pcm and words is chunk.words else RenderedChunk(pcm, words, part)

    def _finished(self, doing: Rendering) -> RenderedChunk | None:
        """It said all it had to. What is still to be told of it."""
        self._doing, self._new_reason = None, True
        if doing.task.source == "engine":
            self._pool.breaker.worked()
        if self._recovery is None and not self._following:
            self._end()
            return None
        if self._attempts:
            self._note(attempt_of(doing, self._time()))
        if not self._following:
            self._recovering().finished()
        elif doing.until is None or self._next < doing.until:  # the last step, or it is over earlier than it was
            self._leave_recipe(doing.task).finished()
        part, doing.part = doing.part, None
        return None if part is None else RenderedChunk(b"", part=part)

    async def _failed(self, doing: Rendering, error: Exception, last_s: float) -> None:
        """It could not go on. Whoever shall is begun with the next turn, unless it is the same one."""
        pool = self._pool
        first_try = not self._attempts and self._next == doing.began
        if pool.closing or (pool.draining and first_try and isinstance(error, PoolUnavailable)):
            self._outcome = "abandoned"
            self._end()
            raise error
        alone = pool.fallback is None and not pool.draining
        failure = failure_of(error, last_s, alone=alone)
        if self._new_reason:
            self._reason, self._new_reason = failure.kind, False
        if not self._attempts:
            pool.recovering(self)
        self._note(attempt_of(doing, self._time(), failure.kind, error))
        recovery = self._recovering()
        if self._following:
            recovery.resume(doing.task)
        again = recovery.failed(failure, self._said(doing, failure.kind))
        if not again:
            self._take_leave()
        if doing.task.source == "engine" and not again and failure.kind in LOSSES:
            pool.breaker.lost(failure.kind, self._time())
        self._doing = None
        if again:
            if isinstance(error, PoolUnavailable):
                await self._wait_for(asyncio.sleep(min(error.retry_after_s, MAX_PAUSE_S)))
            if not self._wanted():
                return
            stream = self._ask(pool.inner, part_request(self._request, doing.task), doing.first)
            self._doing = replace(
                doing, stream=stream, began=self._next, began_at=self._time(), again=True, plain=False
            )

    def _said(self, doing: Rendering, kind: FailureKind) -> int:
        """Up to where the text is said. Of silence, or the same over and over, nobody knows, whatever times it told."""
        if kind in ("silent", "repeated"):
            return doing.task.start
        at, from_middle = max(self._next, self._start), self._from > doing.first
        return reached(self._request, doing.task, doing.words, doing.first, at, from_middle=from_middle)

    def _note(self, attempt: Attempt) -> None:
        """For dead letters: each attempt that failed, and the last one. Successes may be as many as pieces."""
        if self._attempts and self._attempts[-1].kind is None:
            self._attempts.pop()
        self._attempts.append(attempt)

    # ---- a recipe ----

    def _recovering(self) -> Recovery:
        if self._recovery is None:
            self._recovery = Recovery(self._request.cut, lexicon=self._request.lexicon)
        return self._recovery

    def _leave_recipe(self, task: Task) -> Recovery:
        """The rest of its steps does not hold any more: `task` is in hand, and what comes after it is decided anew."""
        recovery = self._recovering()
        recovery.resume(task)
        self._take_leave()
        return recovery

    def _take_leave(self) -> None:
        self._following = False
        self._recipe.clear()
        if self._next < self._start:  # what nobody asked for was told before, by that recipe
            self._next, self._tail = self._start, b""

    # ---- who speaks ----

    async def _begin(self) -> Rendering | None:
        """What is to be done next; None: nothing."""
        if self._recipe:
            task, part, until = self._recipe.popleft()
            doing = await self._rendering(task, part.first_sample if part else 0, part)
            if doing is not None:
                doing.until, doing.plain = until, False
                if part is not None:
                    self._reason = part.reason
                    self._outcome = worse(self._outcome, replace(task, piece=task.source == "engine"))
                return doing
            if not self._wanted():
                return None
            assert part is not None
            self._reason = part.reason
            at = max(self._next, self._start)
            said = reached(self._request, task, (), part.first_sample, at, from_middle=True)
            self._leave_recipe(replace(task, start=said)).cannot("fallback")
        elif not self._begun:
            self._begun = True
            if not await self._skips_the_engine():
                cut = self._request.cut
                return await self._rendering(Task("engine", cut.start, cut.end, whole=True), 0, None)
        while self._recovery is not None and (task_ := self._recovery.next()) is not None:
            part = Part(task_.source, task_.start, task_.end, self._next, self._reason)
            doing = await self._rendering(task_, self._next, part)
            if not self._wanted():
                return None
            if doing is not None:
                self._outcome = worse(self._outcome, doing.task)
                return doing
            self._recovery.cannot("fallback")
        return None

    async def _skips_the_engine(self) -> bool:
        """Whether the engine is not even asked: it lost one segment after the other, and another one is there."""
        pool = self._pool
        if pool.fallback is None or pool.breaker.allows(self._time()) or await self._behind() is None:
            return False  # also where it is cancelled by now
        cut, self._reason = self._request.cut, pool.breaker.reason
        pool.recovering(self)
        engine, message = pool.capabilities.name, "not asked, after several losses in a row"
        self._new_reason = False
        self._attempts.append(Attempt(engine, cut.start, cut.end, self._next, 0.0, self._reason, message))
        self._recovering().skip()
        return True

    async def _rendering(self, task: Task, first: int, part: Part | None) -> Rendering | None:
        """A task, begun at the next sample; None where nobody can do it."""
        doing = await self._made(task, first, part)
        if doing is not None and not self._wanted():
            doing.stream.cancel()
            return None
        if doing is not None and not task.whole and self._next == first:
            doing.broken_off = int.from_bytes(self._tail[-2:], "little", signed=True)
        return doing

    async def _made(self, task: Task, first: int, part: Part | None) -> Rendering | None:
        request, pool = self._request, self._pool.inner
        if task.source == "clip":
            stream: SegmentStream = ClipStream(part_request(request, task), max(0, self._next - first))
            return Rendering(task, stream, "clip", first, self._untold(part), began=self._next, began_at=self._time())
        if task.source == "fallback":
            found = await self._behind()
            if found is None or fallback_request(request, task, found.capabilities) is None:
                return None
            pool = found
            if self._recovery is not None and part is not None and not self._following:
                task = self._recovery.fit(fits(pool.capabilities))
                part = replace(part, end=task.end)
            asked = fallback_request(request, task, pool.capabilities)
        else:
            asked = part_request(request, task)
        assert asked is not None
        stream = self._ask(pool, asked, first)
        name, told = pool.capabilities.name, self._untold(part)
        return Rendering(task, stream, name, first, told, began=self._next, began_at=self._time(), plain=task.whole)

    async def _behind(self) -> EnginePool | None:
        """The fallback engine, loaded if need be; None where it cannot be had."""
        fallback = self._pool.fallback
        return None if fallback is None else await self._wait_for(fallback.pool())

    async def _wait_for(self, something: Coroutine[Any, Any, T]) -> T | None:
        """Its result; None as soon as the stream is cancelled."""
        self._waiting = waiting = asyncio.ensure_future(something)
        try:
            await asyncio.wait((waiting,))  # it raises only what happens to whoever waits here
        finally:
            self._waiting = None
            waiting.cancel()
        return waiting.result() if self._wanted() and not waiting.cancelled() else None

    def _ask(self, pool: EnginePool, request: SegmentRequest, first: int) -> SegmentStream:
        return pool.synthesize(request, max(0, self._next - first), principal=self._principal)

    def _untold(self, part: Part | None) -> Part | None:
        """A part that begins now; one that began earlier is known to whoever asks."""
        return part if part is not None and part.first_sample >= max(self._next, self._start) else None

    # ---- what is told ----

    def _end(self) -> None:
        self._over = True
        self._doing = None
        if self._attempts:
            capabilities = self._pool.capabilities
            attempts, self._attempts = tuple(self._attempts), []
            failed = FailedSegment(
                self._request, self._principal, capabilities.name, capabilities.fingerprint, attempts, self._outcome
            )
            self._pool.recovered(self, failed)
