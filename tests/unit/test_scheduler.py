"""Who goes first: the rules one by one, then thousands of random loads on a simulated engine."""

import random
from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.scheduler import Outcome, Plan, Scheduler, Shares, StepCosts, StepReport, Ticket, Urgency
from server.scheduler.scheduler import (
    AHEAD_S,
    CRITICAL_S,
    FIRST_PATIENCE_S,
    GATHER_CONTINUOUS_S,
    GATHER_MAX_S,
    LATE_MEMORY_S,
    PADDING_MAX,
    padding,
)
from server.scheduler.ticket import Place

STEP_S = 0.02
NOW = 1_000.0


def asking(scheduler: Scheduler, urgency: Urgency, now: float = NOW, principal: str = "", size: int = 1) -> Ticket:
    ticket = Ticket(principal, size)
    ticket.urgency = urgency
    scheduler.submit(ticket, now)
    return ticket


def step(scheduler: Scheduler, now: float = NOW, seconds: float = STEP_S, audio_s: float = 0.1) -> list[Ticket]:
    plan = scheduler.schedule(now)
    if plan.batch:
        scheduler.apply(plan, Outcome(seconds, audio_s * len(plan.batch)), now + seconds)
    return list(plan.batch)


def order(scheduler: Scheduler, now: float = NOW) -> list[Ticket]:
    served: list[Ticket] = []
    while batch := step(scheduler, now, seconds=1e-9):
        served += batch
    return served


def one_lane(batch_max: int = 1) -> Scheduler:
    return Scheduler(lanes=1, batch_max=batch_max)


# ---- the order ----


def test_first_sounds_go_before_listeners_with_sound_and_those_before_read_ahead() -> None:
    scheduler = one_lane()
    ahead = asking(scheduler, Urgency(NOW + AHEAD_S + 5))
    playing = asking(scheduler, Urgency(NOW + AHEAD_S - 0.1))
    soon = asking(scheduler, Urgency(NOW + 1))
    collecting = asking(scheduler, Urgency(inf))
    first = asking(scheduler, Urgency(NOW, first=True))
    assert order(scheduler) == [first, soon, playing, ahead, collecting]


def test_a_listener_about_to_run_dry_goes_before_a_first_sound() -> None:
    scheduler = one_lane()
    first = asking(scheduler, Urgency(NOW, first=True))
    dry_soon = asking(scheduler, Urgency(NOW + CRITICAL_S[0] / 2))
    assert order(scheduler) == [dry_soon, first]


def test_about_to_run_dry_is_measured_in_steps() -> None:
    """A listener must not be made late by a first step that goes before him."""
    scheduler = one_lane()
    asking(scheduler, Urgency(NOW, first=True))
    step(scheduler, seconds=0.1)
    assert scheduler.critical_s == pytest.approx(0.2)
    first = asking(scheduler, Urgency(NOW, first=True))
    listener = asking(scheduler, Urgency(NOW + 0.15))
    assert order(scheduler) == [listener, first]


def test_a_first_sound_that_waited_long_is_not_starved_by_dry_listeners() -> None:
    scheduler = one_lane()
    first = asking(scheduler, Urgency(NOW, first=True), principal="new")
    later = NOW + FIRST_PATIENCE_S + 0.1
    step_of_old = asking(scheduler, Urgency(NOW - 1), now=NOW, principal="old")
    assert step(scheduler, NOW) == [step_of_old]
    dry = asking(scheduler, Urgency(later - 0.01), now=later, principal="old")
    assert order(scheduler, later) == [first, dry]


def test_first_sounds_of_one_principal_come_in_order() -> None:
    scheduler = one_lane()
    asked = [asking(scheduler, Urgency(NOW, first=True), NOW + n / 1000) for n in range(5)]
    assert order(scheduler, NOW + 0.01) == asked


# ---- fairness ----


def test_who_had_less_goes_first_among_first_sounds() -> None:
    scheduler = one_lane()
    asking(scheduler, Urgency(NOW, first=True), principal="busy")
    step(scheduler, seconds=1.0)
    busy = [asking(scheduler, Urgency(NOW, first=True), principal="busy") for _ in range(3)]
    other = asking(scheduler, Urgency(NOW, first=True), NOW + 0.01, principal="other")
    assert order(scheduler, NOW + 0.02)[0] is other
    assert busy[0].place is Place.IDLE


def test_read_ahead_is_shared_by_principal_and_not_by_stream() -> None:
    """One principal with ten streams and one with a single one get the same."""
    scheduler = one_lane()
    had = {"many": 0, "one": 0}
    streams = [asking(scheduler, Urgency(inf), principal="many") for _ in range(10)]
    streams.append(asking(scheduler, Urgency(inf), principal="one"))
    now = NOW
    for _ in range(200):
        (served,) = step(scheduler, now)
        had[served.principal] += 1
        now += STEP_S
        scheduler.submit(served, now)
    assert abs(had["many"] - had["one"]) <= 2


def test_while_all_can_be_served_in_time_the_soonest_goes_first_whoever_it_belongs_to() -> None:
    scheduler = one_lane()
    asking(scheduler, Urgency(NOW, first=True), principal="greedy")
    step(scheduler, seconds=1.0)
    greedy = asking(scheduler, Urgency(NOW + 0.01), principal="greedy")
    modest = asking(scheduler, Urgency(NOW + 0.02), principal="modest")
    assert order(scheduler) == [greedy, modest]


def test_once_somebody_is_dry_whoever_had_less_goes_first() -> None:
    scheduler = one_lane()
    asking(scheduler, Urgency(NOW, first=True), principal="greedy")
    step(scheduler, seconds=1.0)
    greedy = asking(scheduler, Urgency(NOW - 0.2), principal="greedy")
    modest = asking(scheduler, Urgency(NOW - 0.1), principal="modest")
    assert order(scheduler) == [modest, greedy]


def test_shares_fade_and_the_table_stays_small() -> None:
    shares = Shares()
    shares.charge("early", 1.0, 1e9)
    shares.charge("late", 0.6, 1e9 + 5)
    assert shares.had("late") > shares.had("early")
    for number in range(100_000):
        shares.charge(f"p{number}", 0.001, 1e9 + 10 + number / 10)
    assert len(shares) < 3_000
    shares.charge("after a long time", 1.0, 1e9 + 1e8)
    assert len(shares) == 1


# ---- cancel ----


def test_a_withdrawn_stream_is_never_served_and_its_job_can_be_let_go_at_once() -> None:
    scheduler = one_lane()
    kept, gone = asking(scheduler, Urgency(NOW + 1)), asking(scheduler, Urgency(NOW))
    assert scheduler.withdraw(gone)
    assert scheduler.waiting == 1
    assert order(scheduler) == [kept]
    assert scheduler.waiting == 0


def test_a_stream_withdrawn_in_its_step_is_named_when_the_step_ends() -> None:
    scheduler = one_lane()
    ticket = asking(scheduler, Urgency(NOW))
    plan = scheduler.schedule(NOW)
    assert not scheduler.withdraw(ticket)
    _, let_go = scheduler.apply(plan, Outcome(STEP_S, 0.1), NOW + STEP_S)
    assert let_go == [ticket]
    assert not scheduler.schedule(NOW + 1).batch


def test_jobs_of_a_step_that_raised_are_let_go_and_teach_nothing() -> None:
    scheduler = one_lane()
    ticket = asking(scheduler, Urgency(NOW))
    plan = scheduler.schedule(NOW)
    _, let_go = scheduler.apply(plan, Outcome(99.0, 0.0, raised=True), NOW + 99)
    assert let_go == [ticket]
    assert scheduler.costs.step_s == 0


def test_an_old_entry_does_not_serve_a_stream_twice() -> None:
    """A companion taken out of the middle leaves an entry behind; asking again must not revive it."""
    scheduler = one_lane(batch_max=2)
    head, companion = asking(scheduler, Urgency(NOW)), asking(scheduler, Urgency(NOW + 0.001))
    assert set(step(scheduler)) == {head, companion}
    companion.urgency = Urgency(NOW + 50)
    scheduler.submit(companion, NOW + STEP_S)
    other = asking(scheduler, Urgency(NOW + 10), NOW + STEP_S, size=100)
    assert order(scheduler, NOW + STEP_S) == [other, companion]


def test_those_who_left_do_not_add_up_behind_somebody_who_waits() -> None:
    scheduler = one_lane()
    kept = asking(scheduler, Urgency(NOW - 1))
    for n in range(10_000):
        for urgency in (Urgency(NOW + n), Urgency(NOW, first=True)):
            assert scheduler.withdraw(asking(scheduler, urgency))
    (queue,) = scheduler._queues.values()
    assert len(queue.first) + len(queue.playing) < 100
    assert order(scheduler) == [kept]


# ---- batches ----


def test_batches_fill_with_the_most_urgent() -> None:
    scheduler = one_lane(batch_max=3)
    asked = [asking(scheduler, Urgency(NOW + 1 + n)) for n in (4, 0, 3, 1, 2)]
    assert step(scheduler) == [asked[1], asked[3], asked[4]]


def test_a_batch_is_never_padded_by_more_than_a_fifth() -> None:
    rng = random.Random(4)
    scheduler = one_lane(batch_max=16)
    for _ in range(300):
        asking(scheduler, Urgency(NOW + rng.random()), size=rng.randint(1, 40))
    batches = []
    while batch := step(scheduler):
        batches.append(batch)
        for ticket in batch:
            scheduler.finished(ticket)
    assert sum(map(len, batches)) == 300
    assert max(map(padding, batches)) < PADDING_MAX
    assert len(batches) < 40  # and yet they are large


def returning(scheduler: Scheduler, count: int) -> list[Ticket]:
    """Streams of which a batch of four was served twice and a batch of one, so that costs are known."""
    served: list[Ticket] = []
    for size, seconds in ((4, 0.014), (1, 0.011), (count, 0.010 + 0.001 * count)):
        for ticket in served:
            scheduler.finished(ticket)
        served = [asking(scheduler, Urgency(NOW + 1)) for _ in range(size)]
        assert len(step(scheduler, NOW, seconds)) == size
    return served


def test_a_batch_waits_a_moment_for_those_who_come_back() -> None:
    scheduler = one_lane(batch_max=4)
    served = returning(scheduler, 3)
    assert scheduler.costs.fixed_s == pytest.approx(0.010)
    now = NOW + 0.013
    other = asking(scheduler, Urgency(NOW + 5), now)
    plan = scheduler.schedule(now)
    assert not plan.batch
    assert plan.look_again_at == pytest.approx(now + GATHER_MAX_S)
    for ticket in served:
        scheduler.submit(ticket, now + 0.001)
    assert set(step(scheduler, now + 0.001)) == {other, *served}


def test_it_waits_no_longer_than_that() -> None:
    scheduler = one_lane(batch_max=4)
    returning(scheduler, 3)
    other = asking(scheduler, Urgency(NOW + 5), NOW + 0.013)
    until = scheduler.schedule(NOW + 0.013).look_again_at
    assert until is not None
    assert step(scheduler, until) == [other]


@pytest.mark.parametrize(
    ("urgency", "why"),
    [(Urgency(NOW, first=True), "a first sound never waits"), (Urgency(NOW + 0.02), "it would run dry")],
)
def test_nobody_in_a_hurry_waits_for_a_batch(urgency: Urgency, why: str) -> None:
    scheduler = one_lane(batch_max=4)
    returning(scheduler, 3)
    ticket = asking(scheduler, urgency, NOW + 0.013)
    assert step(scheduler, NOW + 0.013) == [ticket], why


def test_an_engine_whose_jobs_join_at_any_step_waits_for_those_of_the_last_also_in_a_hurry() -> None:
    """Their steps are one code long: whoever is left out of one is a whole step later."""
    scheduler = Scheduler(lanes=1, batch_max=4, continuous=True)
    tickets = [asking(scheduler, Urgency(NOW, first=True)) for _ in range(3)]
    assert step(scheduler) == tickets
    now = NOW + STEP_S
    scheduler.submit(tickets[0], now)
    plan = scheduler.schedule(now)
    assert not plan.batch
    assert plan.look_again_at == pytest.approx(now + GATHER_CONTINUOUS_S)
    for ticket in tickets[1:]:
        scheduler.submit(ticket, now)
    assert set(step(scheduler, now)) == set(tickets)


def test_it_goes_on_without_those_who_do_not_come_back() -> None:
    scheduler = Scheduler(lanes=1, batch_max=4, continuous=True)
    tickets = [asking(scheduler, Urgency(NOW, first=True)) for _ in range(2)]
    step(scheduler)
    now = NOW + STEP_S
    scheduler.submit(tickets[0], now)
    until = scheduler.schedule(now).look_again_at
    assert until is not None
    assert step(scheduler, until) == tickets[:1]


@pytest.mark.parametrize("alone", [True, False])
def test_a_wait_that_somebody_alone_ends_tells_nothing_about_waiting(alone: bool) -> None:
    scheduler = Scheduler(lanes=1, batch_max=4, continuous=True)
    waits = []
    for round_ in range(60):
        now = NOW + round_
        tickets = [asking(scheduler, Urgency(now + 50), now) for _ in range(2)]
        assert step(scheduler, now) == tickets
        now += STEP_S
        scheduler.submit(tickets[0], now)
        plan = scheduler.schedule(now)
        waits.append(not plan.batch)
        if waits[-1]:
            if alone:
                head = Ticket("ann", urgency=Urgency(now, first=True), alone=True)
                scheduler.submit(head, now)
                assert step(scheduler, now) == [head]
                scheduler.finished(head)
            else:
                assert step(scheduler, now + GATHER_CONTINUOUS_S) == tickets[:1]
        else:
            scheduler.apply(plan, Outcome(STEP_S, 0.1), now)
        for ticket in tickets:
            scheduler.finished(ticket)
    assert all(waits) is alone


def test_nothing_waits_where_nobody_comes_back() -> None:
    """Streams that have enough sound do not ask again soon: then waiting for them is a loss."""
    scheduler = one_lane(batch_max=4)
    waits = []
    for round_ in range(200):
        now = NOW + round_
        returning(scheduler, 3)
        asking(scheduler, Urgency(now + 50), now)
        plan = scheduler.schedule(now)
        waits.append(not plan.batch)
        if plan.look_again_at is not None:
            plan = scheduler.schedule(plan.look_again_at)
        scheduler.apply(plan, Outcome(0.011, 0.1), now)
        scheduler.finished(plan.batch[0])
    assert waits[0]
    assert sum(waits[100:]) <= 10


def test_nothing_waits_where_a_batch_saves_nothing() -> None:
    scheduler = one_lane(batch_max=4)
    for size in (4, 1, 3):
        for _ in range(size):
            asking(scheduler, Urgency(NOW + 1))
        step(scheduler, NOW, 0.01 * size)
    ticket = asking(scheduler, Urgency(NOW + 5), NOW + 0.1)
    assert step(scheduler, NOW + 0.1) == [ticket]


# ---- costs ----


def test_capacity_is_what_was_measured_with_every_lane_at_work() -> None:
    costs = StepCosts(lanes=2, batch_max=1)
    assert costs.streams == 0
    for n in range(50):
        costs.add(StepReport(0.05, 1, 1.0), 1, NOW + n)
    assert costs.streams == pytest.approx(40)
    for n in range(50):
        costs.add(StepReport(0.08, 1, 1.0), 2, NOW + 50 + n)
    assert costs.streams == pytest.approx(25)


def test_capacity_follows_a_machine_that_gets_slower_and_faster_again_within_a_minute() -> None:
    """Also where few steps ever run side by side: how much they slow each other down does not change."""
    costs = StepCosts(lanes=2, batch_max=1)
    for n in range(1_000):
        costs.add(StepReport(0.05, 1, 1.0), 1, NOW + n)
        costs.add(StepReport(0.07, 1, 1.0), 2, NOW + n)
    assert costs.streams == pytest.approx(2 / 0.07, rel=0.01)
    for n in range(40):
        costs.add(StepReport(0.5, 1, 1.0), 1, NOW + 1_000 + n)
    assert costs.streams < 6
    for n in range(60):
        costs.add(StepReport(0.05, 1, 1.0), 1, NOW + 1_060 + n)
    assert costs.streams > 20


def test_after_a_silence_capacity_is_learned_anew_at_once() -> None:
    costs = StepCosts(lanes=1, batch_max=1)
    for n in range(100):
        costs.add(StepReport(0.5, 1, 1.0), 1, NOW + n)
    for n in range(3):
        costs.add(StepReport(0.05, 1, 1.0), 1, NOW + 300 + n)
    assert costs.streams == pytest.approx(20, rel=0.05)


def test_a_late_chunk_is_noticed_for_a_while() -> None:
    scheduler = one_lane()
    asking(scheduler, Urgency(NOW + 0.01))
    step(scheduler, NOW + 1, STEP_S)
    assert scheduler.late_s(NOW + 1.1) == pytest.approx(1.01, abs=0.1)
    assert scheduler.late_s(NOW + 1.1 + LATE_MEMORY_S) == 0


def test_who_asks_at_the_last_moment_was_not_made_late_by_us() -> None:
    scheduler = one_lane()
    for _ in range(20):
        asking(scheduler, Urgency(NOW + 5))
        step(scheduler)
    asking(scheduler, Urgency(NOW + 0.001))
    step(scheduler, NOW)
    assert scheduler.late_s(NOW + STEP_S) == 0


# ---- a simulated engine ----


@dataclass
class Listener:
    """Plays in real time; asks for the next chunk while it has less than four seconds."""

    ticket: Ticket
    begun_at: float
    left_s: float
    has_s: float = 0.0
    started_at: float | None = None
    dry_s: float = 0.0
    waited_s: float = 0.0
    audio_s: float = field(default=0.0)

    def slack(self, now: float) -> float:
        return 0.0 if self.started_at is None else self.started_at + self.audio_s + self.dry_s - now


def simulate(rng: random.Random, lanes: int, load: float, seconds: float = 20.0) -> list[Listener]:
    """Listeners come at random, `load` of what the engine can feed; chunks of 0.4 s take 20 ms each, 8 ms the first."""
    scheduler = Scheduler(lanes=lanes, batch_max=1)
    length_s = 6.0
    capacity = lanes * 0.4 / STEP_S
    arrivals = []
    at = NOW
    while at < NOW + seconds:
        at += rng.expovariate(load * capacity / length_s)
        arrivals.append(at)
    listeners: list[Listener] = []
    running: list[tuple[float, Plan, float]] = []  # when it ends
    by_ticket: dict[Ticket, Listener] = {}
    now = NOW

    def ask(listener: Listener) -> None:
        slack = listener.slack(now)
        listener.ticket.urgency = Urgency(now + max(0.0, slack), first=listener.started_at is None or slack <= 0)
        scheduler.submit(listener.ticket, now)

    while arrivals or running or any(each.left_s > 0 for each in listeners):
        while arrivals and arrivals[0] <= now:
            listener = Listener(Ticket(f"p{rng.randint(0, 3)}"), arrivals.pop(0), length_s)
            listeners.append(listener)
            by_ticket[listener.ticket] = listener
            ask(listener)
        for end, plan, audio_s in [each for each in running if each[0] <= now]:
            running.remove((end, plan, audio_s))
            scheduler.apply(plan, Outcome(STEP_S * audio_s / 0.4, audio_s), now)
            (ticket,) = plan.batch
            served = by_ticket[ticket]
            if served.started_at is None:
                served.started_at, served.waited_s = now, now - served.begun_at
            served.dry_s += max(0.0, -served.slack(now))
            served.audio_s += audio_s
            served.left_s -= audio_s
        for listener in listeners:
            if listener.ticket.place is Place.IDLE and listener.left_s > 0 and listener.slack(now) < 4:
                ask(listener)
        while len(running) < lanes and (plan := scheduler.schedule(now)).batch:
            first = by_ticket[plan.batch[0]].started_at is None
            audio_s = 0.16 if first else 0.4
            running.append((now + STEP_S * audio_s / 0.4, plan, audio_s))
        now += 0.002
    return listeners


@pytest.mark.parametrize("seed", range(6))
def test_below_capacity_nobody_runs_dry_and_first_sounds_come_at_once(seed: int) -> None:
    listeners = simulate(random.Random(seed), lanes=2, load=0.75)
    assert len(listeners) > 50
    assert sum(each.dry_s for each in listeners) < 0.01 * len(listeners)
    waits = sorted(each.waited_s for each in listeners)
    assert waits[len(waits) * 95 // 100] < 0.1


@given(st.integers(0, 10_000), st.integers(1, 3), st.floats(0.3, 1.6))
@settings(max_examples=10, deadline=None)
def test_every_stream_is_served_to_its_end_under_any_load(seed: int, lanes: int, load: float) -> None:
    for listener in simulate(random.Random(seed), lanes, load, seconds=3.0):
        assert listener.left_s <= 0
