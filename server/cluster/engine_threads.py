"""Threads that run an engine's steps, as the scheduler decides.

onnxruntime and numpy release the GIL while they work, so the event loop stays free. Everything that is asked of the
engine is asked on these threads, never on the event loop. A step that takes longer than `step_timeout_s` hangs: nothing
can stop its thread, so that is given up, another one takes its place, and whoever waited for it hears `hung`. It may
have been slow only, as after a pause of the whole machine: once it is done its thread ends, and counts no longer.
"""

import asyncio
import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from server.cluster.base import StepReport, WorkerLost
from server.cluster.segment import Result, SegmentWork, as_engine_error
from server.engines.base import Engine, EngineError, Job
from server.scheduler.scheduler import Outcome, Plan, Scheduler
from server.scheduler.ticket import Ticket

log = structlog.get_logger(__name__)

SWITCH_S: Final = 0.0005
"""How long a thread that computes in Python may keep the event loop from running; Python's own choice is 5 ms. It costs
no throughput that could be measured.
"""
CLOSE_TIMEOUT_S: Final = 5.0  # for a step that hangs
MAX_GIVEN_UP: Final = 8  # threads that hang; with more of them the engine is broken
CRASHED: Final[list[Result]] = []
"""In place of results, and compared by identity: the step raised, and others were in it, too."""
FRUITLESS: Final = 4  # times `step_timeout_s`: the engine time in which something must have come of a segment


class StreamTicket(Ticket):
    """The ticket of a stream, with what an engine thread works on. `work` is replaced where it must be done again."""

    __slots__ = ("work",)

    def __init__(self, principal: str, size: int, work: SegmentWork) -> None:
        super().__init__(principal, size)
        self.work = work

    def deliver(self, results: list[Result]) -> None:
        """What a step made. Called on the event loop."""
        raise NotImplementedError

    def crashed(self) -> None:
        """A step with it and others raised; nothing will come of `work`. Called on the event loop."""
        raise NotImplementedError

    def hung(self) -> None:
        """Its step hangs; nothing will come of `work`. Called on the event loop."""
        raise NotImplementedError


@dataclass(eq=False, slots=True)
class _Lane:
    """One thread's place."""

    number: int
    plan: Plan | None = None
    since: float = 0.0
    given_up: bool = False


class EngineThreads:
    """See the module text. Made inside the running event loop, whose methods it calls from there alone.

    `on_step` is told of every step, `on_hang` of each that hangs; both on the event loop.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        threads: int,
        step_timeout_s: float,
        on_step: Callable[[StepReport], None] | None = None,
        on_hang: Callable[[], None] | None = None,
    ) -> None:
        sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._step_timeout_s = step_timeout_s
        self._on_step = on_step
        self._on_hang = on_hang
        can = engine.capabilities
        lanes = max(1, min(threads, can.lanes or threads))
        self._scheduler = Scheduler(lanes=lanes, batch_max=can.batch_max, continuous=can.continuous)
        self._dropped: list[Job] = []  # to be cancelled; bounded by the jobs that engine threads have begun
        self._changed = threading.Condition()
        self._closing = False
        self._given_up = 0
        self._failed = False
        self._watch: asyncio.TimerHandle | None = None
        self._lanes = [_Lane(number) for number in range(lanes)]
        self._threads: dict[int, threading.Thread] = {}  # by lane, without those given up
        self._start_missing()

    def _start_missing(self) -> None:
        """A thread for each lane that has none."""
        for lane in self._lanes:
            if lane.number not in self._threads:
                name = f"engine-{lane.number}"
                thread = threading.Thread(target=self._keep_working, args=(lane,), name=name, daemon=True)
                self._threads[lane.number] = thread
                thread.start()

    # ---- on the event loop ----

    @property
    def scheduler(self) -> Scheduler:
        """To look at, from the event loop: single numbers, which may be a step old."""
        return self._scheduler

    @property
    def lanes(self) -> int:
        """How many steps run side by side."""
        return len(self._lanes)

    @property
    def broken(self) -> bool:
        """Whether so many steps hang, or a thread failed, that nothing more should be asked of the engine."""
        return self._failed or self._given_up > MAX_GIVEN_UP

    def submit(self, ticket: StreamTicket) -> None:
        """A stream asks for its next chunk. Raises EngineError when it is too late for that, WorkerLost when broken."""
        with self._changed:
            if self._closing:
                raise EngineError("the server is stopping", transient=True)
            if self.broken:
                raise WorkerLost("the engine hangs", "time_out")
            self._scheduler.submit(ticket, time.monotonic())
            self._changed.notify()
        if self._watch is None:
            self._watch = self._loop.call_later(self._step_timeout_s, self._look_for_hung)

    def forget(self, ticket: StreamTicket) -> None:
        """A stream is cancelled."""
        with self._changed:
            if self._scheduler.withdraw(ticket):
                self._drop(ticket.work)  # else its thread drops it, after the step

    def finish(self, ticket: StreamTicket) -> None:
        """A stream has ended, and so has its job."""
        with self._changed:
            self._scheduler.finished(ticket)

    async def close(self, *, free: bool = True) -> None:
        """Stop after the steps that are being done, then free the engine, unless somebody else is still at work with
        it. Waits 5 s at most for a step.
        """
        if self._watch is not None:
            self._watch.cancel()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        limit = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in self._threads.values():
            await asyncio.to_thread(thread.join, max(0.0, limit - time.monotonic()))
        if free and not self._given_up and not any(thread.is_alive() for thread in self._threads.values()):
            self._engine.close()

    def _look_for_hung(self) -> None:
        """A timer, set while anything is at work."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        hung: list[StreamTicket] = []
        with self._changed:
            now = time.monotonic()
            for place, lane in enumerate(self._lanes):
                if lane.plan is not None and now - lane.since >= self._step_timeout_s:
                    hung += self._give_up(lane)
                    self._lanes[place] = _Lane(lane.number)
                    del self._threads[lane.number]
            if self.broken:  # nobody may be left who would serve them
                hung += [ticket for ticket in self._scheduler.tickets() if isinstance(ticket, StreamTicket)]
            else:
                self._start_missing()
            since = [lane.since for lane in self._lanes if lane.plan is not None]
            if since or self._scheduler.waiting:
                due = min(since, default=now) + self._step_timeout_s
                self._watch = self._loop.call_later(max(0.0, due - now) + 0.01, self._look_for_hung)
        for ticket in hung:
            ticket.hung()

    def _give_up(self, lane: _Lane) -> list[StreamTicket]:
        """Call it with the lock held."""
        assert lane.plan is not None
        lane.given_up = True
        self._given_up += 1
        batch = [ticket for ticket in lane.plan.batch if isinstance(ticket, StreamTicket)]
        log.error("a step of the engine hangs", jobs=len(batch), step_timeout_s=self._step_timeout_s)
        self._scheduler.apply(lane.plan, Outcome(self._step_timeout_s, 0.0, raised=True), time.monotonic())
        if self._on_hang:
            self._on_hang()
        return batch

    def _came_back(self) -> None:
        """A step that was taken for one that hangs has ended."""
        with self._changed:
            self._given_up -= 1
            if not self.broken and not self._closing:
                self._start_missing()

    def _deliver(self, done: "list[tuple[StreamTicket, SegmentWork, list[Result]]]", report: StepReport) -> None:
        for ticket, work, results in done:
            if ticket.work is not work:
                continue
            if results is CRASHED:
                ticket.crashed()
            else:
                ticket.deliver(results)
        if self._on_step:
            self._on_step(report)

    # ---- on the engine threads ----

    def _keep_working(self, lane: _Lane) -> None:
        try:
            self._work(lane)
        except Exception:  # a fault of ours, since an engine's own end the segment: nobody may wait for this thread
            log.exception("an engine thread failed")
            with self._changed:
                self._failed, lane.since = True, -math.inf
                if not self._closing:
                    self._loop.call_soon_threadsafe(self._look_for_hung)

    def _work(self, lane: _Lane) -> None:
        while (plan := self._next(lane)) is not None:
            self._cancel_dropped()
            if not plan.batch:
                continue
            batch = [(ticket, ticket.work) for ticket in plan.batch if isinstance(ticket, StreamTicket)]
            started = time.perf_counter()
            results, raised = self._step([work for _, work in batch])
            seconds = time.perf_counter() - started
            audio_s = sum(work.take_audio_s() for _, work in batch)
            late_s = FRUITLESS * self._step_timeout_s
            # Such an engine serves first whom the scheduler names first: the others' time is not spent on them.
            share_s = seconds / len(batch) if self._engine.capabilities.continuous else seconds
            fruitless = [place for place, (_, work) in enumerate(batch) if work.fruitless_s(share_s) > late_s]
            for place in fruitless:
                if results[place] is not CRASHED:
                    late = EngineError(f"the engine makes nothing of it, in {late_s:g} s", kind="time_out")
                    results[place].append(batch[place][1].fail(late))
            with self._changed:
                if lane.given_up:  # whoever waited has gone on without it
                    for _, work in batch:
                        self._drop(work)
                    self._changed.notify()
                    if not self._closing:
                        self._loop.call_soon_threadsafe(self._came_back)
                    return
                lane.plan = None
                outcome = Outcome(seconds, audio_s, raised=raised)
                report, let_go = self._scheduler.apply(plan, outcome, time.monotonic())
                for ticket in let_go:
                    assert isinstance(ticket, StreamTicket)
                    self._drop(ticket.work)
                for _, work in batch:
                    if work.failed:
                        self._drop(work)
            if not self._closing:
                done = [(ticket, work, made) for (ticket, work), made in zip(batch, results, strict=True)]
                self._loop.call_soon_threadsafe(self._deliver, done, report)

    def _next(self, lane: _Lane) -> Plan | None:
        """Wait for something to do; None when closing."""
        with self._changed:
            while not self._closing:
                if self._dropped:
                    return Plan()
                plan = self._scheduler.schedule(time.monotonic())
                if plan.batch:
                    lane.plan, lane.since = plan, time.monotonic()
                    return plan
                at = plan.look_again_at
                self._changed.wait(None if at is None else max(0.0, at - time.monotonic()))
            return None

    def _drop(self, work: SegmentWork) -> None:
        """Have its job cancelled by an engine thread. Call it with the lock held."""
        if work.job is not None:
            self._dropped.append(work.job)
            work.job = None
            self._changed.notify()

    def _cancel_dropped(self) -> None:
        with self._changed:
            jobs, self._dropped = self._dropped, []
        for job in jobs:
            try:
                self._engine.cancel(job)
            except Exception:  # an engine's fault must not end the thread, or everybody waits for ever
                log.exception("the engine failed to cancel a job")

    def _step(self, works: list[SegmentWork]) -> tuple[list[list[Result]], bool]:
        """What each of them gets, and whether the engine raised."""
        results: dict[SegmentWork, list[Result]] = {work: [] for work in works}
        by_job: dict[Job, SegmentWork] = {}
        for work in works:
            try:
                by_job[work.begin(self._engine)] = work
            except Exception as error:  # noqa: BLE001  # an engine's or a text rule's fault must end this segment, not the thread
                results[work].append(as_engine_error(error))
        try:
            for event in self._engine.step(list(by_job)) if by_job else ():
                work = by_job[event.job]
                results[work].extend(work.results(event))
        except Exception as error:  # noqa: BLE001  # the whole step failed: of several jobs nobody knows which one did it
            for work in by_job.values():
                results[work] = CRASHED if len(by_job) > 1 else [as_engine_error(error)]
            return list(results.values()), True
        return list(results.values()), False
