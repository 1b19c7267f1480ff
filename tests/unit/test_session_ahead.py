"""In block mode the segment behind the one in hand may be rendered beside it, which changes nothing else."""

import random
from typing import Any

import pytest

from protocol import client_messages as c
from protocol import limits
from protocol import server_messages as s
from server.session import FinishUtterance, SpeakSegment, SpeakSilence
from tests.support.session_driver import TEXT, Driver

SCRIPTS: list[list[Any]] = [
    [TEXT, "end"],
    ["今天天气很好。我们去公园", "flush", "散步吧。", 500, "再见。", "end"],
    ["好。", 300, 200, "The hall opened. It closed", "flush", " again. Then nothing.", "end"],
]


def say(driver: Driver, script: list[Any]) -> None:
    driver.numbered(c.Start, utterance=1)
    for part in script:
        write(driver, part)


def write(driver: Driver, part: str | int) -> None:
    if isinstance(part, int):
        driver.numbered(c.Silence, ms=part)
    elif part in ("end", "flush"):
        driver.numbered(c.End if part == "end" else c.Flush)
    else:
        driver.numbered(c.Text, text=part)


def whole(script: list[Any], mode: str) -> tuple[list[Any], list[Any]]:
    driver = Driver()
    driver.open(max_lead_ms=None, mode=mode)
    say(driver, script)
    driver.run()
    return driver.of(s.SegmentBegin), driver.of(s.Done)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("seed", range(12))
def test_looking_ahead_changes_no_cut_no_order_and_no_digest(script: list[Any], seed: int) -> None:
    chance = random.Random(seed)
    driver = Driver()
    driver.open(max_lead_ms=None, mode="block")
    looked = 0
    driver.numbered(c.Start, utterance=1)
    for part in script[:-1]:
        write(driver, part)
        while chance.random() < 0.7 and (work := driver.take_work()) is not None:
            ahead = driver.session.look_ahead() if chance.random() < 0.8 else None
            if ahead is not None:
                looked += 1
                assert driver.session.is_ahead(ahead)
                assert driver.session.look_ahead() is ahead
            assert driver.session.room == limits.TEXT_WINDOW_CHARS - driver.session._unspoken
            driver.do(work)
            driver.drain()
            if ahead is not None:
                following = driver.take_work()
                assert following is ahead
                assert not driver.session.is_ahead(ahead)
                driver.do(following)
    driver.numbered(c.End)
    driver.run()
    begins, dones = whole(script, "block")
    assert [(b.segment, b.start, b.end, b.first_sample, b.kind) for b in driver.of(s.SegmentBegin)] == [
        (b.segment, b.start, b.end, b.first_sample, b.kind) for b in begins
    ]
    assert [(d.samples, d.digest) for d in driver.of(s.Done)] == [(d.samples, d.digest) for d in dones]
    assert driver.session._unspoken == 0


def ahead_of(mode: str = "block", text: str = TEXT, **open_: Any) -> tuple[Driver, SpeakSegment | None]:
    driver = Driver()
    driver.open(mode=mode, **open_)
    driver.say(1, text)
    assert isinstance(driver.take_work(), SpeakSegment)
    return driver, driver.session.look_ahead()


def test_in_stream_mode_nothing_is_made_ahead() -> None:
    assert ahead_of("stream")[1] is None


def test_behind_the_last_segment_there_is_nothing() -> None:
    driver, ahead = ahead_of(text="好。")
    assert ahead is None
    driver.session.complete(driver.session._work, [], driver.now)  # type: ignore[arg-type]  # it is the segment
    assert isinstance(driver.take_work(), FinishUtterance)


def test_a_silence_that_comes_first_is_not_passed_over() -> None:
    driver = Driver()
    driver.open(mode="block")
    say(driver, ["好。", 300, "再见。", "end"])
    work = driver.take_work()
    assert isinstance(work, SpeakSegment)
    assert driver.session.look_ahead() is None
    driver.do(work)
    assert isinstance(driver.take_work(), SpeakSilence)
    assert driver.session.look_ahead() is None, "a silence is no work for two"


def test_a_cancel_forgets_it() -> None:
    driver, ahead = ahead_of()
    assert ahead is not None
    driver.numbered(c.Cancel)
    assert not driver.session.is_ahead(ahead)
    assert driver.session.room == limits.TEXT_WINDOW_CHARS
    driver.run()
    assert driver.of(s.Cancelled)
    assert not driver.of(s.SegmentBegin)


def test_who_is_away_gets_nothing_ahead() -> None:
    driver = Driver()
    driver.open(mode="block")
    driver.say(1, TEXT)
    assert isinstance(driver.take_work(), SpeakSegment)
    driver.session.detach(driver.now)
    assert driver.session.look_ahead() is None
