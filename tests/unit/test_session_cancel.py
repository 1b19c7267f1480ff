"""The session machine: cancel, in every state, and what was heard."""

import time

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.errors import ErrorCode
from tests.support.session_driver import SAMPLES_PER_CHARACTER, TEXT, fails, opened


def test_cancel_before_the_first_sound() -> None:
    driver = opened()
    driver.say(1, TEXT * 30)
    driver.numbered(c.Cancel)
    driver.run()
    cancelled = driver.of(s.Cancelled)[0]
    assert (cancelled.utterance, cancelled.sample, cancelled.heard_text_end) == (1, 0, 0)
    assert not driver.frames
    assert not driver.of(s.Done)
    driver.say(2, "好的。")
    driver.run()
    assert driver.of(s.Done)[0].utterance == 2


def test_cancel_says_what_was_heard() -> None:
    driver = opened(max_lead_ms=1_000)
    driver.say(1, TEXT)
    driver.run(acks=False)
    sent = driver.frames[-1].end_sample
    played = 5 * SAMPLES_PER_CHARACTER + 10
    driver.numbered(c.Cancel, played_sample=played)
    driver.run(acks=False)
    cancelled = driver.of(s.Cancelled)[0]
    assert cancelled.sample == sent
    assert cancelled.heard_text_end == 5
    assert driver.frames[-1].end_sample == sent  # nothing after it


def test_cancel_takes_what_is_queued_with_it() -> None:
    driver = opened(max_lead_ms=200)
    driver.say(1, TEXT)
    driver.say(2, TEXT)
    driver.numbered(c.Start, utterance=3)
    driver.numbered(c.Text, text="还有")
    driver.run(acks=False)
    driver.numbered(c.Cancel)
    driver.run(acks=False)
    assert [m.utterance for m in driver.of(s.Cancelled)] == [1, 2, 3]
    driver.say(4, "好的。")  # the lead of what was cancelled is not held against it
    driver.run()
    assert driver.of(s.Done)[-1].utterance == 4


def test_cancel_of_one_utterance_leaves_the_others() -> None:
    driver = opened()
    driver.say(1, "你好。")
    driver.say(2, "再见。")
    driver.numbered(c.Cancel, utterance=2)
    driver.run()
    assert [m.utterance for m in driver.of(s.Done)] == [1]
    assert [m.utterance for m in driver.of(s.Cancelled)] == [2]


def test_cancel_when_idle_is_no_error() -> None:
    driver = opened()
    driver.numbered(c.Cancel)
    driver.numbered(c.Cancel)
    driver.drain()
    assert driver.of(s.SeqAck)[-1].seq == 2
    assert not driver.of(s.Cancelled)


def test_cancel_after_done_while_the_listener_still_hears_it() -> None:
    driver = opened(max_lead_ms=60_000)
    driver.say(1, TEXT)
    while not driver.of(s.Done):
        driver.run(acks=False)
        driver.ack(1, driver.frames[-1].end_sample)  # received, not played
    driver.ack(1, driver.frames[-1].end_sample, 3 * SAMPLES_PER_CHARACTER)
    driver.numbered(c.Cancel, played_sample=3 * SAMPLES_PER_CHARACTER)
    driver.drain()
    assert driver.of(s.Cancelled)[0].heard_text_end == 3


def test_work_in_hand_is_dropped_by_a_cancel() -> None:
    driver = opened()
    driver.say(1, TEXT)
    work = driver.take_work()
    assert work is not None
    driver.numbered(c.Cancel)
    assert not driver.session.is_current(work)
    driver.do(work)
    driver.run()
    assert not driver.frames


def test_cancelled_does_not_wait_for_the_audio_of_others() -> None:
    driver = opened(max_lead_ms=200)
    driver.say(1, TEXT)
    driver.say(2, TEXT)
    driver.numbered(c.Pause)
    driver.run(acks=False)
    driver.numbered(c.Cancel, utterance=1)
    driver.drain()
    assert [m.utterance for m in driver.of(s.Cancelled)] == [1]
    driver.numbered(c.Unpause)
    driver.run()
    assert [m.utterance for m in driver.of(s.Done)] == [2]


def test_a_cancel_that_knows_less_than_the_acks_did() -> None:
    driver = opened(max_lead_ms=2_000)
    driver.say(1, TEXT)
    driver.run(acks=False)
    driver.ack(1, driver.frames[-1].end_sample, 6 * SAMPLES_PER_CHARACTER)
    driver.numbered(c.Cancel, played_sample=2 * SAMPLES_PER_CHARACTER)
    driver.drain()
    assert driver.of(s.Cancelled)[0].heard_text_end == 6


def test_a_cancel_without_a_place_goes_by_the_acks() -> None:
    driver = opened(max_lead_ms=2_000)
    driver.say(1, TEXT)
    driver.run(acks=False)
    driver.ack(1, driver.frames[-1].end_sample, 4 * SAMPLES_PER_CHARACTER)
    driver.numbered(c.Cancel)
    driver.drain()
    assert driver.of(s.Cancelled)[0].heard_text_end == 4


def test_what_was_cancelled_after_its_end_counts_once() -> None:
    driver = opened(max_lead_ms=60_000)
    driver.say(1, TEXT)
    driver.run(acks=False)
    driver.numbered(c.Cancel)
    driver.drain()
    assert driver.session.utterances == 1


def test_cancelling_what_is_queued_keeps_the_lead_of_what_is_heard() -> None:
    driver = opened(max_lead_ms=4_000)
    driver.say(1, TEXT + TEXT)
    driver.run(acks=False)
    sent = driver.frames[-1].end_sample
    driver.say(2, TEXT)
    driver.numbered(c.Cancel, utterance=2)
    driver.run(acks=False)
    assert driver.frames[-1].end_sample == sent
    assert driver.session.delivery.flow.lead_samples == sent


def test_answers_that_are_not_read_stop_the_reading() -> None:
    driver = opened()
    for _ in range(100):
        driver.send(c.Ping())
    assert driver.session.answers_full
    driver.drain()
    assert not driver.session.answers_full


def test_cancels_by_the_thousand_cost_nothing_and_stop_the_reading() -> None:
    driver = opened(max_lead_ms=100)
    driver.say(1, TEXT * 20)
    driver.run(acks=False)
    started = time.process_time()
    for n in range(2, 5_000):
        driver.numbered(c.Start, utterance=n)
        driver.numbered(c.Cancel, utterance=n)
    assert time.process_time() - started < 5
    full = driver.session.answers_full
    driver.drain()
    assert (full, driver.session.answers_full) == (True, False)
    assert len(driver.of(s.Cancelled)) == 4_998


def test_cancels_behind_audio_that_comes_again_do_not_stop_the_reading() -> None:
    """That audio needs acks, or the end of a pause, which would not be read."""
    driver = opened(max_lead_ms=None)
    driver.say(1, TEXT)
    driver.run(acks=False)
    session = driver.session
    assert session.delivery.event > 3
    session.detach(driver.now)
    session.resume(c.Resume("s", "t", 0, 1, 0, 0, 0), "t2", driver.now)
    driver.numbered(c.Pause)
    driver.drain()
    assert session.delivery.ring.audio_waits
    for n in range(2, 200):
        driver.numbered(c.Start, utterance=n)
        driver.numbered(c.Cancel, utterance=n)
        assert not session.answers_full
    driver.numbered(c.Unpause)
    driver.frames.clear()
    driver.run()
    assert len(driver.of(s.Cancelled)) == 198


def test_cancels_that_were_not_sent_before_a_resume_go_before_the_audio_that_comes_again() -> None:
    driver = opened(max_lead_ms=None)
    driver.say(1, TEXT)
    driver.run(acks=False)
    session = driver.session
    event = session.delivery.event
    for n in range(2, 66):
        driver.numbered(c.Start, utterance=n)
        driver.numbered(c.Cancel, utterance=n)
    session.detach(driver.now)
    session.resume(c.Resume("s", "t", 0, 1, 0, 0, event), "t2", driver.now)
    full = session.answers_full
    driver.drain()
    assert (full, session.answers_full) == (True, False)
    assert len(driver.of(s.Cancelled)) == 64


def test_too_many_cancels_behind_audio_end_the_session() -> None:
    driver = opened(max_lead_ms=None)
    driver.say(1, TEXT)
    driver.run(acks=False)
    driver.session.detach(driver.now)
    driver.session.resume(c.Resume("s", "t", 0, 1, 0, 0, 0), "t2", driver.now)
    driver.numbered(c.Pause)
    with fails(driver, ErrorCode.QUEUE_FULL, "cancel"):
        for n in range(2, 10_000):
            driver.numbered(c.Start, utterance=n)
            driver.numbered(c.Cancel, utterance=n)
    assert len(driver.session.delivery.ring._waiting) < 2_200


def test_a_cancel_takes_away_exactly_what_is_queued() -> None:
    driver = opened(max_lead_ms=100)
    for n in (1, 2, 3):
        driver.say(n, TEXT)
    driver.run(acks=False)
    driver.numbered(c.Cancel)
    driver.drain()
    session = driver.session
    outbox = session.delivery.ring
    assert outbox.empty
    assert (outbox.samples, outbox._events, outbox._cancelled, outbox._items) == (0, 0, 0, {})


def test_an_utterance_that_says_nothing_makes_no_trouble_for_cancel() -> None:
    driver = opened()
    driver.say(1, "")
    driver.say(2, TEXT)
    driver.run(acks=False)
    driver.numbered(c.Cancel)
    driver.drain()
    assert [m.utterance for m in driver.of(s.Cancelled)] == [2]
