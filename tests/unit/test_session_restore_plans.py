"""A restored session: plans, clock flushes, pauses, many utterances and long texts are as they were before."""

import random
import time
from hashlib import sha256
from typing import Any

import pytest

from protocol import client_messages as c
from protocol import limits
from protocol import server_messages as s
from server.engines.rendering import RenderedChunk, SegmentRequest
from server.session import SpeakSegment
from server.session.restore import restore
from tests.support.session_driver import TEXT, Driver, capabilities, render
from tests.unit.test_session_restore import POLICY, Journaled, say_all, undisturbed


def by_plan(request: SegmentRequest) -> RenderedChunk:
    """Block mode sounds a little different."""
    chunk = render(request)
    return RenderedChunk(other(chunk.pcm), chunk.words) if request.plan.mode == "block" else chunk


def other(pcm: bytes) -> bytes:
    changed = bytearray(pcm)
    changed[::2] = bytes(byte ^ 1 for byte in pcm[::2])
    return bytes(changed)


def force(driver: Driver, mode: Any) -> None:
    driver.session.delivery.link._modes.mode = mode


@pytest.mark.parametrize("seed", range(20))
def test_segments_are_rendered_again_by_their_plans(seed: int) -> None:
    """Modes change at random; what is rendered again uses the plan that it had, so the checksums agree."""
    chance = random.Random(seed)
    journaled = Journaled(max_lead_ms=None)
    journaled.driver.render = by_plan
    say_all(journaled.driver)
    journaled.write()
    idle = 0
    while idle < 3:
        force(journaled.driver, chance.choice(("stream", "block")))
        if chance.random() < 0.03:
            journaled.kill()
        if journaled.step(chance):
            idle = 0
        else:
            idle += 1
            receiver = journaled.receiver
            journaled.driver.send(c.Ack(receiver.generation, *receiver.place, event=receiver.event))
    events, whole = journaled.receiver.events, undisturbed()
    assert {event.utterance for event in events if isinstance(event, s.Done)} == {1, 2}
    digests = {(event.utterance, event.segment): event for event in events if isinstance(event, s.SegmentEnd)}
    modes = set()
    for key, begin in journaled.receiver.segments.items():
        end = digests[key]
        cut = slice(2 * begin.first_sample, 2 * (begin.first_sample + end.samples))
        heard, plain = bytes(journaled.receiver.pcm[begin.utterance][cut]), whole.pcm(begin.utterance)[cut]
        assert heard in (plain, other(plain)), "half of a segment is of another plan"
        assert end.digest == sha256(heard).hexdigest()
        modes.add(heard == plain)
    assert len(modes) == 2 or seed


def test_text_that_the_clock_flushed_is_cut_in_the_same_place() -> None:
    journaled = Journaled(max_lead_ms=None, max_buffer_delay_ms=800)
    driver = journaled.driver
    driver.numbered(c.Start, utterance=1)
    driver.numbered(c.Text, text="The hall opened in May 1987.")
    journaled.write()
    chance = random.Random(1)
    while journaled.step(chance):
        pass
    driver.now += 1
    driver.session.on_time(driver.now)
    while journaled.step(chance):
        pass
    cuts = [(begin.start, begin.end) for begin in journaled.receiver.segments.values()]
    assert cuts[-1][1] == 28
    journaled.kill()
    assert driver.session._flush_at() is None  # it flushed, and nothing was written since
    driver.numbered(c.Text, text=" It closed.")
    assert driver.session._flush_at() == driver.now + 0.8
    driver.numbered(c.End)
    journaled.finish(chance)
    begins = {begin.segment: begin for begin in journaled.receiver.segments.values()}
    assert [(begins[n].start, begins[n].end) for n in range(len(cuts))] == cuts
    assert begins[len(begins) - 1].end == 39


def test_a_pause_stays_a_pause() -> None:
    journaled = Journaled(max_lead_ms=None)
    driver = journaled.driver
    driver.say(1, TEXT)
    driver.numbered(c.Pause)
    journaled.write()
    journaled.kill()
    chance = random.Random(2)
    for _ in range(200):
        journaled.step(chance)
    assert not journaled.receiver.pcm
    driver.numbered(c.Unpause)
    journaled.finish(chance)
    assert journaled.receiver.pcm[1]


@pytest.mark.parametrize("seed", range(3))
def test_two_hundred_utterances_with_kills(seed: int) -> None:
    """As many as may be unfinished wait all the time, so every restart finds a full queue."""
    chance = random.Random(seed)
    journaled = Journaled(max_lead_ms=None)
    driver, receiver = journaled.driver, journaled.receiver
    started = stuck = 0
    while (done := len({each.utterance for each in receiver.events if isinstance(each, s.Done)})) < 200:
        session = driver.session
        while started < 200 and len(session._sending) < limits.MAX_QUEUED_UTTERANCES and session._writing is None:
            started += 1
            driver.say(started, "" if started % 7 == 0 else "好。")
        if chance.random() < 0.01:
            journaled.write()
            journaled.kill()
        if not journaled.step(chance):
            driver.send(c.Ack(receiver.generation, *receiver.place, event=receiver.event))
            stuck += 1
            assert stuck < 2_000, f"{done} of 200 are done"
    assert journaled.epoch > 3
    restore(journaled.lines, POLICY, capabilities(), epoch=9, now=0.0)


def test_an_utterance_dropped_by_a_restore_is_dropped_by_the_next_one_too() -> None:
    """The client is at the second; the first was heard, but no journal says so."""
    journaled = Journaled(max_lead_ms=None)
    driver = journaled.driver
    say_all(driver)
    journaled.write()
    chance = random.Random(4)
    while journaled.receiver.place < (2, 1):
        journaled.step(chance)
    journaled.write()
    journaled.kill()
    assert [each.id for each in driver.session._sending.values()] == [2]
    journaled.write()
    again = restore(journaled.lines, POLICY, capabilities(), epoch=2, now=0.0)
    assert [each.id for each in again._sending.values()] == [2]


def test_what_was_heard_after_a_restart() -> None:
    """A cancel names the end of the last word that sounded, not the segment after it."""
    journaled = Journaled(max_lead_ms=None)
    driver = journaled.driver
    driver.say(1, TEXT)
    journaled.write()
    chance = random.Random(6)
    while len({segment for _, segment in journaled.receiver.segments}) < 3:
        journaled.step(chance)
    journaled.write()
    third = journaled.receiver.segments[(1, 2)]
    second = journaled.receiver.segments[(1, 1)]
    while journaled.receiver.place[1] <= third.first_sample:
        journaled.step(chance)
    journaled.write()
    journaled.kill()
    for _ in range(300):
        journaled.step(chance)
    driver.numbered(c.Cancel, utterance=1, played_sample=second.first_sample + 10)
    journaled.finish(chance)
    cancelled = next(event for event in journaled.receiver.events if isinstance(event, s.Cancelled))
    assert cancelled.heard_text_end <= second.start + 1


def test_a_fall_to_opus_that_a_restart_took_back_does_not_return() -> None:
    journaled = Journaled(max_lead_ms=None, format="auto")
    driver = journaled.driver
    driver.say(1, TEXT)
    work = driver.take_work()
    assert isinstance(work, SpeakSegment)
    coder = driver.coder = driver.session.coder(work)
    driver.coder_of = 1
    whole = render(work.request)
    driver.session.place(work, RenderedChunk(whole.pcm[:9_600]), coder.push(whole.pcm[:9_600]), driver.now)
    coder.adapt(64_000, opus=True)
    driver.session.place(work, RenderedChunk(whole.pcm[9_600:19_200]), coder.push(whole.pcm[9_600:19_200]), driver.now)
    assert driver.session._speaking[0].opus_from == 4_800
    journaled.write()
    journaled.receiver.place, journaled.receiver.pcm[1] = (1, 4_000), bytearray(whole.pcm[:8_000])
    journaled.kill()  # the client has no Opus: it goes on with PCM
    chance = random.Random(7)
    while journaled.receiver.place < (1, 20_000):
        journaled.step(chance)
    journaled.write()
    journaled.kill()
    journaled.finish(chance)
    expected = Driver()
    expected.open(max_lead_ms=None)
    expected.say(1, TEXT)
    expected.run()
    assert bytes(journaled.receiver.pcm[1]) == expected.pcm(1)


def test_the_news_of_a_segments_end_is_not_lost() -> None:
    """The client has every sample of a segment, and of an utterance that begins without sound, but not the news."""
    journaled = Journaled(max_lead_ms=None)
    driver, receiver = journaled.driver, journaled.receiver
    say_all(driver)
    journaled.write()
    first_end = None
    while first_end is None:
        if (work := driver.take_work()) is not None:
            driver.do(work)
        journaled.write()
        while (data := driver.session.next_outgoing(driver.now)) is not None:
            if isinstance(data, str) and "segment_end" in data:
                first_end = receiver.place
                break
            receiver.take(data)
    journaled.kill()
    journaled.finish(random.Random(8))
    ended = {(each.utterance, each.segment) for each in receiver.events if isinstance(each, s.SegmentEnd)}
    assert ended == set(receiver.segments)


def test_an_idle_client_that_acks_makes_no_journal_grow() -> None:
    journaled = Journaled()
    driver = journaled.driver
    driver.say(1, TEXT)
    chance = random.Random(9)
    for _ in range(400):
        journaled.step(chance)
    receiver = journaled.receiver
    driver.send(c.Ack(receiver.generation, *receiver.place, 10, event=receiver.event))
    journaled.write()
    before = len(journaled.lines)
    for _ in range(100):
        driver.now += 0.05
        driver.send(c.Ack(receiver.generation, *receiver.place, 10, event=receiver.event))
        journaled.write()
    assert len(journaled.lines) - before <= 6  # one a second


def test_a_long_text_is_restored_in_reasonable_time() -> None:
    """200,000 characters, half of them spoken."""
    journaled = Journaled(max_lead_ms=None)
    driver = journaled.driver
    driver.numbered(c.Start, utterance=1)
    text = TEXT * (200_000 // len(TEXT))
    for at in range(0, len(text), limits.MAX_TEXT_CHARS):
        driver.numbered(c.Text, text=text[at : at + limits.MAX_TEXT_CHARS])
    driver.render = lambda request: RenderedChunk(bytes(2 * len(request.cut.text)), ())
    for _ in range(4_000):
        work = driver.take_work()
        assert work is not None
        driver.do(work)
        journaled.write()
        driver.drain()
        last = driver.frames[-1]
        driver.send(c.Ack(1, last.utterance, last.end_sample, event=driver.session.delivery.event))
        driver.frames.clear()
    journaled.write()
    began = time.process_time()
    session = restore(journaled.lines, POLICY, capabilities(), epoch=1, now=0.0)
    assert time.process_time() - began < 3
    assert session.room < limits.TEXT_WINDOW_CHARS - 50_000
