"""The link: how a mode is left again, and what stays apart from it."""

from dataclasses import replace

import pytest

from server.link import Load, Mode, Switch
from tests.support.link_line import IDLE, Line


def test_each_reentry_doubles_the_time_that_must_be_good() -> None:
    line = Line()
    line.flow(2.0)
    times = []
    for _ in range(6):
        line.outage()
        times.append(line.flow_until("stream"))
        line.flow(3.0)
    assert times == pytest.approx([5, 10, 20, 40, 60, 60], abs=0.3)
    line.flow(60.0)
    line.outage()
    assert line.flow_until("stream") == pytest.approx(5, abs=0.3)


def test_streaming_lasts_two_seconds_at_least() -> None:
    line = Line()
    line.flow(1.0)
    line.outage()
    line.flow_until("stream")
    begin = line.now
    line.outage()
    assert line.now - begin == pytest.approx(2.0, abs=0.15)


def test_one_bad_moment_starts_the_good_time_anew() -> None:
    line = Line()
    line.flow(1.0)
    line.outage()
    line.flow(4.5)
    line.load = replace(line.load, lead_s=0.5)
    line.stalls += 1
    line.flow(0.1)
    assert line.flow_until("stream") == pytest.approx(5, abs=0.3)


def test_a_buffer_below_the_target_keeps_block_mode() -> None:
    line = Line()
    line.flow(1.0)
    line.outage()
    line.load = replace(line.load, lead_s=0.5)
    line.level_ms = 290
    line.flow(20.0)
    assert line.link.mode == "block"
    line.level_ms = 310
    assert line.flow_until("stream") == pytest.approx(5, abs=0.3)


def test_idle_time_proves_nothing_but_is_forgiven_after_a_minute() -> None:
    line = Line()
    line.flow(3.0)
    line.outage()
    line.flow(3.0)
    line.load = IDLE
    line.decide()
    idle_at = line.now
    assert line.link.next_check(line.now, IDLE) == idle_at + 60
    line.now += 20
    line.load = replace(IDLE, waiting=True)
    assert line.flow_until("stream") == pytest.approx(1, abs=0.3)  # 3 s, 1 s of the idle time, and this

    line.flow(2.0)
    line.outage()
    line.load = IDLE
    line.decide()
    at = line.link.next_check(line.now, IDLE)
    assert at == line.now + 60
    line.now = at
    assert line.decide() == Switch("stream", "idle")
    assert line.link.next_check(line.now, IDLE) is None


@pytest.mark.parametrize("pinned", [None, "block"])
def test_blocks_grow_while_the_trouble_lasts(pinned: Mode | None) -> None:
    line = Line(pinned=pinned)
    line.flow(1.0)
    line.send()
    sizes = []
    for _ in range(4):
        line.now += 1.5
        line.decide()
        sizes.append(line.link.block_ms)
    assert sizes == [200, 200, 400, 800]
    assert line.switches == ([] if pinned else [Switch("block", "ack_age")])


def test_a_pinned_mode_stays() -> None:
    line = Line(pinned="stream", resumed=True)
    line.send()
    assert line.link.next_check(line.now, line.load) is None
    line.now += 3
    assert line.decide() is None
    assert (line.link.mode, line.link.block_ms) == ("stream", 0)


def test_a_new_connection_is_measured_anew() -> None:
    line = Line(rtt=0.3)
    line.flow(3.0)
    line.link.resumed(line.now)
    assert line.link.ack_age_limit_s == 1.0
    assert line.link.window == 65_536


def test_frames_of_a_cancelled_utterance_are_not_waited_for() -> None:
    line = Line()
    line.flow(2.0)
    limit = line.link.ack_age_limit_s
    line.send(60)
    assert line.link.ack_age_limit_s > limit  # our own queue
    line.load = IDLE
    line.decide()
    line.load = replace(IDLE, waiting=True)
    line.send()
    assert line.link.ack_age_limit_s == limit


def test_timers_alone_always_come_to_rest() -> None:
    """At the time that `next_check` names something happens: no timer is set again and again for the same moment."""
    for load in (IDLE, Load(99.0, waiting=True, lead_s=0.5, playing=True)):
        line = Line(resumed=True)
        line.load = load
        line.decide()
        checks = 0
        while (at := line.link.next_check(line.now, load)) is not None:
            assert at > line.now
            line.now = at
            line.decide()
            checks += 1
            assert checks < 10
