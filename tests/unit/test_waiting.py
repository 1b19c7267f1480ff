"""Which of the sessions without connection makes way."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from server.gateway.waiting import Waiting
from server.observe.metrics import Metrics


def live(principal: str, name: str, size: int) -> Any:
    return SimpleNamespace(session=SimpleNamespace(id=name, principal=principal, kept_bytes=size), counted_bytes=0)


def waiting(*sessions: Any, budget: int = 100) -> Waiting:
    made = Waiting(Metrics(), budget)
    for each in sessions:
        made.keep(each)
    return made


def test_nobody_makes_way_where_nobody_waits() -> None:
    assert not waiting()
    assert waiting().over_budget() is None
    assert waiting().in_the_way() is None
    assert waiting(live("ann", "a1", 5)).in_the_way("bob") is None


def test_the_oldest_of_whoever_left_most_makes_way() -> None:
    oldest, bobs = live("ann", "a1", 10), live("bob", "b1", 95)
    there = waiting(bobs, oldest, live("ann", "a2", 10))
    found = there.in_the_way(), there.in_the_way("bob"), there.over_budget()
    names = [each.session.id for each in found if each]
    assert names == ["a1", "b1", "b1"]  # bob has one alone, but it holds most
    there.remove(bobs)
    assert there.over_budget() is None
    assert (len(there), there.bytes) == (2, 20)


def test_who_holds_nothing_is_not_given_up_for_memory() -> None:
    empty, full = live("ann", "a1", 0), live("ann", "a2", 500)
    there = waiting(empty, full)
    assert [there.over_budget()] == [full]
    there.remove(full)
    assert there.over_budget() is None


def test_one_that_grows_keeps_its_place_in_the_row() -> None:
    first, second = live("ann", "a1", 10), live("ann", "a2", 10)
    there = waiting(first, second)
    first.session.kept_bytes = 60
    there.keep(first)
    assert there.bytes == 70
    assert there.in_the_way() is first


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.integers(0, 50), st.booleans()), max_size=60))
def test_the_counts_are_those_of_who_is_there(steps: list[tuple[str, int, int, bool]]) -> None:
    there, known = waiting(), dict[str, Any]()
    for principal, number, size, comes in steps:
        name = f"{principal}{number}"
        if comes:
            each = known.setdefault(name, live(principal, name, 0))
            each.session.kept_bytes = size
            there.keep(each)
        else:
            there.remove(known.pop(name, live(principal, name, 0)))
        assert sorted(each.session.id for each in there) == sorted(known)
        assert len(there) == len(known)
        assert there.bytes == sum(each.session.kept_bytes for each in known.values())
        if there.bytes > there.budget:
            assert there.over_budget() in known.values()
