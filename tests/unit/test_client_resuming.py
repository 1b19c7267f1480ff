"""A session survives its connections: when others are tried, which one wins, and nothing lost or delivered twice."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.errors import ServerError, ServerLost, ServerMisbehaved
from client.reconnecting import ATTEMPT_S, LONGEST_PAUSE_S
from client.session import SessionState
from client.watchdog import WATCHDOG_S
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.frames import AudioFrame
from tests.support.client_rehearsal import Rehearsal
from tests.support.client_script import Script, Sent, frame, opened, samples


def speaking(**options: Any) -> tuple[Rehearsal, Script]:
    """A session in the middle of one utterance: 3 of its frames are here."""
    script = Script().speak([4_800, 2_400], [960 * n for n in range(1, 8)])
    show = Rehearsal(**options).say("你好。")
    show.feed(s.SeqAck(3, 1_000), *script.sent[:4])
    return show, script


def up_to(script: Script, frames: int) -> list[Sent]:
    """The beginning of a script, so many frames long."""
    at = [i for i, item in enumerate(script.sent) if isinstance(item, AudioFrame)][frames - 1]
    return script.sent[: at + 1]


# ---- which connection wins ----


def test_a_broken_connection_is_replaced_at_once_and_nothing_is_lost() -> None:
    show, script = speaking()
    show.until(0.1).lose()
    assert show.began == [0.1]
    assert show.notices == ["the connection broke: reconnecting"]
    show.until(0.2)
    ask = show.resume(script.sent)
    assert ask == c.Resume("id", "token", 0, 1, 1, 2_880, 1, 2_880, True)
    assert show.failure is None
    assert show.pcm() == script.pcm
    assert show.finished == [1]
    assert show.notices[1:] == ["resumed after 0.1 s"]
    assert (show.state.line.resumes, round(show.state.line.outage_s, 3)) == (1, 0.1)
    assert {ack.generation for ack in show.of(c.Ack)[-2:]} == {2}


def test_a_silent_connection_is_kept_until_another_one_answers() -> None:
    show, script = speaking()
    show.until(WATCHDOG_S)
    assert show.began == [pytest.approx(WATCHDOG_S)]
    assert "nothing came from the server for 1.2 s: reconnecting" in show.notices
    assert show.dropped == []
    show.resume(script.sent)
    assert show.dropped == [0]
    assert show.pcm() == script.pcm
    assert show.failure is None
    assert show.state.line.outage_s == pytest.approx(WATCHDOG_S)


def test_the_old_connection_may_wake_up_before_another_one_asks() -> None:
    show, script = speaking()
    show.until(1.3)
    show.do(show.state.start(c.Start(0, 1), show.now)).do(show.state.text("Later.", show.now))
    assert show.of(c.Start)[1:] == []
    show.feed(script.sent[4], connection=0)
    assert show.notices[1:] == []  # what was on its way says nothing about the other direction
    ping = show.of(c.Ping)[-1]
    show.feed(s.Pong(ping.id), connection=0)
    assert show.attempts == {}
    assert not show.state.is_out
    assert "the connection works again, after 1.3 s" in show.notices
    assert [type(m) for m in show.sent[-3:]] == [c.Start, c.Text, c.Ack]  # what had to wait
    show.feed(*script.sent[5:])
    assert show.pcm() == script.pcm
    assert show.state.line.resumes == 0
    show.until(2.0)
    assert len(show.began) == 1  # an attempt that comes through late is of no use
    assert show.do(show.state.connected(1, show.now)).asked == []


def test_what_the_old_connection_still_brings_is_taken_and_comes_twice() -> None:
    show, script = speaking()
    show.until(1.3)
    ask = show.connect()
    assert isinstance(ask, c.Resume)
    show.feed(script.sent[4], connection=0)  # it woke up after `resume` was sent
    assert show.attempts != {}
    resumed = s.Resumed(2, 0, 1, ask.next_sample, 0, "next", "block", 3, 1_000)
    show.feed(resumed, connection=1)
    assert show.dropped == [0]
    show.feed(script.sent[5], connection=0)  # too late
    for item in script.sent:
        if isinstance(item, AudioFrame) and item.first_sample >= ask.next_sample:
            show.feed(replace(item, generation=2))
    assert show.failure is None
    assert show.pcm() == script.pcm
    assert show.state.line.resent_bytes == 1_920
    assert show.state.line.mode == "block"


def test_a_lost_resumed_is_asked_for_again_with_the_same_token() -> None:
    show, script = speaking()
    show.lose()
    first = show.connect()
    assert isinstance(first, c.Resume)
    show.do(show.state.lost(None, "", show.now, 1)).until(1.0)  # `resumed` was on its way
    ask = show.resume(script.sent)
    assert (ask.token, ask.generation_seen) == ("token", 1)
    assert show.pcm() == script.pcm


def test_two_drops_in_a_row() -> None:
    show, script = speaking()
    show.lose().resume(up_to(script, 5))
    show.until(0.2).lose()
    ask = show.resume(script.sent)
    assert (ask.token, ask.generation_seen, ask.next_sample) == ("next", 2, 4_800)
    assert show.pcm() == script.pcm
    assert show.state.line.resumes == 2


@given(firsts=st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=6), heard=st.integers(0, 12))
def test_any_number_of_drops_loses_nothing(firsts: list[tuple[int, bool]], heard: int) -> None:
    script = Script().speak([4_800, 2_400], [960 * n for n in range(1, 8)])
    show = Rehearsal().say("你好。")
    show.feed(*script.sent[:heard])
    left, epoch = script.sent, 0
    for first, restarted in [*firsts, (99, False)]:
        epoch += restarted
        show.until(show.now + 1.0).lose()
        show.resume(left, epoch=epoch, first=first)
        left = show.repeated
    assert show.failure is None
    assert show.pcm() == script.pcm
    assert show.finished == [1]
    assert [type(event) for event in show.events()] == [type(x) for x in script.sent if isinstance(x, s.Event)]


# ---- attempts ----


def test_attempts_rush_for_30_s_then_ever_less_often_until_given_up() -> None:
    show, _ = speaking(resume_ttl_ms=100_000)
    show.lose()
    while show.failure is None:
        show.until(show.now + 0.05)
        show.refuse()
    gaps = [b - a for a, b in zip(show.began, show.began[1:], strict=False)]
    rush = [gap for at, gap in zip(show.began, gaps, strict=False) if at < 29.9]
    assert all(0.4 <= gap <= 0.66 for gap in rush)
    assert len({round(gap, 3) for gap in rush}) > 10
    late = [gap for at, gap in zip(show.began, gaps, strict=False) if at > 45]
    assert all(0.8 * LONGEST_PAUSE_S <= gap <= 1.2 * LONGEST_PAUSE_S + 0.1 for gap in late)
    assert isinstance(show.failure, ServerLost)
    assert str(show.failure) == (
        "the connection broke; no new connection brought it back in 100 s: nothing listens there"
    )
    assert show.now == pytest.approx(100, abs=0.1)
    assert show.state.line.outage_s == pytest.approx(100, abs=0.1)
    assert show.state.line.out_since is None


def test_an_outage_counts_while_it_lasts() -> None:
    show, script = speaking()
    show.until(0.5).lose().until(2.0)
    line = show.state.line
    assert (line.outage_s, line.out_since, line.outage_seconds(2.0)) == (0.0, 0.5, 1.5)
    show.resume(script.sent)
    assert (line.outage_s, line.out_since, line.outage_seconds(9.0)) == (1.5, None, 1.5)
    silent, script = speaking()
    silent.until(2.0)
    assert silent.state.line.outage_seconds(2.0) == 2.0  # since the server's last word
    refused, _ = speaking()
    refused.lose().until(1.0)
    refused.connect()
    refused.feed(s.Error("unauthorized", "no"), connection=1)
    assert refused.state.line.outage_s == 1.0


def test_giving_up_after_silence_says_what_to_do_once() -> None:
    show = Rehearsal(SessionState(opened(resume_ttl_ms=100), 0.0, reconnect_s=6.0)).say("x")
    show.until(WATCHDOG_S + 6.0)
    assert str(show.failure) == (
        "nothing came from the server for 1.2 s; no new connection brought it back in 7 s: "
        "no answer: check the network and the server"
    )


def test_giving_up_can_be_told() -> None:
    show = Rehearsal(SessionState(opened(resume_ttl_ms=100), 0.0, reconnect_s=3.0)).say("x")
    show.lose().until(2.9)
    assert show.failure is None
    assert isinstance(show.until(3.0).failure, ServerLost)
    assert Rehearsal(resume_ttl_ms=1).say("x").lose().until(29.9).failure is None  # at least 30 s


def test_pending_attempts_make_way_for_fresh_ones_but_for_the_oldest() -> None:
    show, _ = speaking()
    show.lose().until(4.9)
    assert 1 in show.attempts  # has its full time
    assert max(show.attempts.values()) > 4.2
    show.until(ATTEMPT_S)
    assert 1 not in show.attempts
    assert all(b - a < 0.66 for a, b in zip(show.began, show.began[1:], strict=False))


def test_attempts_on_a_slow_line_are_given_time() -> None:
    show = Rehearsal(SessionState(opened(resume_ttl_ms=1_000), 0.0, rtt_s=0.6)).say("x")
    show.lose().until(2.9)
    assert show.dropped == []
    assert sorted(show.attempts) == [1, 2, 3]


def test_one_connection_asks_at_a_time() -> None:
    show, _ = speaking()
    show.lose().until(1.2)
    assert isinstance(show.connect(1), c.Resume)
    assert show.connect(2) is None
    show.until(2.1)
    assert len(show.asked) == 1
    show.until(2.3)
    assert [number for number, _ in show.asked] == [1, 2]  # the first one is not answered
    show.feed(s.Resumed(3, 0, 1, 2_880, 0, "t", "stream", 3, 1_000), connection=2)
    assert show.carrier == 2
    assert 1 in show.dropped
    show.feed(s.Resumed(2, 0, 1, 2_880, 0, "t", "stream", 3, 1_000), connection=1)
    assert show.failure is None
    assert show.state.generation == 3


def test_busy_is_respected() -> None:
    show, script = speaking()
    show.lose()
    show.connect()
    show.feed(s.Busy(2_500, "a reason nobody knows yet", "come later"), connection=1)
    show.until(2.4)
    assert show.began == [0.0]
    show.until(2.6)
    assert len(show.began) == 2
    show.resume(script.sent)
    assert show.pcm() == script.pcm


def test_an_error_in_answer_to_resume_ends_it() -> None:
    show, _ = speaking()
    show.lose()
    show.connect()
    show.feed(s.Error("unauthorized", "no"), connection=1)
    assert isinstance(show.failure, ServerError)
    again, script = speaking()
    again.lose()
    again.connect()
    again.feed(s.Error("internal", "no", None, True), connection=1).until(1.0)
    again.resume(script.sent)
    assert again.pcm() == script.pcm


def test_a_server_that_restarts_is_waited_for() -> None:
    show, script = speaking()
    show.feed(s.GoAway(500, "maintenance")).lose(1012)
    assert show.notices == ["the server stopped or restarts: reconnecting"]
    show.refuse().until(0.7)
    show.resume(script.sent, epoch=1)
    assert show.pcm() == script.pcm
    assert show.finished == [1]
    assert not show.state.going_away


def test_a_server_that_drops_every_connection_is_given_up_in_time() -> None:
    show, _ = speaking(resume_ttl_ms=30_000)
    show.lose()
    generation = 1
    while show.failure is None:
        show.until(show.now + 0.01)
        if show.attempts:
            show.connect()
            generation += 1
            number = show.asked[-1][0]
            show.feed(s.Resumed(generation, 0, 1, 2_880, 0, "t", "stream", 3, 1_000), connection=number).lose()
    assert isinstance(show.failure, ServerLost)
    assert show.now == pytest.approx(30, abs=1)
    assert len(show.began) < 70


@pytest.mark.parametrize("code", [1003, 1007, 1008, 1009])
def test_a_refusal_is_final(code: int) -> None:
    show, _ = speaking()
    assert isinstance(show.lose(code).failure, ServerLost)


@pytest.mark.parametrize("options", [{"resume_ttl_ms": 0}, {"resume": False}])
def test_without_resuming_a_lost_connection_is_the_end(options: dict[str, int]) -> None:
    resume = bool(options.pop("resume", True))
    state = SessionState(opened(**({"resume_ttl_ms": 9} | options)), 0.0, resume=resume)
    show = Rehearsal(state).say("x")
    assert isinstance(show.lose(1011).failure, ServerLost)
    assert show.began == []
    state = SessionState(opened(**({"resume_ttl_ms": 9} | options)), 0.0, resume=resume)
    assert isinstance(Rehearsal(state).say("x").until(WATCHDOG_S).failure, ServerLost)


@pytest.mark.parametrize(
    ("resume", "why"),
    [(True, "the server keeps no sessions: "), (False, "resuming is off: without --no-resume ")],
)
def test_without_resuming_it_says_so_and_how_to_change_that(resume: bool, why: str) -> None:
    def started() -> Rehearsal:
        return Rehearsal(SessionState(opened(resume_ttl_ms=0 if resume else 9), 0.0, resume=resume)).say("x")

    broke = str(started().lose().failure)
    assert broke.startswith(f"the connection broke before the audio was complete, and {why}")
    silent = str(started().until(WATCHDOG_S).failure)
    assert silent.startswith(f"nothing came from the server for 1.2 s, and {why}")
    on_purpose = str(started().feed(s.GoAway(500, "maintenance")).lose().failure)
    assert on_purpose == "the server stopped or restarts: run this again in a moment"


def test_an_idle_session_comes_back_too() -> None:
    show = Rehearsal()
    show.until(5.0).lose()
    assert show.connect() == c.Resume("id", "token", 0, 1, 0, 0, 0, 0, True)
    show.feed(s.Resumed(2, 0, 0, 0, 0, "t", "stream", 0, 1_000), connection=1)
    script = Script().speak([2_400], [])
    show.say("Hi.").feed(*[replace(i, generation=2) if isinstance(i, AudioFrame) else i for i in script.sent])
    assert show.pcm() == script.pcm


def test_a_laptop_that_slept_during_an_outage_tries_on() -> None:
    show, script = speaking(resume_ttl_ms=30_000)
    show.lose().until(1.0)
    due = show.state.deadline()
    assert due is not None
    show.now = 3_600.0
    show.do(show.state.tick(show.now, due))
    assert show.failure is None
    show.until(3_601.0)
    show.resume(script.sent)
    assert show.pcm() == script.pcm


# ---- what was said meanwhile ----


def test_what_is_said_during_an_outage_is_said_afterwards_once() -> None:
    show = Rehearsal(window=100).say("Hello. ", end=False)
    show.feed(s.SeqAck(1, 100)).lose()
    sent = len(show.sent)
    show.do(show.state.text("x" * 60, show.now))
    assert show.state.room == 33
    show.do(show.state.silence(100, 0.0)).do(show.state.end(0.0)).do(show.state.pause(True, 0.0))
    assert show.sent[sent:] == []
    show.resume([], seq=2)
    said = [m for m in show.sent[sent:] if not isinstance(m, c.Ack)]
    assert said == [c.Text(3, "x" * 60), c.Silence(4, 100), c.End(5), c.Pause(6)]
    assert [m.seq for m in show.state.window.unacked] == [3, 4, 5, 6]


def test_a_soft_flush_happens_at_the_same_place_during_an_outage() -> None:
    show = Rehearsal().say("It is late.", end=False).lose().until(0.5)
    show.resume([], seq=2)
    assert show.of(c.Flush) == [c.Flush(3, True)]


@pytest.mark.parametrize("message", ["end", "cancel"])
def test_a_lost_message_heals(message: str) -> None:
    show = Rehearsal().say("Hi.", end=False)
    show.do(show.state.end(0.0) if message == "end" else show.state.cancel(1, 0, 0.0))
    lost = show.sent[-1]
    show.lose().resume([], seq=2)
    assert show.sent.count(lost) == 2
    if message == "cancel":
        show.feed(s.Cancelled(1, 1, 0, 0))
        assert show.finished == [1]


def test_a_lost_done_heals() -> None:
    script = Script().speak([2_400], [])
    show = Rehearsal().say("Hi.").feed(*script.sent[:-1]).lose()
    show.resume(script.sent)
    assert show.finished == [1]
    assert show.failure is None


# ---- what the server sends wrong ----


def test_a_gap_is_asked_for_again() -> None:
    show, script = speaking()
    show.until(0.3).feed(frame(3_840, samples(10)))
    assert show.failure is None
    assert show.dropped == [0]
    assert show.notices == ["audio is missing: reconnecting"]
    show.resume(script.sent)
    assert show.pcm() == script.pcm


def test_a_missing_event_is_asked_for_again() -> None:
    show, script = speaking()
    show.feed(s.SegmentEnd(3, 1, 0, 100, "0" * 64)).resume(script.sent)
    assert show.pcm() == script.pcm
    assert show.finished == [1]


def test_a_gap_right_after_a_resume_is_no_accident() -> None:
    show, _ = speaking()
    show.until(5.0).lose().resume([])
    show.until(9.0).feed(replace(frame(3_840, samples(10)), generation=2))
    assert isinstance(show.failure, ServerMisbehaved)


def test_two_gaps_within_a_second_are_no_accident() -> None:
    show, script = speaking()
    show.until(0.3).feed(frame(3_840, samples(10))).resume(up_to(script, 4))
    show.until(0.6).feed(replace(frame(4_800, samples(10)), generation=2))
    assert isinstance(show.failure, ServerMisbehaved)


def test_gaps_that_are_far_apart_are_asked_for_again() -> None:
    show, script = speaking()
    show.until(0.3).feed(frame(3_840, samples(10))).resume(up_to(script, 4))
    show.until(1.4).feed(replace(frame(4_800, samples(10)), generation=2)).resume(script.sent)
    assert show.pcm() == script.pcm


@pytest.mark.parametrize("resumed", [
    s.Resumed(1, 0, 1, 2_880, 0, "t", "stream", 3, 1_000), s.Resumed(2, 0, 1, 2_880, 0, "t", "stream", 9, 1_000),
])  # fmt: skip
def test_a_resumed_that_contradicts_is_refused(resumed: s.Resumed) -> None:
    show, _ = speaking()
    show.lose()
    show.connect()
    show.feed(resumed, connection=1)
    assert isinstance(show.failure, ServerMisbehaved)


def test_a_server_that_lost_the_end_of_its_journal_is_asked_for_a_new_session() -> None:
    """On another connection: this one carries the session that cannot go on."""
    show, _ = speaking()
    show.lose()
    show.connect()
    show.feed(s.Resumed(2, 1, 1, 2_880, 0, "t", "stream", 2, 1_000), connection=1)
    assert show.failure is None
    assert 1 in show.dropped
    show.until(show.now + 1.0)
    assert isinstance(show.connect(), c.Open)


# ---- a restarted server, another format ----


def test_events_that_a_restarted_server_repeats_are_delivered_once() -> None:
    script = Script().speak([4_800, 2_400], [960 * n for n in range(1, 8)])
    words = [s.Word("a", 0, 1, 0, 100), s.Word("b", 1, 2, 100, 200), s.Word("c", 2, 3, 200, 300)]
    show = Rehearsal().say("abc")
    begin, rest = script.sent[0], script.sent[1:]
    show.feed(begin, s.Timing(2, 1, 0, (words[0], words[1])), *rest[:2]).lose()
    ask = show.connect()
    assert isinstance(ask, c.Resume)
    show.feed(s.Resumed(2, 1, 1, ask.next_sample, 0, "t", "stream", 3, 1_000), connection=1)
    assert isinstance(begin, s.SegmentBegin)
    show.feed(replace(begin, event=3), s.Timing(4, 1, 0, (words[0], words[1])), s.Timing(5, 1, 0, tuple(words[1:])))
    event = 5
    for item in rest[2:]:
        if isinstance(item, AudioFrame):
            show.feed(replace(item, generation=2))
        elif isinstance(item, s.Event) and not isinstance(item, s.Done):
            event += 1
            show.feed(replace(item, event=event))
            if isinstance(item, s.SegmentEnd):
                event += 1
                show.feed(replace(item, event=event))
    assert show.failure is None
    told = [e for e in show.events() if isinstance(e, s.Timing)]
    assert [word.text for timing in told for word in timing.words] == ["a", "b", "c"]
    assert [type(e) for e in show.events()].count(s.SegmentBegin) == 2
    assert [type(e) for e in show.events()].count(s.SegmentEnd) == 2
    assert show.pcm() == script.pcm
