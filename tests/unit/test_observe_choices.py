"""Which sessions are logged in full, how many lines a flood gets, and what is kept of a session."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.link import Switch
from server.observe.account import MOST_CHANGES, MOST_UTTERANCES, SessionAccount
from server.observe.line_limit import MOST_KINDS, OTHER, LineLimiter
from server.observe.sampling import LEAST, DetailChoice, RunningQuantile, is_sampled


@given(st.lists(st.floats(0, 10), min_size=1, max_size=80), st.integers(1, 20))
def test_a_running_quantile_is_that_of_the_last_values(values: list[float], window: int) -> None:
    running = RunningQuantile(0.95, window, least=1)
    for value in values:
        running.add(value)
    last = sorted(values[-window:])
    assert running.value == last[min(len(last) - 1, int(0.95 * len(last)))]


def choose(choice: DetailChoice, first_audio_s: float | None = 0.05, **how: bool) -> str | None:
    return choice.why("s", **{"failed": False, "degraded": False, **how}, first_audio_s=first_audio_s)


def test_what_goes_badly_is_logged_in_full() -> None:
    choice = DetailChoice(0)
    assert choose(choice) is None
    assert choose(choice, failed=True, degraded=True) == "failed"
    assert choose(choice, degraded=True) == "degraded"
    assert choose(choice, None) is None


def test_slow_is_slower_than_nearly_all() -> None:
    choice = DetailChoice(0)
    assert [choose(choice, 9.0) for _ in range(LEAST)] == [None] * LEAST  # nobody knows yet what is usual
    choice = DetailChoice(0)
    for number in range(200):
        choose(choice, 0.05 + (number % 10) / 1000)
    assert choose(choice, 0.055) is None
    assert choose(choice, 0.2) == "slow"
    told = [choose(choice, 0.05 + number * 37 % 101 / 1000) for number in range(1_500)]
    assert 0.03 < told[500:].count("slow") / 1_000 < 0.07


def test_the_sample_is_a_share_and_the_same_in_every_process() -> None:
    ids = [f"session-{number}" for number in range(20_000)]
    taken = [each for each in ids if is_sampled(each, 1.0)]
    assert 140 < len(taken) < 260
    assert {"session-14", "session-94"} <= set(taken)  # as computed once, elsewhere
    assert all(is_sampled(each, 100) for each in ids[:100])
    assert not any(is_sampled(each, 0) for each in ids[:1_000])
    assert choose(DetailChoice(100)) == "sample"


def test_a_flood_gets_a_burst_and_then_a_line_a_second() -> None:
    limiter = LineLimiter(burst=5, per_s=1)
    assert sum(limiter.admit("bad_json", now=10.0) for _ in range(1_000)) == 5
    assert limiter.admit("bad_ack", now=10.0)  # another kind has lines of its own
    assert sum(limiter.admit("bad_json", now=10 + at / 100) for at in range(1_000)) == 9
    assert limiter.take_left_out() == {"bad_json": 995 + 991}
    assert limiter.take_left_out() == {}
    assert sum(limiter.admit("bad_json", now=1e6) for _ in range(10)) == 5


def test_kinds_are_bounded() -> None:
    limiter = LineLimiter(burst=1, per_s=0)
    admitted = sum(limiter.admit(f"kind {number}", now=0) for number in range(1_000))
    assert admitted == MOST_KINDS + 1
    assert limiter.take_left_out() == {OTHER: 1_000 - MOST_KINDS - 1}


def test_an_account_of_a_session() -> None:
    account = SessionAccount()
    account.waited(1, 0.3, 0.1)
    account.first_audio(1, 0.32, 0.12, "stream")
    account.waited(1, 0.4, 0.02)
    degraded = [account.degraded]
    account.stalled(1, 2.0, 3)
    account.switched(2.1, Switch("block", "ack_age"))
    account.resumed(2.5)
    account.first_audio(2, 3.0, 0.4, "block")
    account.spoken(1, 3.5, {"characters": 7})
    assert (account.first_audio_s, account.slowest_s, account.underruns, account.blocks) == (0.12, 0.4, 3, 1)
    assert [*degraded, account.degraded] == [False, True]
    detail = account.detail()
    assert detail["utterances"][0] == {
        "utterance": 1, "began_s": 0.2, "mode": "stream", "first_audio_ms": 120.0, "underruns": 3, "chunks": 2,
        "engine_wait_ms": 120, "longest_wait_ms": 100, "characters": 7,
    }  # fmt: skip
    assert detail["utterances"][1]["mode"] == "block"
    assert detail["changes"] == [
        {"at_s": 2.1, "mode": "block", "reason": "ack_age"},
        {"at_s": 2.5, "resumed": 1},
    ]
    assert detail["engine_wait_ms"] == 120


@pytest.mark.parametrize("count", [10, 1_000])
def test_an_account_is_bounded(count: int) -> None:
    account = SessionAccount()
    for number in range(count):
        account.waited(number, number, 0.01)
        account.switched(number, Switch("block", "jitter"))
    detail = account.detail()
    assert len(detail["utterances"]) == min(count, MOST_UTTERANCES)
    assert detail["utterances_left_out"] == max(0, count - MOST_UTTERANCES)
    assert detail["utterances"][-1]["utterance"] == count - 1
    assert len(detail["changes"]) == min(count, MOST_CHANGES)
