"""The session machine: heartbeats, time-outs and text that waits."""

import pytest

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.errors import ErrorCode
from server.session.rendering import AWAY_SLACK_S
from tests.support.session_driver import TEXT, Driver, advance, fails, opened


def test_no_open_in_time() -> None:
    driver = Driver()
    driver.now = driver.session.deadline()
    with fails(driver, ErrorCode.OPEN_TIMEOUT):
        driver.session.on_time(driver.now)


def test_heartbeats_are_frequent_only_while_something_is_unfinished() -> None:
    driver = opened()
    advance(driver, 60)
    assert len(driver.of(s.Heartbeat)) == 4
    driver.numbered(c.Start, utterance=1)
    driver.numbered(c.Text, text="and")
    advance(driver, 10)
    assert 18 <= len(driver.of(s.Heartbeat)) - 4 <= 20


def test_silent_clients_are_told_before_they_are_closed() -> None:
    driver = opened()
    with fails(driver, ErrorCode.IDLE_TIMEOUT):
        advance(driver, 301)


def test_a_paused_client_may_wait() -> None:
    driver = opened()
    driver.say(1, TEXT)
    driver.run(acks=False)
    driver.numbered(c.Pause)
    for _ in range(200):
        driver.now += 1
        driver.session.on_time(driver.now)
        driver.send(c.Ping())
        driver.drain()


def test_text_that_looks_complete_is_spoken_after_a_pause() -> None:
    driver = opened(max_buffer_delay_ms=800)
    driver.numbered(c.Start, utterance=1)
    driver.numbered(c.Text, text="The hall opened in May 1987.")
    driver.run()
    heard = driver.of(s.SegmentBegin)[-1].end if driver.of(s.SegmentBegin) else 0
    assert heard < 28
    advance(driver, 1.0)
    assert driver.of(s.SegmentBegin)[-1].end == 28


def test_without_a_buffer_delay_only_flushes_speak_it() -> None:
    driver = opened(max_buffer_delay_ms=None)
    driver.numbered(c.Start, utterance=1)
    driver.numbered(c.Text, text="The hall opened in May 1987.")
    advance(driver, 30)
    heard = driver.of(s.SegmentBegin)[-1].end if driver.of(s.SegmentBegin) else 0
    assert heard < 28
    driver.numbered(c.Flush, soft=True)
    driver.run()
    assert driver.of(s.SegmentBegin)[-1].end == 28


def test_an_unfinished_number_waits_for_its_digits() -> None:
    driver = opened(max_buffer_delay_ms=800)
    driver.numbered(c.Start, utterance=1)
    driver.numbered(c.Text, text="3.")
    advance(driver, 5)
    assert not driver.frames


@pytest.mark.parametrize("how", ["pause", "detach"])
def test_who_does_not_listen_is_in_no_hurry(how: str) -> None:
    """A crowd whose line broke must not go before those who listen."""
    driver = opened()
    driver.numbered(c.Start, utterance=1)
    driver.numbered(c.Text, text="今天天气很好，")
    assert driver.session.slack_s == 0
    if how == "pause":
        driver.numbered(c.Pause)
    else:
        driver.session.detach(driver.now)
    assert driver.session.slack_s == AWAY_SLACK_S
