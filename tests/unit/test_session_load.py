"""When a session loads the engine, as admission counts it, and what it keeps in memory."""

from protocol import client_messages as c
from server.session import SpeakSegment
from server.session.rendering import TEXT_BYTES
from tests.support.session_driver import TEXT, opened


def test_it_speaks_from_its_first_work_to_the_last() -> None:
    driver = opened()
    session = driver.session
    assert (session.begun, session.speaks) == (False, False)
    driver.numbered(c.Start, utterance=1)
    assert (session.begun, session.speaks) == (True, False)
    driver.numbered(c.Text, text="你好，世")
    work = driver.take_work()
    assert session.speaks
    assert work is not None
    driver.do(work)
    assert driver.take_work() is None  # "世" may go on
    assert (session.begun, session.speaks) == (True, False)
    driver.numbered(c.End)
    driver.run()
    assert (session.begun, session.speaks) == (False, False)


def test_whose_buffers_are_full_speaks_on_unless_nobody_takes_it() -> None:
    driver = opened(max_lead_ms=1_000)
    session = driver.session
    driver.say(1, TEXT * 20)
    while session.wants_audio:
        work = driver.take_work()
        assert isinstance(work, SpeakSegment)
        driver.do(work)
        driver.drain()
    assert session.speaks
    driver.numbered(c.Pause)
    assert (session.begun, session.speaks) == (True, False)
    driver.numbered(c.Unpause)
    assert session.speaks
    session.detach(driver.now)
    assert (session.begun, session.speaks) == (True, False)


def test_a_cancel_ends_the_load_at_once() -> None:
    driver = opened()
    driver.say(1, TEXT)
    assert driver.take_work() is not None
    assert driver.session.speaks
    driver.numbered(c.Cancel)
    assert (driver.session.begun, driver.session.speaks) == (False, False)


def test_text_counts_as_memory_too() -> None:
    driver = opened()
    session = driver.session
    assert session.kept_bytes == 0
    driver.say(1, "山" * 1_000)
    assert session.kept_bytes == 1_000 * TEXT_BYTES
    work = driver.take_work()
    assert work is not None
    driver.do(work)
    assert session.kept_bytes > session.delivery.ring.bytes > 0
    driver.numbered(c.Cancel)
    driver.drain()
    driver.send(c.Ack(1, 0, 0, event=session.delivery.event))
    assert session.kept_bytes == 0


def test_only_the_next_number_is_next() -> None:
    driver = opened()
    driver.numbered(c.Start, utterance=1)
    assert [driver.session.is_next(c.End(seq)) for seq in (1, 2, 3)] == [False, True, False]
