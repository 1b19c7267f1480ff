"""What a principal may use: each limit alone, all of them together, and never at the cost of somebody else."""

from hypothesis import given
from hypothesis import strategies as st

from server.scheduler.principals import PrincipalLimits, PrincipalUse


def test_without_limits_everything_goes_and_nothing_is_kept() -> None:
    use = PrincipalUse(PrincipalLimits())
    for _ in range(1_000):
        assert use.judge_open("ann", 0) is None
        assert not use.full("ann")
        use.entered("ann", 0)
        use.spoke("ann", 10**9, 10**6, 0)
        assert use.failed("ann", 0) is None
    assert use.judge_begin("ann", 0) is None
    assert not use.has_quota
    for _ in range(1_000):
        use.left("ann")
    assert not use._sessions


def test_sessions_at_a_time() -> None:
    use = PrincipalUse(PrincipalLimits(sessions=2))
    use.entered("ann", 0)
    assert not use.full("ann")
    use.entered("ann", 0)
    assert use.full("ann")
    assert not use.full("bob")
    refusal = use.too_many("ann")
    assert (refusal.reason, refusal.retry_after_ms) == ("sessions", 2_000)
    assert "at most 2 sessions at a time are allowed" in refusal.message
    use.left("ann")
    assert not use.full("ann")


def test_new_sessions_a_second() -> None:
    use = PrincipalUse(PrincipalLimits(session_rate=2.0, session_burst=3))
    for _ in range(3):
        assert use.judge_open("ann", 0) is None
        use.entered("ann", 0)
    refusal = use.judge_open("ann", 0)
    assert refusal is not None
    assert (refusal.reason, refusal.retry_after_s) == ("rate", 0.5)
    assert use.judge_open("bob", 0) is None
    assert use.judge_open("ann", 0.5) is None
    use.entered("ann", 0.5, new=False)  # one from another process had its place
    assert use.judge_open("ann", 0.5) is None


def test_a_quota_is_charged_afterwards_and_a_debt_delays_the_next() -> None:
    use = PrincipalUse(PrincipalLimits(chars=100, audio_s=60, window_s=100))
    assert use.has_quota
    assert use.judge_begin("ann", 0) is None
    use.spoke("ann", 99, 5.0, 0)
    assert use.judge_begin("ann", 0) is None  # there is one left: an utterance is never cut, however long it gets
    use.spoke("ann", 50, 5.0, 0)
    refusal = use.judge_begin("ann", 0)
    assert refusal is not None
    assert (refusal.reason, refusal.retry_after_s) == ("quota", 50)  # 49 owed, and one to begin with
    assert "100 characters in 100 s" in refusal.message
    assert use.judge_open("ann", 0) is not None
    assert use.judge_begin("bob", 0) is None
    assert use.judge_begin("ann", 50) is None


def test_audio_has_a_quota_of_its_own() -> None:
    use = PrincipalUse(PrincipalLimits(audio_s=60, window_s=60))
    use.spoke("ann", 10**6, 61.0, 0)
    refusal = use.judge_begin("ann", 0)
    assert refusal is not None
    assert "60 s of audio" in refusal.message
    assert use.judge_begin("ann", 1.1) is None


def test_attempts_that_fail_are_limited_and_others_are_not_touched() -> None:
    use = PrincipalUse(PrincipalLimits(failures=3))
    assert [use.failed("10.0.0.1", 0) for _ in range(3)] == [None] * 3
    refusal = use.failed("10.0.0.1", 0)
    assert refusal is not None
    assert refusal.reason == "rate"
    assert refusal.retry_after_s == 1_200
    assert use.failed("10.0.0.2", 0) is None
    assert use.judge_open("10.0.0.1", 0) is None
    assert use.failed("10.0.0.1", 1_200) is None


@given(st.lists(st.tuples(st.sampled_from(("ann", "bob")), st.booleans(), st.floats(0, 2)), max_size=200))
def test_never_more_sessions_nor_a_higher_rate_than_allowed(steps: list[tuple[str, bool, float]]) -> None:
    use, now = PrincipalUse(PrincipalLimits(sessions=3, session_rate=1.0, session_burst=4)), 0.0
    opened: dict[str, list[float]] = {"ann": [], "bob": []}
    for who, opens, pause in steps:
        now += pause
        if opens and not use.full(who) and use.judge_open(who, now) is None:
            use.entered(who, now)
            opened[who].append(now)
        elif use.sessions(who):
            use.left(who)
        assert use.sessions(who) <= 3
        for times in opened.values():
            assert all(len([t for t in times if t >= since]) <= 4 + (now - since) + 1e-6 for since in times)
