"""A segment that was rendered otherwise than asked for: told, counted, recorded, rendered so again after a restart."""

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any, get_args

import orjson
import pytest

from protocol import client_messages as c
from protocol import server_messages as s
from server.engines.base import FailureKind
from server.engines.rendering import Part, RenderedChunk, SegmentRequest
from server.session import Session, SpeakSegment, Work
from server.session import journal as records
from server.session.journal import read
from server.session.observer import SessionObserver
from server.session.restore import CannotRestore, restore
from server.session.utterance import CONSEQUENCES, joined
from tests.support.session_driver import Driver, capabilities, render
from tests.unit.test_docs_protocol import section, tables
from tests.unit.test_session_restore import POLICY, Journaled, say_all, undisturbed

FALLBACK = Part("fallback", 2, 5, 4_800, "out_of_memory")
END = Part("clip", 5, 5, 12_000, "repeated")
CLIP = Part("clip", 3, 5, 7_200, "exception")


def place_in_parts(driver: Driver, *parts: Part, reason: str) -> s.SegmentEnd:
    """The first segment, rendered in parts."""
    driver.open()
    driver.say(1, "今天天气。很好。")
    work = driver.take_work()
    assert isinstance(work, SpeakSegment)
    coder = driver.coder = driver.session.coder(work)
    driver.coder_of = 1
    pcm = render(work.request).pcm
    bounds = [0, *(part.first_sample for part in parts), len(pcm) // 2]
    for part, (first, end) in zip((None, *parts), pairwise(bounds), strict=True):
        piece = pcm[2 * first : 2 * end]
        driver.session.place(work, RenderedChunk(piece, (), part), coder.push(piece), driver.now)
    driver.session.complete(work, [], driver.now)
    driver.run()
    ended = driver.of(s.SegmentEnd)
    assert [end.degraded for end in ended] == [bool(parts), False]
    assert ended[1].reason == ""
    assert ended[0].reason == reason
    assert driver.of(s.Done)[0].statistics["degraded"] == bool(parts)
    return ended[0]


def test_what_went_as_it_should_says_nothing() -> None:
    place_in_parts(Driver(), reason="")


def test_the_first_failure_and_the_worst_consequence_are_told() -> None:
    place_in_parts(Driver(), FALLBACK, CLIP, reason="out_of_memory: a tone stands for words")


@pytest.mark.parametrize("part", [FALLBACK, CLIP, Part("engine", 2, 5, 4_800, "time_out"), END])
def test_whoever_keeps_account_is_told(part: Part) -> None:
    told: list[tuple[int, str]] = []

    class Told(SessionObserver):
        def degraded(self, utterance: int, reason: str) -> None:
            told.append((utterance, reason))

    driver = Driver()
    driver.session.observer = Told()
    how = CONSEQUENCES[part.source if part.start < part.end else "end"]
    end = place_in_parts(driver, part, reason=f"{part.reason}: {how}")
    assert told == [(1, end.reason)]


def test_the_documentation_has_every_reason() -> None:
    causes, ways = ([row[0].strip("`") for row in rows] for rows in tables(section("Failures")))
    assert causes == list(get_args(FailureKind))
    assert ways == list(CONSEQUENCES.values())


def in_parts(request: SegmentRequest) -> list[RenderedChunk]:
    """Every second segment fails at its second character, and the rest of it sounds otherwise."""
    whole = render(request)
    if request.id % 2 or len(request.cut.text) < 2:
        return [whole]
    first = 2_400
    cut = request.cut
    known = request.parts[0] if request.parts else Part("fallback", cut.start + 1, cut.end, first, "worker_lost")
    rest = bytes(byte ^ 1 if at % 2 == 0 else byte for at, byte in enumerate(whole.pcm[2 * first :]))
    return [RenderedChunk(whole.pcm[: 2 * first], whole.words), RenderedChunk(rest, (), known)]


def test_a_recipe_is_recorded_before_its_audio_and_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Driver.do
    asked: list[tuple[Part, ...]] = []

    def do(self: Driver, work: Work, chunk_samples: int = 2400) -> None:
        if not isinstance(work, SpeakSegment):
            plain(self, work, chunk_samples)
            return
        if self.coder is None or self.coder_of != work.utterance:
            self.coder, self.coder_of = self.session.coder(work), work.utterance
        asked.append(work.request.parts)
        for chunk in in_parts(work.request):
            coded = self.coder.push(self.session.fresh(work, chunk.pcm))
            self.session.place(work, chunk, coded, self.now)
        self.session.complete(work, [], self.now)

    monkeypatch.setattr(Driver, "do", do)
    whole = undisturbed()
    asked.clear()
    journaled = Journaled(max_lead_ms=None)
    say_all(journaled.driver)
    journaled.write()
    chance = random.Random(4)
    for _ in range(12):
        journaled.step(chance)
    journaled.write()
    kinds = [read(line)[0] for line in journaled.lines]
    before = {kinds[at - 1] for at, kind in enumerate(kinds) if kind == records.PART}
    assert before == {records.CRC}
    assert not any(asked)
    asked.clear()
    journaled.kill()
    journaled.finish(chance, 0.03)
    assert any(asked), "nothing was rendered by the recipe"
    for utterance in (1, 2):
        assert bytes(journaled.receiver.pcm[utterance]) == whole.pcm(utterance)
    dones = {event.utterance: event for event in journaled.receiver.events if isinstance(event, s.Done)}
    assert {number: (done.digest, done.statistics["degraded"]) for number, done in dones.items()} == {
        done.utterance: (done.digest, done.statistics["degraded"]) for done in whole.of(s.Done)
    }
    assert sum(done.statistics["degraded"] for done in dones.values()) >= 3


@pytest.mark.parametrize("change", [{"source": "other"}, {"reason": "bad luck"}, {"segment": 99}])
def test_a_record_of_a_part_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    driver = Driver()
    driver.session = Session(POLICY, capabilities(), session_id="s", token="t", now=100.0, recorded=True)
    driver.session.journal.written = 10**6  # whatever it tells is on disk already
    place_in_parts(driver, FALLBACK, reason="out_of_memory: the fallback engine spoke")
    lines, _ = driver.session.journal.take()
    at = next(at for at, line in enumerate(lines) if read(line)[0] == records.PART)
    values = dict(
        zip(("utterance", "segment", "source", "start", "end", "first", "reason"), read(lines[at])[1], strict=True)
    )
    restore(lines, POLICY, capabilities(), epoch=1, now=driver.now)
    lines[at] = orjson.dumps([records.PART, *{**values, **change}.values()])
    with pytest.raises(CannotRestore):
        restore(lines, POLICY, capabilities(), epoch=1, now=driver.now)


def test_words_that_are_told_anew_were_not_heard_before() -> None:
    """An engine may tell of words that it then fails to say."""
    driver = Driver()
    driver.open(max_lead_ms=60_000)
    driver.say(1, "今天天气。")
    work = driver.take_work()
    assert isinstance(work, SpeakSegment)
    driver.coder, driver.coder_of = driver.session.coder(work), 1
    whole = render(work.request)
    again = tuple([replace(word, first_sample=word.first_sample + 9_600, end_sample=word.end_sample + 9_600)
                   for word in whole.words[2:]])  # fmt: skip
    slow = bytes(2 * 9_600) + whole.pcm[2 * 4_800 :]
    for chunk in (
        RenderedChunk(whole.pcm[: 2 * 4_800], whole.words),
        RenderedChunk(slow, again, Part("fallback", 2, 5, 4_800, "exception")),
    ):
        driver.session.place(work, chunk, driver.coder.push(chunk.pcm), driver.now)
    driver.drain()
    driver.numbered(c.Cancel, utterance=1, played_sample=4_800 + 9_600 + 2_400)
    driver.drain()
    assert driver.of(s.Cancelled)[0].heard_text_end == 3


def test_a_recipe_that_fails_when_it_is_used_again_holds_up_to_there() -> None:
    known = (FALLBACK, CLIP)
    assert joined(known, CLIP) == known
    again = Part("engine", 3, 5, 6_000, "silent")
    assert joined(known, again) == (FALLBACK, again)
    assert joined(known, replace(again, first_sample=7_200)) == (FALLBACK, CLIP, replace(again, first_sample=7_200))
