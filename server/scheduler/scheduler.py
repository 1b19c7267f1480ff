"""Which streams the next step of an engine serves.

The unit is one step of one batch. A lane (an engine thread) that is free asks `schedule(now)`, runs the step, and gives
what it took to `apply`. Nothing is planned further ahead, so whatever came meanwhile counts at the next step.

| who waits | when it goes | among its kind |
|---|---|---|
| a listener about to run dry, a first sound that waited long | at once | soonest dry; once one is dry: least had |
| a first sound | next | least had, then first come |
| a listener with sound for a while | then | soonest dry |
| read-ahead | last | least had |

"Least had": whose principal had least of the engine lately.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from server.scheduler.costs import Mean, StepCosts
from server.scheduler.fairness import Shares
from server.scheduler.ticket import Place, StepReport, Ticket

AHEAD_S: Final = 2.0  # who has sound for longer is in no hurry
FIRST_PATIENCE_S: Final = 0.25  # a first sound that waited so long counts like a listener who is dry
CRITICAL_S: Final = (0.03, 0.5)  # bounds of "about to run dry"; between them the time of two steps
PADDING_MAX: Final = 0.2  # of a batch, by the lengths of its segments
GATHER_MAX_S: Final = 0.005  # a batch waits no longer for others to join
GATHER_CONTINUOUS_S: Final = 0.002  # the way of a result to its session and back
GATHER_MEMORY: Final = 20  # waits that are remembered, and steps without one until it is tried again
GATHER_GAIN_MIN: Final = 0.3  # share of waits that must have brought somebody
LATE_MEMORY_S: Final = 2.0
STALE_ENTRIES: Final = 32  # of a queue that may stand for nobody, besides as many as stand for somebody


@dataclass(frozen=True, slots=True)
class Plan:
    """The streams of one step. Without any: nothing to do until something is submitted, or `look_again_at`."""

    batch: tuple[Ticket, ...] = ()
    look_again_at: float | None = None
    lanes_at_work: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step took and made. `raised`: the engine may still hold its jobs."""

    seconds: float
    audio_s: float
    raised: bool = False


@dataclass(slots=True)
class _Queue:
    """Who of one principal waits."""

    first: deque[tuple[int, Ticket]] = field(default_factory=deque)
    playing: list[tuple[float, int, Ticket]] = field(default_factory=list)  # a heap
    waiting: int = 0  # of the entries; the others stand for nobody any more

    def add(self, ticket: Ticket) -> None:
        """One more waits."""
        if len(self.first) + len(self.playing) > 2 * self.waiting + STALE_ENTRIES:
            self.first = deque(entry for entry in self.first if _waits(*entry))
            self.playing = [entry for entry in self.playing if _waits(*entry[1:])]
            heapq.heapify(self.playing)
        self.waiting += 1
        if ticket.urgency.first:
            self.first.append((ticket.number, ticket))
        else:
            heapq.heappush(self.playing, (ticket.urgency.due, ticket.number, ticket))

    def tidy(self) -> bool:
        """Let go of those who left or were served meanwhile; whether anybody is left."""
        while self.first and not _waits(*self.first[0]):
            self.first.popleft()
        while self.playing and not _waits(*self.playing[0][1:]):
            heapq.heappop(self.playing)
        return bool(self.first or self.playing)

    def tickets(self) -> Iterator[Ticket]:
        """All of them, in no order."""
        yield from (ticket for number, ticket in self.first if _waits(number, ticket))
        yield from (ticket for _, number, ticket in self.playing if _waits(number, ticket))


def _waits(number: int, ticket: Ticket) -> bool:
    """Whether an entry still stands for its ticket, which may wait anew with another one."""
    return ticket.place is Place.WAITING and ticket.number == number


class Scheduler:
    """See the module text. Not thread-safe: whoever runs the lanes holds a lock."""

    def __init__(self, *, lanes: int, batch_max: int, continuous: bool = False) -> None:
        """`continuous`: see `Capabilities.continuous`."""
        self._continuous = continuous
        self.costs = StepCosts(lanes, batch_max)
        self.shares = Shares()
        self.waiting = 0
        self.waiting_first = 0
        self._batch_max = batch_max
        self._queues: dict[str, _Queue] = {}  # one entry a principal; at most one ticket for each stream
        self._order = itertools.count()
        self._at_work = 0
        self._returning: set[Ticket] = set()  # of the last step: they will soon ask for more
        self._gather_until = 0.0
        self._gathered_from = 0  # how many there were when the wait began
        self._gains = Mean(GATHER_MEMORY, value=1.0, count=1)  # whether waiting brought anybody, lately
        self._declined = 0
        self._late: tuple[float, float] = (0.0, 0.0)  # until when it counts, how much

    # ---- asking ----

    def submit(self, ticket: Ticket, now: float) -> None:
        """A stream asks for its next chunk."""
        assert ticket.place is Place.IDLE
        ticket.place, ticket.asked_at, ticket.number = Place.WAITING, now, next(self._order)
        self._returning.discard(ticket)
        self.waiting += 1
        self.waiting_first += ticket.urgency.first
        self._queues.setdefault(ticket.principal, _Queue()).add(ticket)

    def withdraw(self, ticket: Ticket) -> bool:
        """A stream is cancelled. Whether its job can be let go now; a running one is named by `apply`."""
        self._returning.discard(ticket)
        running = ticket.place is Place.RUNNING
        if ticket.place is Place.WAITING:
            self._waits_no_longer(ticket)
        ticket.place = Place.GONE
        return not running

    def _waits_no_longer(self, ticket: Ticket) -> None:
        """Its entry stays until it is in the way."""
        self.waiting -= 1
        self.waiting_first -= ticket.urgency.first
        self._queues[ticket.principal].waiting -= 1

    def tickets(self) -> list[Ticket]:
        """Those that wait, in no order."""
        return [ticket for queue in self._queues.values() for ticket in queue.tickets()]

    # ---- deciding ----

    def schedule(self, now: float) -> Plan:
        """The next step for a lane that is free."""
        head = self._most_urgent(now)
        if head is None:
            return Plan()
        if self._batch_max == 1:
            return self._run([head])
        if head.alone:
            self._gather_until = 0.0  # a wait that it ends tells nothing about waiting
            return self._run([head])
        batch = self._companions(head, now)
        if self._should_gather(batch, now):
            return Plan(look_again_at=self._gather_until)
        return self._run(batch)

    def _run(self, batch: list[Ticket]) -> Plan:
        for ticket in batch:
            self._waits_no_longer(ticket)
            ticket.place = Place.RUNNING
        if self._gather_until:
            self._gains.add(float(len(batch) > self._gathered_from))
            self._gather_until = 0.0
        self._at_work += 1
        return Plan(tuple(batch), lanes_at_work=self._at_work)

    def _most_urgent(self, now: float) -> Ticket | None:
        for name in [name for name, queue in self._queues.items() if not queue.tidy()]:
            del self._queues[name]
        if not self._queues:
            return None
        urgent = [(due, ticket) for queue in self._queues.values() for due, ticket in self._urgent(queue, now)]
        if urgent:
            missed = [ticket for due, ticket in urgent if due < now]
            return self._fairest(missed) if missed else min(urgent, key=lambda each: each[0])[1]
        first = [queue.first[0][1] for queue in self._queues.values() if queue.first]
        if first:
            return self._fairest(first)
        playing = [queue.playing[0] for queue in self._queues.values()]
        soonest = min(playing)
        return soonest[2] if soonest[0] <= now + AHEAD_S else self._fairest(each[2] for each in playing)

    def _urgent(self, queue: _Queue, now: float) -> Iterable[tuple[float, Ticket]]:
        """Those of a principal that must go at once, with their time."""
        if queue.playing and queue.playing[0][0] <= now + self.critical_s:
            yield queue.playing[0][0], queue.playing[0][2]
        if queue.first:
            ticket = queue.first[0][1]
            if ticket.asked_at + FIRST_PATIENCE_S <= now:
                yield ticket.asked_at + FIRST_PATIENCE_S, ticket

    @property
    def critical_s(self) -> float:
        """Who runs dry within this time must go now: a first sound that went before it would make it late."""
        low, high = CRITICAL_S
        return min(high, max(low, self.costs.step_s + self.costs.first_s))

    def _fairest(self, tickets: Iterable[Ticket]) -> Ticket:
        return min(tickets, key=lambda ticket: (self.shares.had(ticket.principal), ticket.asked_at))

    # ---- batches ----

    def _companions(self, head: Ticket, now: float) -> list[Ticket]:
        """`head` and those that fit beside it: the most urgent first, and never more padding than is worth it."""
        others = heapq.nsmallest(
            4 * self._batch_max,
            (
                ticket
                for queue in self._queues.values()
                for ticket in queue.tickets()
                if ticket is not head and not ticket.alone
            ),
            key=lambda ticket: (not ticket.urgency.first, ticket.urgency.due, ticket.asked_at),
        )
        batch = [head]
        for ticket in others:
            if len(batch) == self._batch_max:
                break
            if padding([*batch, ticket]) < PADDING_MAX:
                batch.append(ticket)
        return batch

    def _should_gather(self, batch: list[Ticket], now: float) -> bool:
        """Whether waiting a moment for those who come back from the last step pays: a batch must save more than the
        wait costs, nobody in it may be in a hurry, and such waits must have brought somebody before.
        """
        if len(batch) == self._batch_max or not self._returning:
            return False
        if self._gather_until:
            return now < self._gather_until
        if self._continuous:  # steps are many and short: one without the others costs the same, and holds them up
            return self._worth_a_wait(batch, GATHER_CONTINUOUS_S, now)
        wait = min(GATHER_MAX_S, self.costs.fixed_s / 2)
        hurried = any(ticket.urgency.first or ticket.urgency.due <= now + self.critical_s + wait for ticket in batch)
        if hurried or wait < GATHER_MAX_S / 10:
            return False
        return self._worth_a_wait(batch, wait, now)

    def _worth_a_wait(self, batch: list[Ticket], wait: float, now: float) -> bool:
        """Begin to wait, unless that brought nobody lately."""
        if self._gains.value < GATHER_GAIN_MIN and self._declined < GATHER_MEMORY:
            self._declined += 1
            return False
        self._declined = 0
        self._gather_until, self._gathered_from = now + wait, len(batch)
        return True

    # ---- learning ----

    def apply(self, plan: Plan, outcome: Outcome, now: float) -> tuple[StepReport, list[Ticket]]:
        """A step ended. Returns what to report, and the streams whose jobs must be let go: cancelled meanwhile, or in
        a step that raised.
        """
        self._at_work -= 1
        batch = plan.batch
        report = StepReport(
            outcome.seconds,
            len(batch),
            outcome.audio_s,
            first=any(not ticket.begun for ticket in batch),
            padding=padding(batch),
        )
        if not outcome.raised:
            self.costs.add(report, plan.lanes_at_work, now)
        let_go = []
        self._returning.clear()
        for ticket in batch:
            self.shares.charge(ticket.principal, outcome.seconds / len(batch), now)
            ticket.begun = True
            if ticket.place is Place.GONE or outcome.raised:
                let_go.append(ticket)
            if ticket.place is Place.RUNNING:
                ticket.place = Place.IDLE
                self._returning.add(ticket)
                self._note_lateness(ticket, now)
        return report, let_go

    def finished(self, ticket: Ticket) -> None:
        """A stream has ended: it will not ask again."""
        self.withdraw(ticket)

    def _note_lateness(self, ticket: Ticket, now: float) -> None:
        """Only what waiting made late counts: who asks at the last moment cannot be served in time."""
        if not ticket.urgency.first:
            late = now - max(ticket.urgency.due, ticket.asked_at + 3 * self.costs.step_s)
            if late > 0 and (late > self._late[1] or now > self._late[0]):
                self._late = (now + LATE_MEMORY_S, late)

    def late_s(self, now: float) -> float:
        """How late the latest chunk of the last seconds came; 0.0: all came in time."""
        return self._late[1] if now <= self._late[0] else 0.0


def padding(batch: Iterable[Ticket]) -> float:
    """The share of a batch that only fills up shorter segments."""
    sizes = [max(1, ticket.size) for ticket in batch]
    return 1 - sum(sizes) / (len(sizes) * max(sizes))
