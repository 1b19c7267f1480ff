"""A session speaks with voices that its principal had learnt, and with nobody else's; not with one that is deleted."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from protocol import client_messages as c
from protocol.errors import ErrorCode, ProtocolError
from server.engines.base import Capabilities
from server.engines.tone import ToneEngine
from server.session import Policy, Session, SpeakSegment
from server.session.config import check_voice
from server.session.restore import CannotRestore, restore
from tests.support.session_driver import Driver, capabilities

OWN = "own-0123456789abcdef"
CLONING = ToneEngine(cloning=True).capabilities


@dataclass
class Known:
    """Who owns which voice; `asked` by whom for which."""

    voices: set[tuple[str, str]] = field(default_factory=lambda: {("ann", OWN)})
    asked: list[tuple[str, str]] = field(default_factory=list)

    def owns(self, principal: str, voice: str) -> bool:
        self.asked.append((principal, voice))
        return (principal, voice) in self.voices


def driver_of(known: Known, principal: str = "ann", *, recorded: bool = False) -> Driver:
    driver = Driver(Policy("tone-low", owns_voice=known.owns))
    driver.session = Session(
        driver.policy, CLONING, session_id="s", token="t", now=driver.now, recorded=recorded, principal=principal
    )
    return driver


def test_its_owner_may_use_it_in_open_and_in_start() -> None:
    known = Known()
    driver = driver_of(known)
    driver.open(voice=OWN)
    driver.say(1, "Hello.")
    work = driver.take_work()
    assert isinstance(work, SpeakSegment)
    assert work.request.voice == OWN
    driver = driver_of(known)
    driver.open()
    driver.numbered(c.Start, utterance=1, voice=OWN)
    assert set(known.asked) == {("ann", OWN)}


@pytest.mark.parametrize("place", ["open", "start"])
def test_for_everybody_else_it_does_not_exist(place: str) -> None:
    driver = driver_of(Known(), "bob")
    if place == "start":
        driver.open()
    with pytest.raises(ProtocolError) as error:
        driver.open(voice=OWN) if place == "open" else driver.numbered(c.Start, utterance=1, voice=OWN)
    assert (error.value.code, error.value.field) == (ErrorCode.UNKNOWN_VOICE, f"{place}.voice")
    assert "tone-low, tone-high, a voice of your own, not" in error.value.message


def test_nobody_is_asked_about_the_engines_own_voices() -> None:
    known = Known()
    driver = driver_of(known)
    driver.open(voice="tone-high")
    driver.say(1, "Hello. And so on.")
    driver.run()
    assert driver.pcm(1)
    assert known.asked == []


def test_a_segment_at_work_may_finish_and_the_next_one_fails() -> None:
    known = Known()
    driver = driver_of(known)
    driver.open(voice=OWN, max_lead_ms=None)
    driver.say(1, "The first sentence is here. The second sentence is here, too.")
    work = driver.take_work()
    assert isinstance(work, SpeakSegment)
    known.voices.clear()
    driver.do(work)
    with pytest.raises(ProtocolError, match=f"the voice {OWN} was deleted") as error:
        driver.take_work()
    assert error.value.code == ErrorCode.UNKNOWN_VOICE


def test_after_a_restart_a_session_goes_on_only_while_the_voice_is_there() -> None:
    known = Known()
    driver = driver_of(known, recorded=True)
    driver.open(voice=OWN)
    driver.say(1, "Hello.")
    lines, _ = driver.session.journal.take()
    again = restore(lines, driver.policy, CLONING, epoch=1, now=driver.now)
    assert again.config is not None
    assert again.config.voice == OWN
    known.voices.clear()
    with pytest.raises(CannotRestore):
        restore(lines, driver.policy, CLONING, epoch=1, now=driver.now)


@pytest.mark.parametrize(
    ("voices", "cloning", "given", "message"),
    [
        ((), True, "", "open.voice must be a voice of your own, not left out: the engine has no other"),
        ((), True, "x", "open.voice must be a voice of your own, not 'x'"),
        (capabilities().voices, False, "x", "open.voice must be one of tone-low, tone-high, not 'x'"),
    ],
)
def test_what_is_allowed_is_told(voices: Any, cloning: bool, given: str, message: str) -> None:
    engine = Capabilities("e", ("en",), 24_000, voices, 40, len, "f", cloning=cloning)
    with pytest.raises(ProtocolError) as error:
        check_voice(given, engine, "open.voice", lambda _: False)
    assert error.value.message == message
