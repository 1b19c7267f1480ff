"""Who may come in: tables of situations, and that no run of events lets in more than the engine can feed."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.scheduler.admission import (
    CALM_S,
    GRACE_S,
    LAG_S,
    LATE_S,
    RETRY_S,
    Admission,
    Conditions,
    Speakers,
)


def admission(max_streams: float = 0.0) -> Admission:
    return Admission(max_streams, Random(1))


def speaking(count: int, max_streams: float = 0.0, now: float = 0.0) -> Admission:
    """An admission with so many who speak."""
    made = admission(max_streams)
    for number in range(count):
        made.speakers.speaks(f"s{number}", now)
    return made


@pytest.mark.parametrize(
    ("streams", "max_streams", "speak", "opens", "begins"),
    [
        (0.0, 0, 500, True, True),  # nothing is known yet
        (0.4, 0, 0, True, True),  # one may always speak
        (0.4, 0, 1, False, False),
        (2.0, 0, 1, True, True),
        (2.9, 0, 2, False, False),
        (8.0, 0, 6, True, True),
        (8.0, 0, 7, False, True),  # the last of eight is kept for those who are there
        (8.0, 0, 8, False, False),
        (100.0, 0, 87, True, True),
        (100.0, 0, 88, False, True),
        (100.0, 0, 99, False, True),
        (100.0, 0, 100, False, False),
        (100.0, 3, 3, False, False),  # what is set replaces what is measured
        (1.0, 3, 2, True, True),
        (0.0, 0.5, 0, True, True),
        (0.0, 0.5, 1, False, False),
    ],
)
def test_capacity(streams: float, max_streams: float, speak: int, opens: bool, begins: bool) -> None:
    there, conditions = speaking(speak, max_streams), Conditions(streams)
    assert (there.judge(0.0, conditions) is None) is opens
    assert (there.judge(0.0, conditions, "idle") is None) is begins


@pytest.mark.parametrize(
    ("conditions", "opens", "begins"),
    [
        (Conditions(first_wait_s=0.39), True, True),
        (Conditions(first_wait_s=0.4), False, True),
        (Conditions(first_wait_s=0.8), False, False),
        (Conditions(late_s=LATE_S * 0.9), True, True),
        (Conditions(late_s=LATE_S), False, True),
        (Conditions(late_s=0.5), False, False),
        (Conditions(lag_s=LAG_S), False, True),
        (Conditions(lag_s=LAG_S * 2), False, False),
        (Conditions(workers=0), False, False),
    ],
)
def test_signs_of_strain(conditions: Conditions, opens: bool, begins: bool) -> None:
    there = speaking(3)
    assert (there.judge(0.0, conditions) is None) is opens
    assert (there.judge(0.0, conditions, "idle") is None) is begins


@pytest.mark.parametrize(
    ("streams", "speak", "opens"), [(40.0, 9, True), (40.0, 10, False), (0.0, 2, False), (4.0, 1, False)]
)
def test_where_few_speak_lateness_has_other_causes(streams: float, speak: int, opens: bool) -> None:
    for conditions in (Conditions(streams, late_s=1.0), Conditions(streams, lag_s=1.0)):
        assert (speaking(speak).judge(0.0, conditions) is None) is opens
    assert speaking(speak).judge(0.0, Conditions(streams, first_wait_s=0.5)) is not None


def test_where_nobody_speaks_nothing_is_a_sign_of_strain() -> None:
    assert admission().judge(0.0, Conditions(8.0, first_wait_s=9, late_s=9, lag_s=9)) is None


def test_without_an_engine_nobody_comes_in() -> None:
    refusal = admission().judge(0.0, Conditions(workers=0))
    assert refusal is not None
    assert refusal.reason == "loading"


def test_after_strain_it_stays_shut_for_a_moment() -> None:
    there, calm = speaking(3), Conditions(10.0)
    assert there.judge(0.0, Conditions(10.0, late_s=1.0)) is not None
    assert there.judge(CALM_S * 0.9, calm) is not None
    assert there.judge(CALM_S * 0.9, calm, "idle") is None
    assert there.judge(CALM_S * 1.1, calm) is None


def test_a_measured_capacity_that_wavers_is_one_capacity() -> None:
    there = speaking(8)
    assert {there.places(Conditions(streams)) for streams in (8.01, 7.99, 8.2, 7.7, 8.3, 7.95)} == {8}
    assert there.places(Conditions(7.0)) == 7
    assert there.places(Conditions(16.5)) == 16
    assert there.places(Conditions(0.0)) is None


# ---- counting ----


def test_one_who_opened_counts_until_the_grace_is_over() -> None:
    speakers = Speakers()
    speakers.opened("a", 0.0)
    assert speakers.count(GRACE_S - 0.01) == 1
    assert speakers.count(GRACE_S) == 0
    assert speakers.speaking == 0


def test_a_burst_of_opens_is_seen() -> None:
    there, conditions = admission(), Conditions(16.0)
    let_in = 0
    for number in range(50):
        if there.judge(0.01 * number, conditions) is None:
            there.speakers.opened(f"s{number}", 0.01 * number)
            let_in += 1
    assert let_in == 14  # an eighth is kept for those who are there
    for number in range(let_in):
        assert there.judge(1.0, conditions, f"s{number}") is None  # each begins to speak
        there.speakers.begins(f"s{number}", 1.0)
    assert there.speakers.count(1.0) == let_in


def test_who_opens_and_says_nothing_counts_for_less_next_time() -> None:
    there, conditions, now = admission(), Conditions(10.0), 0.0
    let_in = 0
    while let_in < 2_000 and now < 60:
        if there.judge(now, conditions) is None:
            there.speakers.opened(f"s{let_in}", now)
            let_in += 1
        else:
            now += 0.05
    assert let_in == 2_000
    assert now < 20  # and not 2,000 / 9 * GRACE_S
    speakers = there.speakers
    for number in range(30):  # but those who speak teach otherwise
        speakers.opened(f"t{number}", now)
        speakers.speaks(f"t{number}", now)
    assert speakers._likely > 0.9


def test_many_idle_ones_who_begin_to_speak_are_judged_one_by_one() -> None:
    there, conditions = admission(), Conditions(10.0)
    there.speakers._likely = 0.02
    for number in range(100):
        assert there.judge(0.0, conditions) is None
        there.speakers.opened(f"s{number}", 0.0)
    began = 0
    for number in range(100):
        if there.judge(0.1, conditions, f"s{number}") is None:
            there.speakers.begins(f"s{number}", 0.1)
            began += 1
    assert began <= 10


def test_a_writer_who_pauses_keeps_the_place_for_a_moment() -> None:
    speakers = Speakers()
    speakers.begins("a", 0.0)
    assert speakers.count(GRACE_S * 0.9) == 1
    speakers.speaks("a", 1.0)
    assert speakers.count(100.0) == 1
    speakers.pauses("a", 100.0)
    speakers.pauses("a", 102.0)  # it still does
    assert speakers.count(100.0 + GRACE_S * 0.9) == 1
    assert speakers.count(100.0 + GRACE_S) == 0
    speakers.speaks("a", 110.0)
    assert speakers.count(110.0) == 1
    speakers.falls_silent("a", 111.0)
    assert speakers.count(111.0) == 0


def test_nothing_is_kept_of_who_has_left() -> None:
    speakers = Speakers()
    for number in range(100):
        name = f"s{number}"
        speakers.opened(name, 0.0)
        if number % 2:
            speakers.begins(name, 0.0)
        if number % 3:
            speakers.speaks(name, 0.0)
        speakers.left(name, 1.0)
        speakers.pauses(name, 1.0)
        speakers.falls_silent(name, 1.0)
    assert not any((speakers._speaking, speakers._opened, speakers._pausing))
    assert speakers._begun == 0.0


# ---- when to try again ----


def test_the_time_to_try_again_follows_from_how_long_streams_last() -> None:
    short, long = speaking(10, 10), speaking(10, 10)
    for number in range(200):
        for there, seconds in ((short, 1.0), (long, 60.0)):
            there.speakers.speaks(f"t{number}", 0.0)
            there.speakers.falls_silent(f"t{number}", seconds)
    waits = []
    for there in (short, long):
        refusal = there.judge(0.0, Conditions())
        assert refusal is not None
        waits.append(refusal.retry_after_s)
    assert waits[0] < 2
    assert 5 < waits[1] < 10


def test_who_has_spoken_for_long_is_not_expected_to_end_soon() -> None:
    there = speaking(2, 2)
    refusal = there.judge(600.0, Conditions())
    assert refusal is not None
    assert refusal.retry_after_s >= RETRY_S[1]


def test_those_turned_away_together_do_not_come_back_together() -> None:
    there = speaking(4, 4)
    refusals = [there.judge(0.0, Conditions()) for _ in range(40)]
    waits = [refusal.retry_after_s for refusal in refusals if refusal]
    assert len(waits) == 40
    assert waits[0] < 3
    assert max(waits) > 20
    assert max(waits) <= RETRY_S[1] * 1.5
    assert len({round(wait, 1) for wait in waits}) > 25
    later = there.judge(100.0, Conditions())  # nobody came back: they gave up
    assert later is not None
    assert there._turned_away < 1.01


# ---- any run of events ----

events = st.lists(
    st.tuples(st.sampled_from(("open", "begin", "quiet", "leave", "wait")), st.integers(0, 11), st.floats(0, 2)),
    max_size=150,
)


@settings(max_examples=150, deadline=None)
@given(st.floats(0.2, 12), events)
def test_never_more_speak_than_the_engine_can_feed(streams: float, steps: list[tuple[str, int, float]]) -> None:
    there, conditions, now = admission(), Conditions(streams), 0.0
    is_open: set[str] = set()
    speak: set[str] = set()
    for what, number, pause in steps:
        name = f"s{number}"
        if what == "wait":
            now += pause
        elif what == "open" and name not in is_open and there.judge(now, conditions) is None:
            there.speakers.opened(name, now)
            is_open.add(name)
        elif what == "begin" and name in is_open - speak and there.judge(now, conditions, name) is None:
            there.speakers.begins(name, now)
            there.speakers.speaks(name, now)
            speak.add(name)
        elif what == "quiet" and name in speak:
            there.speakers.falls_silent(name, now)
            speak.discard(name)
        elif what == "leave" and name in is_open:
            there.speakers.left(name, now)
            is_open.discard(name)
            speak.discard(name)
        assert there.speakers.speaking == len(speak) <= max(1, int(streams))
        assert there.speakers.count(now) >= len(speak)
        assert len(there.speakers._opened) <= len(is_open)
