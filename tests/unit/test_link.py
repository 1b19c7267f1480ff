"""The link: each trigger alone, and its bounds whatever happens."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.limits import ACK_TIMER_S, MAX_UNACKED_BYTES
from server.link import TRIGGERS, Link, Load, Mode, Switch
from server.link.filters import RecentQuantile, WindowedMax
from tests.support.link_line import FRAME, IDLE, Line
from tests.support.link_loop import Loop

# ---- each trigger alone ----


def test_ack_age_to_the_moment() -> None:
    line = Line()
    line.flow(2.0)
    line.send()
    due = line.now + 0.4
    assert line.link.next_check(line.now, line.load) == due
    line.now = due - 0.001
    assert line.decide() is None
    line.now = due
    assert line.decide() == Switch("block", "ack_age")


def test_ack_age_grows_with_the_round_trip_and_while_nothing_is_known() -> None:
    line = Line(rtt=0.3)
    assert line.link.ack_age_limit_s == 1.0
    line.flow(5.0)
    assert line.link.ack_age_limit_s == pytest.approx(4 * 0.3 + 0.15, abs=0.01)
    assert line.switches == []


def test_a_hidden_page_may_ack_late() -> None:
    line = Line()
    line.visible = False
    line.flow(20.0, delays=(0.0, 0.5, 0.9))
    assert line.switches == []
    line.send()
    assert line.link.next_check(line.now, line.load) == pytest.approx(line.now + 1.4)


def make_low(line: Line) -> None:
    line.level_ms = 59


def make_stall(line: Line) -> None:
    line.stalls = 1


def make_falling(line: Line) -> None:
    for _ in range(4):
        line.level_ms -= 12
        line.flow(0.1)


BUFFER_TRIGGERS = [("buffer_low", make_low), ("stall", make_stall), ("buffer_falling", make_falling)]
Change = Callable[[Line], None]


@pytest.mark.parametrize(("reason", "change"), BUFFER_TRIGGERS)
def test_buffer_triggers(reason: str, change: Change) -> None:
    line = Line()
    line.flow(2.0)
    line.load = replace(line.load, lead_s=0.5)  # so what waits does not wait for the lead
    change(line)
    line.flow(0.1)
    assert line.switches == [Switch("block", reason)]


def unpaced(line: Line) -> None:
    line.link = Link(line.now, pinned=None, paced=False)


def paused(line: Line) -> None:
    line.load = replace(line.load, playing=False)


def nothing_waits(line: Line) -> None:
    line.load = replace(line.load, waiting=False)  # a writer who pauses, a slow engine, the end of an utterance


def lead_used_up(line: Line) -> None:
    line.load = replace(line.load, lead_s=3.9)


@pytest.mark.parametrize(("_reason", "change"), BUFFER_TRIGGERS)
@pytest.mark.parametrize("excuse", [unpaced, paused, nothing_waits, lead_used_up])
def test_what_the_buffer_does_for_other_reasons_is_no_trigger(_reason: str, change: Change, excuse: Change) -> None:
    line = Line()
    line.flow(2.0)
    line.load = replace(line.load, lead_s=0.5)
    excuse(line)
    change(line)
    line.flow(1.0)
    assert line.switches == []


def test_a_buffer_that_was_never_filled_is_not_low() -> None:
    line = Line()
    line.load = replace(line.load, lead_s=0.5)
    line.level_ms = 40
    line.flow(2.0)
    assert line.switches == []


def test_a_low_buffer_counts_as_soon_as_audio_is_withheld() -> None:
    line = Line()
    line.flow(2.0)
    line.load = replace(line.load, lead_s=0.5, waiting=False)
    line.send()
    line.now += line.rtt
    line.level_ms = 30
    line.link.acked(line.now, sent_at=line.now - 0.04, size=FRAME, buffered_ms=30, stalls=0, visible=True)
    assert line.decide() is None
    due = line.link.next_check(line.now, line.load)
    assert due is not None
    assert line.now < due < line.now + 0.3
    line.now = due
    assert line.decide() == Switch("block", "buffer_low")


def test_a_new_utterance_counts_its_stalls_from_nought() -> None:
    line = Line()
    line.stalls = 7
    line.flow(2.0)
    line.load = replace(line.load, lead_s=0.5)
    line.stalls = 0
    line.flow(1.0)
    assert line.switches == []
    line.stalls = 1
    line.flow(0.1)
    assert line.switches == [Switch("block", "stall")]


def test_the_first_stall_of_the_first_two_seconds_is_forgiven() -> None:
    """TCP begins with ten packets: over a long line they are played before the next can come."""
    line = Line()
    line.load = replace(line.load, lead_s=0.5)
    line.level_ms = 30
    line.flow(0.5)
    line.stalls = 1
    line.flow(1.0)
    assert line.switches == []
    line.stalls = 2
    line.flow(0.1)
    assert line.switches == [Switch("block", "stall")]


def test_what_runs_low_after_the_first_two_seconds_counts() -> None:
    line = Line()
    line.load = replace(line.load, lead_s=0.5)
    line.level_ms = 30
    line.flow(0.5)
    line.stalls = 1
    line.flow(1.4)
    assert line.switches == []
    line.flow(0.3)
    assert line.switches == [Switch("block", "buffer_low")]


def test_a_lead_of_opus_that_fills_a_slow_link_shows_its_rate() -> None:
    """Far below the window, yet more than the link holds."""
    loop = Loop(rtt=0.05, rates=[(0, 4_000)], texts=[(0.0, 60.0)], bytes_per_s=4_200)
    loop.run(10.0)
    assert loop.link.goodput == pytest.approx(4_000, rel=0.2)


def test_jitter() -> None:
    line = Line()
    line.load = replace(line.load, lead_s=0.4)
    line.level_ms = 300
    line.flow(12.0, delays=(0.0,) * 10 + (ACK_TIMER_S,))  # what the ack schedule does
    assert line.switches == []
    line.flow(5.0, delays=(0.0,) * 10 + (0.32,))
    assert line.switches == [Switch("block", "jitter")]
    assert line.link.target_lead_s == pytest.approx(0.3 + 2 * 0.32)


def test_jitter_is_measured_against_the_lead() -> None:
    line = Line()
    line.flow(12.0, delays=(0.0,) * 10 + (0.32,))
    assert line.switches == []


def test_resumed() -> None:
    line = Line(resumed=True)
    assert line.link.next_check(line.now, IDLE) == line.now
    line.flow(0.1)
    assert line.switches == [Switch("block", "resumed")]
    assert 29.8 < line.flow_until("stream") < 30.2
    assert line.switches[1] == Switch("stream", "recovered")


def test_no_trigger_is_without_a_test_and_an_explanation() -> None:
    assert {trigger.reason for trigger in TRIGGERS} == {"ack_age", "jitter", "resumed"} | {
        r for r, _ in BUFFER_TRIGGERS
    }
    assert all(trigger.holds.__doc__ for trigger in TRIGGERS)


# ---- bounds ----

steps = st.tuples(
    st.sampled_from(["sent", "acked", "decide", "attached", "silence"]),
    st.sampled_from([0.0, 0.001, 0.02, 0.1, 0.5, 5.0, 100.0]),  # time that passes before
    st.integers(0, 600_000),
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.one_of(st.none(), st.floats(0, 100)),  # how long ago
)


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=60), st.booleans(), st.sampled_from([None, "stream", "block"]))
def test_whatever_happens_it_stays_in_bounds(events: list[tuple], paced: bool, pinned: Mode | None) -> None:  # type: ignore[type-arg]
    now = 0.0
    link = Link(now, pinned=pinned, paced=paced)
    for kind, passes, size, number, flag, ago in events:
        now += passes
        at = None if ago is None else now - ago
        load = Load(at, waiting=flag, lead_s=number / 1e6, playing=number % 3 > 0)
        if kind == "sent":
            link.sent(now, size)
        elif kind == "attached":
            link.resumed(now)
        elif kind == "acked":
            link.acked(now, sent_at=at, size=size, buffered_ms=number, stalls=number % 5, visible=flag)
        elif kind == "decide":
            link.decide(now, load)
        due = link.next_check(now, load)
        assert due is None or due >= now
        assert 16_384 <= link.window <= MAX_UNACKED_BYTES
        assert 1_920 <= link.message_bytes <= 65_536
        assert link.message_bytes <= link.window
        assert 0.3 <= link.target_lead_s <= 6
        assert link.block_ms in ((0,) if link.mode == "stream" else (200, 400, 800))
        assert link.goodput is None or link.goodput >= 0
        assert pinned is None or link.mode == pinned


def test_memory_is_bounded_against_a_flood() -> None:
    link = Link(0.0, pinned=None, paced=True)
    for turn in range(30_000):
        now = turn * 0.0005
        link.sent(now, 100)
        link.acked(now, sent_at=0.0, size=1, buffered_ms=turn % 5_000, stalls=turn % 2, visible=True)
    path = link._path
    sizes = (len(path._flights), len(path._delays), len(path._rates), len(link._buffer._levels))
    assert sizes[0] <= 1_024
    assert max(sizes[1:]) <= 102


@given(st.lists(st.tuples(st.floats(0.1, 3), st.floats(0, 10)), min_size=1, max_size=60))
def test_filters_equal_their_definitions(values: list[tuple[float, float]]) -> None:
    now, seen = 0.0, []
    quantile, largest = RecentQuantile(10.0, 0.95), WindowedMax(10.0)
    for gap, value in values:
        now += gap + 1e-6
        seen.append((now, value))
        quantile.add(now, value)
        largest.add(now, value)
        recent = sorted(v for t, v in seen if t >= now - 10.0)
        assert quantile.value(now) == recent[ceil(0.95 * len(recent)) - 1]
        assert largest.value == recent[-1]
