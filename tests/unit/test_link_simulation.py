"""The link in a closed loop: calm, outages, bottlenecks, jitter."""

from statistics import median

import pytest

from protocol.limits import MAX_UNACKED_BYTES
from server.link import Switch
from tests.support.link_loop import FAST, SLOW, Loop


@pytest.mark.parametrize("rtt", [0.001, 0.3])
def test_ten_calm_minutes_never_switch(rtt: float) -> None:
    loop = Loop(rtt=rtt, rates=[(0, FAST)], texts=[(0.5, 600.0)])
    loop.run(610.0)
    assert loop.switches == []
    assert loop.stalls == 0
    assert loop.link.target_lead_s < 0.35


@pytest.mark.parametrize("rtt", [0.001, 0.3])
@pytest.mark.parametrize("engine_speed", [0.9, 1.2])
def test_a_slow_engine_and_a_pausing_writer_never_switch(rtt: float, engine_speed: float) -> None:
    texts = [(at, 0.7 + at % 5) for at in map(float, range(1, 100, 6))]
    loop = Loop(rtt=rtt, rates=[(0, FAST)], texts=texts, engine_speed=engine_speed)
    loop.run(110.0)
    assert (loop.stalls > 10) == (engine_speed < 1), "the case is not what it is meant to be"
    assert loop.switches == []


@pytest.mark.parametrize("rtt", [0.001, 0.04])
def test_a_blackhole_is_noticed_at_once_and_forgotten_in_time(rtt: float) -> None:
    loop = Loop(rtt=rtt, rates=[(0, FAST), (10, 0), (12, FAST)], texts=[(0.5, 90.0)])
    loop.run(80.0)
    (entered, switch), (left, back) = loop.switches
    assert 10 < entered <= 10.5
    assert switch == Switch("block", "ack_age")
    assert back == Switch("stream", "recovered")
    assert 17 <= left <= 30


def test_a_link_that_becomes_too_slow_is_noticed_soon() -> None:
    loop = Loop(rtt=0.04, rates=[(0, FAST), (10, SLOW), (25, FAST)], texts=[(0.5, 120.0)])
    loop.run(24.0)
    assert len(loop.switches) == 1
    assert 10 < loop.switches[0][0] <= 10.75
    assert loop.link.goodput == pytest.approx(SLOW, rel=0.15)
    assert loop.link.block_ms == 800  # because it went on
    assert loop.link.message_bytes <= 0.3 * SLOW
    loop.run(120.0)
    assert loop.reasons[1] == ("stream", "recovered")
    assert len(loop.switches) == 2


def test_a_link_that_becomes_too_slow_for_a_file_is_noticed_soon() -> None:
    loop = Loop(rtt=0.04, rates=[(0, FAST), (2, SLOW)], texts=[(0.0, 60.0)], paced=False)
    loop.run(10.0)
    assert loop.switches[0][1] == Switch("block", "ack_age")
    assert 2 < loop.switches[0][0] <= 2.75


@pytest.mark.parametrize("rate", [62_500.0, 200_000.0, 1_000_000.0])
@pytest.mark.parametrize("rtt", [0.01, 0.15])
def test_goodput_is_the_rate_of_the_bottleneck_and_little_queues(rate: float, rtt: float) -> None:
    loop = Loop(rtt=rtt, rates=[(0, rate)], texts=[(0.5, 1_000.0)], paced=False, engine_speed=200.0)
    loop.run(25.5)
    assert loop.link.goodput == pytest.approx(rate, rel=0.15)
    used = loop.arrived_bytes / 25
    assert used >= 0.9 * rate
    settled = [delay for at, delay in loop.delays if at > 5]
    assert median(settled) < 0.3
    assert max(settled) < 0.5


def test_filling_the_lead_over_a_link_that_just_suffices_is_no_outage() -> None:
    loop = Loop(rtt=0.04, rates=[(0, 62_500)], texts=[(0.5, 60.0)])
    loop.run(60.0)
    assert loop.switches == []
    assert loop.stalls == 0
    assert max(delay for at, delay in loop.delays if at > 4) < 0.45


def test_a_long_fast_link_gets_the_whole_window_within_a_few_round_trips() -> None:
    loop = Loop(rtt=0.3, rates=[(0, FAST)], texts=[(0.0, 600.0)], paced=False, engine_speed=1_000.0)
    loop.run(20.0)
    assert next(at for at, window in loop.windows if window == MAX_UNACKED_BYTES) < 1.6
    assert loop.windows[-1][1] == MAX_UNACKED_BYTES
    assert loop.switches == []


def test_an_application_that_sends_little_keeps_the_window_that_was_proven() -> None:
    loop = Loop(rtt=0.3, rates=[(0, FAST)], texts=[(0.0, 40.0)])
    loop.run(30.0)
    assert loop.windows[-1][1] >= 65_536
    assert loop.link.goodput is None


def test_a_long_round_trip_returns_to_streaming() -> None:
    loop = Loop(rtt=0.3, rates=[(0, FAST)], texts=[(0.5, 60.0)])
    loop.link.resumed(0.0)
    loop.run(60.0)
    assert loop.reasons == [("block", "resumed"), ("stream", "recovered")]
    assert 30 <= loop.switches[1][0] <= 36


def test_short_turns_return_to_streaming() -> None:
    texts = [(float(at), 1.5) for at in range(1, 60, 3)]
    loop = Loop(rtt=0.04, rates=[(0, FAST), (4.05, 0), (5, FAST)], texts=texts)
    loop.run(60.0)
    assert [mode for mode, _ in loop.reasons] == ["block", "stream"]
    assert loop.switches[1][0] < 40


@pytest.mark.parametrize("rtt", [0.001, 0.04, 0.3])
def test_a_little_jitter_is_no_trouble(rtt: float) -> None:
    loop = Loop(rtt=rtt, rates=[(0, FAST)], texts=[(0.5, 100.0)], jitter=0.03)
    loop.run(100.0)
    assert loop.switches == []


def test_much_jitter_does_not_starve_the_listener() -> None:
    """Late acks look like a queue of our own: a window that shrank with each of them would end in silence."""
    loop = Loop(rtt=0.3, rates=[(0, FAST)], texts=[(0.5, 250.0)], jitter=0.2)
    loop.run(250.0)
    assert loop.link.mode == "block"
    assert loop.stalls <= 1
