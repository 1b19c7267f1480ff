"""What an engine is told of the text before a segment: the same in whatever way the session came there."""

import random
from dataclasses import replace

import pytest

from protocol import client_messages as c
from server.engines.base import Capabilities
from server.engines.rendering import RenderedChunk, SegmentRequest
from server.session import Policy, Session
from server.session.restore import restore
from tests.support.session_driver import Driver, capabilities, render

TEXT = "今天天气很好我们去公园散步看见很多人在草地上跑来跑去还有老人坐在长椅上，晒太阳。天黑了才回家"


def with_context(tokens: int) -> Capabilities:
    return replace(capabilities(), context_tokens=tokens)


def contexts(session: Session, driver: Driver, *, ahead: random.Random | None = None) -> list[tuple[str, str]]:
    """Each segment's text, and what came before it."""
    found = []

    def listen(request: SegmentRequest) -> RenderedChunk:
        assert request.origin == "abc/1"
        found.append((request.cut.text, request.before))
        if ahead is not None and ahead.random() < 0.6:
            session.look_ahead()
        return render(request)

    driver.session, driver.render = session, listen
    session.journal.written = 10**6  # all that it tells is on disk already
    driver.run()
    return found


def session_of(tokens: int, overlap: int, *, recorded: bool = False) -> Session:
    policy = Policy("tone-low", overlap_tokens=overlap)
    return Session(policy, with_context(tokens), session_id="abc", token="t", now=100.0, recorded=recorded)


def spoken(tokens: int, overlap: int, ahead: random.Random | None = None) -> list[tuple[str, str]]:
    driver = Driver()
    session = driver.session = session_of(tokens, overlap)
    driver.open(max_lead_ms=None, mode="block" if ahead else "stream")
    driver.say(1, TEXT)
    return contexts(session, driver, ahead=ahead)


@pytest.mark.parametrize(("tokens", "overlap", "most"), [(32, 8, 8), (8, 16, 8), (0, 16, 0), (16, 0, 0)])
def test_it_is_what_both_the_engine_and_the_settings_allow(tokens: int, overlap: int, most: int) -> None:
    found = spoken(tokens, overlap)
    text = ""
    sizes = set()
    for segment, before in found:
        assert text.endswith(before)
        assert len(before) <= most
        assert not (text.endswith("。") and before)
        sizes.add(len(before))
        text += segment
    assert text == TEXT
    assert max(sizes) == most


@pytest.mark.parametrize("seed", range(5))
def test_looking_ahead_does_not_change_it(seed: int) -> None:
    assert spoken(16, 16, random.Random(seed)) == spoken(16, 16)


def test_a_silence_parts_what_follows_from_it() -> None:
    driver = Driver()
    session = driver.session = session_of(16, 16)
    driver.open(max_lead_ms=None)
    driver.numbered(c.Start, utterance=1)
    driver.numbered(c.Text, text="我们去公园")
    driver.numbered(c.Silence, ms=300)
    driver.numbered(c.Text, text="散步吧")
    driver.numbered(c.End)
    assert contexts(session, driver) == [("我们去公园", ""), ("散步吧", "")]


def test_a_session_from_a_journal_tells_the_same() -> None:
    driver = Driver()
    session = driver.session = session_of(16, 16, recorded=True)
    driver.open(max_lead_ms=None)
    driver.say(1, TEXT)
    lines, _ = session.journal.take()
    again = restore(lines, Policy("tone-low", overlap_tokens=16), with_context(16), epoch=1, now=driver.now)
    again.resume(c.Resume("abc", "t", 0, 1, 0, 0, 0, 0), "new", driver.now)
    assert contexts(again, Driver()) == spoken(16, 16)
