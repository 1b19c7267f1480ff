"""Token buckets: what they grant is bounded, debts are paid, and nothing is kept of who took nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.scheduler.token_bucket import TokenBucket, TokenBuckets

steps = st.lists(st.tuples(st.floats(0, 5), st.floats(0.1, 8)), max_size=60)


@given(st.floats(1, 20), st.floats(0.1, 10), steps)
def test_never_more_is_granted_than_it_held_and_got(size: float, rate: float, pauses_and_amounts: object) -> None:
    assert isinstance(pauses_and_amounts, list)
    now = start = 100.0
    bucket, granted = TokenBucket(size, rate, now), 0.0
    for pause, amount in pauses_and_amounts:
        now += pause
        if bucket.level(now) >= amount:
            bucket.take(amount, now)
            granted += amount
        assert granted <= size + rate * (now - start) + 1e-6
        assert 0 <= bucket.level(now) <= size


@given(st.floats(1, 20), st.floats(0.1, 10), st.floats(0, 100), st.floats(0, 30))
def test_after_the_wait_it_holds_so_much_and_not_before(size: float, rate: float, taken: float, amount: float) -> None:
    bucket = TokenBucket(size, rate, 0.0)
    bucket.take(taken, 0.0)
    wait = bucket.wait_s(amount, 0.0)
    assert bucket.level(wait + 1e-6) >= min(amount, size) - 1e-3
    if wait > 1e-3:
        again = TokenBucket(size, rate, 0.0)
        again.take(taken, 0.0)
        assert again.level(wait * 0.9) < min(amount, size)


def test_a_debt_is_paid_first() -> None:
    bucket = TokenBucket(10, 1, 0)
    bucket.take(25, 0)
    assert bucket.level(0) == -15
    assert bucket.wait_s(1, 0) == 16
    assert bucket.level(15) == pytest.approx(0)
    assert not bucket.full(24)
    assert bucket.full(25)


def test_a_clock_that_stands_still_or_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(10, 1, 100)
    bucket.take(10, 100)
    assert bucket.level(50) == bucket.level(100) == 0
    assert bucket.level(101) == 1


def test_each_name_has_its_own() -> None:
    buckets = TokenBuckets(2, 1)
    buckets.take("ann", 2, 0)
    assert (buckets.level("ann", 0), buckets.level("bob", 0)) == (0, 2)
    assert (buckets.wait_s("ann", 1, 0), buckets.wait_s("bob", 1, 0)) == (1, 0)


def test_without_a_bound_nothing_is_kept() -> None:
    buckets = TokenBuckets(0, 0)
    buckets.take("ann", 5, 0)
    assert not buckets.bounded
    assert len(buckets) == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.floats(0, 1)), max_size=300))
def test_the_table_is_bounded(takes: list[tuple[int, float]]) -> None:
    buckets, now = TokenBuckets(5, 0.5, most=8), 0.0
    for name, pause in takes:
        now += pause
        buckets.take(str(name), 1, now)
        assert len(buckets) <= 8


def test_full_ones_are_forgotten_and_others_are_not() -> None:
    buckets = TokenBuckets(10, 1, most=1_000)
    buckets.take("owes", 10_000, 0)
    for number in range(500):
        buckets.take(f"name {number}", 1, number * 2.0)  # full again before the next one
    assert len(buckets) < 10
    assert buckets.level("owes", 1_000) < 0
