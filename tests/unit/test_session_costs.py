"""What a session does with every message costs the same, however much is queued or kept."""

from collections import deque
from collections.abc import Iterator
from unittest.mock import PropertyMock, patch

import pytest

from protocol import client_messages as c
from protocol import server_messages as s
from server.session.entries import Entry
from server.session.flow import Flow
from server.session.ring import Ring
from server.session.utterance import Utterance
from tests.support.session_driver import TEXT, opened
from tests.unit.test_session_ring import pcm, sent, timing


class Watched(deque[Entry]):
    """Counts how many entries are looked at, or taken from the front."""

    looks = 0

    def __iter__(self) -> Iterator[Entry]:
        for entry in super().__iter__():
            self.looks += 1
            yield entry

    def popleft(self) -> Entry:
        self.looks += 1
        return super().popleft()


def ring_that_waits(frames: int) -> tuple[Ring, Watched]:
    """After a resume: one event with a number, `frames` frames and another one."""
    ring = Ring()
    sent(ring, timing(1), *(pcm(1, n, 1) for n in range(frames)), timing(1))
    ring.rewind((0, 0), 0, None)
    watched = ring._waiting = Watched(ring._waiting)
    return ring, watched


def test_what_goes_first_looks_at_each_waiting_entry_once() -> None:
    ring, watched = ring_that_waits(1_000)
    ring.insert([s.Cancelled(0, 2, 0, 0)])
    assert watched.looks <= 2 * 1_002
    assert [type(entry.item) for entry in ring.following()][-2:] == [s.Timing, s.Cancelled]


def test_what_goes_first_looks_at_nothing_where_nothing_has_a_number() -> None:
    ring = Ring()
    for n in range(1_000):
        ring.add(pcm(1, n, 1))
    watched = ring._waiting = Watched(ring._waiting)
    ring.insert([s.Cancelled(0, 2, 0, 0)])
    assert watched.looks == 0
    assert ring.head is not None
    assert isinstance(ring.head.item, s.Cancelled)


def test_a_cancel_does_not_look_at_what_is_kept_of_others() -> None:
    ring = Ring()
    sent(ring, *(pcm(1, n, 1) for n in range(1_000)), timing(2))
    watched = ring._kept = Watched(ring._kept)
    for utterance in range(2, 66):
        ring.cancel(utterance)
    assert watched.looks == 0
    assert ring.kept_samples == 1_000


def test_a_cancel_of_everything_looks_at_what_is_kept_once() -> None:
    ring = Ring()
    sent(ring, *(pcm(u, n, 1) for u in range(1, 65) for n in range(10)))
    watched = ring._kept = Watched(ring._kept)
    ring.cancel(*range(1, 65))
    assert watched.looks == 640
    assert (ring.kept_samples, ring.bytes) == (0, 0)


def test_a_message_costs_the_same_with_a_full_queue() -> None:
    driver = opened(max_lead_ms=None)
    for utterance in range(1, 65):
        driver.say(utterance, TEXT)
    driver.drain()
    work = driver.take_work()
    assert work is not None
    driver.do(work)
    with patch.object(Utterance, "unspoken", new_callable=PropertyMock, return_value=0) as unspoken:
        while driver.take():
            pass
    assert driver.frames
    assert unspoken.call_count == 0


def test_the_lead_is_not_summed_up_for_every_frame() -> None:
    flow = Flow(10**9)
    for utterance in range(1, 65):
        flow.sent(utterance, 100, 100, 0, 0.0)

    class Closed(dict):  # type: ignore[type-arg]
        def values(self) -> None:  # type: ignore[override]
            raise AssertionError("all utterances were looked at")

    flow._spans = Closed(flow._spans)
    assert flow.may_send(1, 1, 10**9)
    assert flow.lead_samples == 6_400


@pytest.mark.parametrize("spoken", [False, True])
def test_room_is_what_is_not_spoken(spoken: bool) -> None:
    """Whatever happens to the text: cut, cancelled, ended, silences between."""
    driver = opened(max_lead_ms=None)

    def check() -> None:
        left = sum(utterance.unspoken for utterance in driver.session._speaking)
        assert driver.session.room == 262_144 - left

    for utterance in range(1, 6):
        driver.numbered(c.Start, utterance=utterance)
        driver.numbered(c.Text, text=TEXT)
        driver.numbered(c.Silence, ms=20)
        driver.numbered(c.Text, text=" ")
        check()
        if spoken:
            work = driver.take_work()
            assert work is not None
            driver.do(work)
            check()
        if utterance == 3:
            driver.numbered(c.Cancel, utterance=2)
            check()
            driver.numbered(c.Cancel, utterance=3)
        else:
            driver.numbered(c.End)
        check()
    driver.run()
    check()
    assert driver.session.room == 262_144
