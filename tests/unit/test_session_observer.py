"""What a session tells whoever keeps account of it."""

from collections.abc import Callable, Mapping
from typing import Any

from protocol import client_messages as c
from server.session import SessionObserver
from tests.support.session_driver import TEXT, Driver, opened


class Notes(SessionObserver):
    def __init__(self) -> None:
        self.firsts: list[tuple[int, float]] = []
        self.stalls: list[tuple[int, int]] = []
        self.done: list[tuple[int, Mapping[str, Any]]] = []

    def first_audio(self, utterance: int, seconds: float) -> None:
        self.firsts.append((utterance, round(seconds, 3)))

    def stalled(self, utterance: int, count: int) -> None:
        self.stalls.append((utterance, count))

    def spoken(self, utterance: int, statistics: Mapping[str, Any]) -> None:
        self.done.append((utterance, statistics))


def observed(driver: Driver) -> Notes:
    notes = Notes()
    driver.session.observer = notes
    return notes


def render_after(driver: Driver, seconds: float) -> None:
    """Begin the next piece of work, finish it so much later, and send what that makes."""
    work = driver.take_work()
    assert work is not None
    driver.now += seconds
    driver.do(work)
    driver.drain()


def test_first_audio_is_told_once_for_an_utterance_and_done_with_its_statistics() -> None:
    driver = opened(max_lead_ms=None)
    notes = observed(driver)
    driver.say(1, TEXT)
    render_after(driver, 0.08)
    driver.run()
    assert notes.firsts == [(1, 0.08)]
    assert [(number, told["characters"]) for number, told in notes.done] == [(1, len(TEXT))]


def test_audio_that_nobody_waited_for_is_no_first_audio() -> None:
    """The listener still hears the utterance before: when it goes out says nothing about this server."""
    driver = opened()
    notes = observed(driver)
    driver.say(1, "你好。")
    driver.say(2, "再见。")
    render_after(driver, 0.05)
    driver.run(acks=False)
    assert notes.firsts == [(1, 0.05)]


def test_neither_is_audio_of_a_client_that_paused_or_is_gone() -> None:
    leaves: tuple[Callable[[Driver], None], ...] = (
        lambda each: each.numbered(c.Pause),
        lambda each: each.session.detach(each.now),
    )
    for leave in leaves:
        driver = opened()
        notes = observed(driver)
        driver.say(1, "你好。")
        work = driver.take_work()
        assert work is not None
        leave(driver)
        driver.now += 20
        driver.do(work)
        driver.session.attached = True
        driver.numbered(c.Unpause)
        driver.drain()
        assert driver.frames
        assert notes.firsts == []


def test_a_silence_at_the_beginning_is_no_first_audio() -> None:
    driver = opened()
    notes = observed(driver)
    driver.numbered(c.Start, utterance=1)
    driver.numbered(c.Silence, ms=200)
    render_after(driver, 0.0)
    assert driver.frames
    assert notes.firsts == []


def test_stalls_are_told_as_they_grow_and_never_believed_without_bound() -> None:
    driver = opened()
    notes = observed(driver)
    driver.say(1, TEXT)
    driver.run(acks=False)
    for stalls in (0, 1, 1, 3, 2, 2**32 - 1):
        driver.send(c.Ack(1, 1, 960, 480, stalls=stalls))
    assert notes.stalls == [(1, 1), (1, 2), (1, 10)]


def test_who_collects_audio_cannot_run_dry() -> None:
    driver = opened(max_lead_ms=None)
    notes = observed(driver)
    driver.say(1, TEXT)
    driver.run(acks=False)
    driver.send(c.Ack(1, 1, 960, 0, stalls=5))
    assert notes.stalls == []
