"""One segment on its one timeline, whoever speaks it: see `recovering.py`."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Self

from server.audio.clip import with_seam
from server.cluster.base import PoolUnavailable, SegmentStream, Urgency
from server.cluster.history import History
from server.cluster.parts import (
    FAILURES,
    ClipStream,
    Rendering,
    failure_of,
    fits,
    known_recipe,
    part_request,
    placed,
    reached,
    rendered_from,
)
from server.cluster.speakers import Speakers
from server.engines.base import FailureKind
from server.engines.rendering import Part, RenderedChunk, SegmentRequest
from server.scheduler.recovery import LOSSES, Recovery, Task

if TYPE_CHECKING:
    from server.cluster.recovering import RecoveringPool

MAX_PAUSE_S: Final = 10.0  # before a pool without any engine at work is asked again
OF_CODES: Final[frozenset[FailureKind]] = frozenset({"not_finite", "repeated"})
"""What the speech codes may be to blame for. With them a second try would fail in the same way, and without them it
could not go on with what was heard of them: so what is left is said anew, as a part of its own.
"""


class RecoveringStream:
    """A SegmentStream. It raises only where the server is stopping."""

    def __init__(self, pool: "RecoveringPool", request: SegmentRequest, start_sample: int, principal: str) -> None:
        self.urgency = Urgency()
        self._pool = pool
        self._request = request
        self._principal = principal
        self._speakers = Speakers(pool.inner, pool.fallback, request, principal)
        self._time = asyncio.get_running_loop().time
        self._start = start_sample
        self._next = rendered_from(request, start_sample)  # of the segment, to come
        self._tail = b""  # the latest audio
        self._begun = False
        self._over = False
        self._doing: Rendering | None = None
        self._from = self._next
        self._recipe = known_recipe(request, self._next)
        self._following = bool(self._recipe)  # the recipe: what it says is rendered so far
        self._recovery: Recovery | None = None  # once something failed, or a recipe ended before its text
        self._history = History(request)
        self._reason: FailureKind = "exception"  # why another one takes over: the first failure ...
        self._new_reason = True  # ... since anything came of it

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
                    if chunk.codes:
                        doing.codes.extend(chunk.codes)
                    return chunk
        except BaseException:  # nobody asks again: whoever waits for this segment to be over must hear of it
            self.cancel()
            raise
        raise StopAsyncIteration

    def cancel(self) -> None:
        """See SegmentStream."""
        if not self._over:
            self._history.outcome = "abandoned"
            if self._doing is not None:
                self._doing.stream.cancel()
            self._speakers.leave()
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
        doing.codes.extend(chunk.codes)
        codes = chunk.codes if doing.task.whole else ()  # what is recorded of a segment has no others
        return RenderedChunk(pcm, words, part, codes)

    def _finished(self, doing: Rendering) -> RenderedChunk | None:
        """It said all it had to. What is still to be told of it."""
        self._doing, self._new_reason = None, True
        if doing.task.source == "engine":
            self._pool.breaker.worked()
        if self._recovery is None and not self._following:
            self._end()
            return None
        if self._history.failed:
            self._history.attempt(doing, self._time())
        if not self._following:
            self._recovering().finished()
        elif doing.until is None or self._next < doing.until:  # the last step, or it is over earlier than it was
            self._leave_recipe(doing.task).finished()
        part, doing.part = doing.part, None
        return None if part is None else RenderedChunk(b"", part=part)

    async def _failed(self, doing: Rendering, error: Exception, last_s: float) -> None:
        """It could not go on. Whoever shall is begun with the next turn, unless it is the same one."""
        pool = self._pool
        first_try = not self._history.failed_here and self._next == doing.began
        if pool.closing or (pool.draining and first_try and isinstance(error, PoolUnavailable)):
            self._history.outcome = "abandoned"
            self._end()
            raise error
        alone = pool.fallback is None and not pool.draining
        failure = failure_of(error, last_s, alone=alone)
        if failure.kind in OF_CODES and (doing.codes or (doing.task.whole and self._request.codes)):
            failure = replace(failure, transient=False)
        if self._new_reason:
            self._reason, self._new_reason = failure.kind, False
        pool.recovering(self)
        self._history.attempt(doing, self._time(), failure.kind, error)
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
                await self._speakers.wait_for(asyncio.sleep(min(error.retry_after_s, MAX_PAUSE_S)))
            if not self._wanted():
                return
            stream = self._speakers.ask(pool.inner, doing.task, max(0, self._next - doing.first), doing.codes)
            self._doing = replace(
                doing, stream=stream, began=self._next, began_at=self._time(), again=True, plain=False
            )

    def _said(self, doing: Rendering, kind: FailureKind) -> int:
        """Up to where the text is said. Of silence, or the same over and over, nobody knows, whatever times it told."""
        if kind in ("silent", "repeated"):
            return doing.task.start
        at, from_middle = max(self._next, self._start), self._from > doing.first
        return reached(self._request, doing.task, doing.words, doing.first, at, from_middle=from_middle)

    # ---- a recipe ----

    def _recovering(self) -> Recovery:
        if self._recovery is None:
            parts = self._request.parts
            self._recovery = Recovery(self._request.cut, lexicon=self._request.lexicon)
            if parts and parts[0].reason == "repeated":  # it was the engine, in another process
                self._recovery.cannot("engine")
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
            if not self._begun:
                self._begun = True
                self._history.remember(self._pool.capabilities.name)
                if self._history.failed:
                    self._pool.recovering(self)
            task, part, until = self._recipe.popleft()
            doing = await self._rendering(task, part.first_sample if part else 0, part)
            if doing is not None:
                doing.until, doing.plain = until, False
                if part is not None:
                    self._reason = part.reason
                    self._history.takes_part(replace(task, piece=task.source == "engine"))
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
                self._history.takes_part(doing.task)
                return doing
            self._recovery.cannot("fallback")
        if self._recovery is not None and self._recovery.wordless:
            self._history.outcome = "no_words"
        return None

    async def _skips_the_engine(self) -> bool:
        """Whether the engine is not even asked: it lost one segment after the other, and another one is there."""
        pool = self._pool
        if pool.fallback is None or pool.breaker.allows(self._time()) or await self._speakers.behind() is None:
            return False  # also where it is cancelled by now
        self._reason, self._new_reason = pool.breaker.reason, False
        pool.recovering(self)
        self._history.left_alone(pool.capabilities.name, self._next, self._reason)
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
        start = max(0, self._next - first)
        stream: SegmentStream
        if task.source == "clip":
            name, stream = "clip", ClipStream(part_request(self._request, task), start)
        else:
            pool = await self._speakers.pool_for(task)
            if pool is None:
                return None
            if task.source == "fallback" and self._recovery is not None and part is not None and not self._following:
                task = self._recovery.fit(fits(pool.capabilities))
                part = replace(part, end=task.end)
            name, stream = pool.capabilities.name, self._speakers.ask(pool, task, start)
        now, told = self._time(), self._untold(part)
        return Rendering(task, stream, name, first, told, began=self._next, began_at=now, plain=task.whole)

    def _untold(self, part: Part | None) -> Part | None:
        """A part that begins now; one that began earlier is known to whoever asks."""
        return part if part is not None and part.first_sample >= max(self._next, self._start) else None

    # ---- what is told ----

    def _end(self) -> None:
        self._over = True
        self._doing = None
        if self._history.failed:
            pool, history = self._pool, self._history
            stopping = pool.draining or pool.closing
            left = stopping and history.outcome == "abandoned" and not history.failed_here  # to the next process again
            failed = history.told(self._principal, pool.capabilities)
            pool.recovered(self, None if left else failed)
