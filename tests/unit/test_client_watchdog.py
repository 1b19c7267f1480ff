"""When the client gives a server up: it fell silent, or is alive and speaks no more. Time is virtual."""

import pytest

from client.errors import ServerLost
from client.session import SessionState
from client.watchdog import STUCK_S, WATCHDOG_S
from protocol import client_messages as c
from protocol import server_messages as s
from tests.support.client_script import RATE, Script, Sent, failure_of, feed, frame, opened, play, samples, started


def test_silence_from_the_server_is_noticed() -> None:
    state = started()
    assert failure_of(state.tick(WATCHDOG_S - 0.01, WATCHDOG_S - 0.01)) is None
    assert isinstance(failure_of(state.tick(WATCHDOG_S, WATCHDOG_S)), ServerLost)
    assert state.deadline() is None


def heartbeats(state: SessionState, since: float, until: float) -> Exception | None:
    """Plays a server that is alive and does nothing, until the client gives up on it."""
    now = since
    while now < until:
        while (due := state.deadline()) is not None and due <= now:
            if (error := failure_of(state.tick(due, due))) is not None:
                return error
        feed(state, s.Heartbeat(), now)
        now += 0.5
    return None


@pytest.mark.parametrize("what", ["end", "cancel"])
def test_a_server_that_is_only_alive_is_noticed(what: str) -> None:
    state = started()
    state.text("Hello.", 0.0)
    assert heartbeats(state, 0.0, 3 * STUCK_S) is None  # the writer may think as long as it likes
    now = 3 * STUCK_S
    if what == "end":
        state.end(now)
    else:
        state.cancel(1, None, now)
    feed(state, s.SeqAck(3, 1_000), now + 1)
    assert heartbeats(state, now + 1, now + STUCK_S) is None
    error = heartbeats(state, now + STUCK_S, now + STUCK_S + 2)
    assert isinstance(error, ServerLost)
    assert "stopped speaking" in str(error)


def test_every_step_of_the_server_gives_it_time_again() -> None:
    state = started()
    state.end(0.0)
    steps: list[Sent] = [
        s.SegmentBegin(1, 1, 0, 0, 1, 0),
        frame(0, samples(100)),
        s.SeqAck(2, 1_000),
        frame(100, samples(100)),
    ]
    now = 0.0
    for item in steps:
        assert failure_of(feed(state, item, now)) is None
        assert heartbeats(state, now, now + STUCK_S - 1) is None
        now += STUCK_S - 1
    assert "stopped speaking" in str(heartbeats(state, now, now + 3))


def test_a_pause_may_last() -> None:
    state = started()
    state.end(0.0)
    state.pause(True, 0.0)
    assert heartbeats(state, 0.0, 3 * STUCK_S) is None
    state.pause(False, 3 * STUCK_S)
    assert heartbeats(state, 3 * STUCK_S, 4 * STUCK_S) is None
    assert heartbeats(state, 4 * STUCK_S, 4 * STUCK_S + 2) is not None


def test_a_consumer_may_take_its_time() -> None:
    state = started(queue_bytes=10_000)
    state.end(0.0)
    feed(state, s.SegmentBegin(1, 1, 0, 0, 1, 0))
    for n in range(10):
        feed(state, frame(1_000 * n, samples(1_000)))
    assert heartbeats(state, 0.0, 3 * STUCK_S) is None
    for n in range(10):
        state.consumed(1, 1_000 * (n + 1), 2_000, 3 * STUCK_S)
    assert heartbeats(state, 3 * STUCK_S, 4 * STUCK_S) is None
    assert heartbeats(state, 4 * STUCK_S, 4 * STUCK_S + 2) is not None


@pytest.mark.parametrize(("heard_ms", "excused"), [(0, True), (900, False), (1_000, False)])
def test_a_player_may_stop_with_audio_in_hand(heard_ms: int, excused: bool) -> None:
    state = started(max_lead_ms=1_000)
    state.end(0.0)
    feed(state, s.SegmentBegin(1, 1, 0, 0, 1, 0))
    feed(state, frame(0, samples(RATE)))
    state.consumed(1, RATE, 2 * RATE, 0.0)
    state.played(1, heard_ms * RATE // 1_000, 0, 0, 0.0)
    errors: list[Exception | None] = []
    for beat in range(2 * int(STUCK_S)):
        state.played(1, heard_ms * RATE // 1_000, 0, 0, float(beat))  # a device goes on reporting, also silence
        errors.append(heartbeats(state, float(beat), beat + 1.0))
    assert any(errors) != excused


def test_the_next_utterance_may_wait_for_the_listener() -> None:
    state = started(max_lead_ms=4_000)
    state.end(0.0)
    first = Script().speak([RATE], [])
    play(state, first.sent)
    state.played(1, 10, 0, 0, 0.0)
    state.start(c.Start(0, 1), 0.0)
    state.end(0.0)
    assert heartbeats(state, 0.0, 2 * STUCK_S) is None
    state.played(1, RATE, 0, 0, 2 * STUCK_S)
    assert heartbeats(state, 2 * STUCK_S, 3 * STUCK_S + 2) is not None


def test_a_process_that_slept_long_first_reads_what_waits() -> None:
    state = started()
    state.end(0.0)
    due = state.deadline()
    assert due is not None
    assert failure_of(state.tick(100.0, due)) is None
    feed(state, s.Heartbeat(), 100.1)
    assert failure_of(state.tick(100.2, 100.2)) is None


def test_a_long_way_to_the_server_is_given_time() -> None:
    state = SessionState(opened(), 0.0, rtt_s=1.0)
    state.start(c.Start(0, 1), 0.0)
    assert failure_of(state.tick(1.7, 1.7)) is None
    assert isinstance(failure_of(state.tick(1.75, 1.75)), ServerLost)


def test_a_process_that_slept_first_reads_what_waits() -> None:
    state = started()
    assert failure_of(state.tick(30.0, 0.2)) is None
    assert isinstance(failure_of(state.tick(32.0, 32.0)), ServerLost)


def test_a_long_message_on_a_slow_line_is_no_silence() -> None:
    state = started()
    for n in range(1, 20):
        state.heard(n * 0.5)  # bytes, but no whole message yet
        due = state.deadline()
        assert due is not None
        assert failure_of(state.tick(n * 0.5, min(due, n * 0.5))) is None
    state.heard(1.0)  # an older word
    assert failure_of(state.tick(9.5 + WATCHDOG_S - 0.01, 9.5 + WATCHDOG_S - 0.01)) is None
    assert isinstance(failure_of(state.tick(9.5 + WATCHDOG_S, 9.5 + WATCHDOG_S)), ServerLost)
