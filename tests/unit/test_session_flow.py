"""The session machine: sequence numbers, the text window, acks, and how much may be on its way."""

import pytest

from protocol import client_messages as c
from protocol import limits
from protocol import server_messages as s
from protocol.errors import ErrorCode
from protocol.frames import HEADER, AudioFrame
from server.session import Policy
from server.session.ring import MAX_EVENTS
from tests.support.session_driver import SAMPLES_PER_CHARACTER, TEXT, Driver, fails, opened


def test_events_are_numbered_without_gap_in_the_order_of_the_timeline() -> None:
    driver = opened()
    driver.say(1, TEXT)
    driver.say(2, TEXT)
    driver.run()
    numbers = [m.event for m in driver.messages if isinstance(m, s.EVENTS)]
    assert numbers == list(range(1, len(numbers) + 1))
    at = 0
    for item in driver.order:
        if isinstance(item, AudioFrame) and item.utterance == 1:
            at = item.end_sample
        elif isinstance(item, s.SegmentBegin) and item.utterance == 1:
            assert item.first_sample == at


def test_repeats_are_ignored_and_acked_again() -> None:
    driver = opened()
    driver.numbered(c.Start, utterance=1)
    driver.numbered(c.Text, text="你好。")
    driver.drain()
    driver.send(c.Text(2, "你好。"))
    driver.drain()
    assert [m.seq for m in driver.of(s.SeqAck)] == [2, 2]
    driver.numbered(c.End)
    driver.run()
    assert driver.of(s.Done)[0].samples == 3 * SAMPLES_PER_CHARACTER


def test_a_gap_in_seq_is_an_error() -> None:
    driver = opened()
    with fails(driver, ErrorCode.SEQUENCE, "start.seq"):
        driver.send(c.Start(2, 1))


def test_the_text_window_is_bounded_and_its_room_is_told() -> None:
    driver = opened()
    driver.numbered(c.Start, utterance=1)
    piece = "好" * limits.MAX_TEXT_CHARS
    for _ in range(limits.TEXT_WINDOW_CHARS // limits.MAX_TEXT_CHARS):
        driver.numbered(c.Text, text=piece)
    driver.drain()
    assert driver.of(s.SeqAck)[-1].room == 0
    with fails(driver, ErrorCode.TEXT_WINDOW):
        driver.send(c.Text(driver.seq + 1, "好"))


def test_a_waiting_writer_hears_when_there_is_room_again() -> None:
    driver = opened(max_lead_ms=None)
    driver.numbered(c.Start, utterance=1)
    for _ in range(16):
        driver.numbered(c.Text, text="好" * limits.MAX_TEXT_CHARS)
    driver.drain()
    told = len(driver.of(s.SeqAck))
    while len(driver.of(s.SeqAck)) == told and (work := driver.take_work()) is not None:
        driver.do(work, chunk_samples=96_000)
        driver.drain()
        driver.ack(1, driver.frames[-1].end_sample)
    acks = driver.of(s.SeqAck)[told:]
    assert acks
    assert acks[-1].room >= limits.TEXT_WINDOW_CHARS // 4


def test_utterance_text_limit() -> None:
    driver = opened()
    driver.numbered(c.Start, utterance=1)
    driver.session._speaking[0].chars = limits.MAX_UTTERANCE_CHARS
    with fails(driver, ErrorCode.TEXT_LIMIT, "text.text"):
        driver.numbered(c.Text, text="a")


def test_queued_utterances_are_bounded() -> None:
    driver = opened()
    for n in range(1, limits.MAX_QUEUED_UTTERANCES + 1):
        driver.say(n, "好。")
    with fails(driver, ErrorCode.QUEUE_FULL):
        driver.numbered(c.Start, utterance=limits.MAX_QUEUED_UTTERANCES + 1)


def test_hundreds_of_short_utterances_one_after_the_other() -> None:
    driver = opened()
    for n in range(1, 200):
        driver.say(n, "好。")
        driver.run()
    assert len(driver.of(s.Done)) == 199


def test_sending_runs_ahead_of_playing_by_at_most_the_lead() -> None:
    driver = opened(max_lead_ms=1_000)
    driver.say(1, TEXT)
    for _ in range(10):
        driver.run(acks=False)
    sent = driver.frames[-1].end_sample
    assert 0.9 * 24_000 <= sent <= 24_000
    driver.ack(1, sent, sent // 2)
    driver.run(acks=False)
    assert driver.frames[-1].end_sample <= 24_000 + sent // 2


def test_a_client_that_never_acks_gets_a_bounded_number_of_bytes() -> None:
    driver = opened(max_lead_ms=None)
    driver.say(1, "好" * 2_000)
    driver.run(acks=False)
    assert sum(HEADER.size + len(frame.payload) for frame in driver.frames) <= limits.MAX_UNACKED_BYTES


def test_rendering_pauses_when_the_read_ahead_is_full() -> None:
    driver = Driver(Policy("tone-low", read_ahead_ms=500))
    driver.open(max_lead_ms=100)
    driver.say(1, "好" * 1_000)
    driver.run(acks=False)
    assert driver.session.delivery.ring.samples <= (500 + 40 * 100) * 24  # the bound and the segment that crossed it
    assert driver.take_work() is None


def test_pause_holds_audio_back_and_unpause_lets_it_go() -> None:
    driver = opened()
    driver.numbered(c.Pause)
    driver.say(1, "你好。")
    driver.run()
    assert not driver.frames
    driver.numbered(c.Unpause)
    driver.run()
    assert driver.of(s.Done)[0].samples == 3 * SAMPLES_PER_CHARACTER


@pytest.mark.parametrize(
    ("field", "ack"),
    [
        ("ack.event", {"utterance": 1, "next_sample": 0, "event": 99}),
        ("ack.utterance", {"utterance": 7, "next_sample": 0}),
        ("ack.next_sample", {"utterance": 1, "next_sample": 10**9}),
        ("ack.played_sample", {"utterance": 1, "next_sample": 10, "played_sample": 20}),
    ],
)
def test_acks_that_cannot_be_true_are_refused(field: str, ack: dict[str, int]) -> None:
    driver = opened()
    driver.say(1, TEXT)
    driver.do(driver.take_work())  # type: ignore[arg-type]  # there is work: asserted by `do`
    driver.drain()
    with fails(driver, ErrorCode.BAD_ACK, field):
        driver.ack(**ack)


def test_acks_of_another_generation_are_ignored() -> None:
    driver = opened()
    driver.send(c.Ack(9, 5, 10**9))


def test_a_client_that_acks_nothing_is_closed() -> None:
    driver = opened()
    driver.say(1, TEXT)
    driver.run(acks=False)
    with fails(driver, ErrorCode.CLIENT_STALLED):
        limit = driver.now + 100
        while driver.now < limit:
            driver.now = driver.session.deadline()
            driver.session.on_time(driver.now)
            driver.send(c.Ping())
            driver.drain()


def test_receiving_the_next_utterance_does_not_mean_the_last_was_heard() -> None:
    driver = opened(max_lead_ms=2_500)
    driver.say(1, TEXT)
    driver.say(2, TEXT)
    driver.run(acks=False)
    driver.ack(1, driver.frames[-1].end_sample, 10)
    end = len(TEXT) * SAMPLES_PER_CHARACTER
    while driver.frames[-1].utterance == 1:
        driver.run(acks=False)
        driver.ack(1, driver.frames[-1].end_sample, driver.frames[-1].end_sample // 2)
        if driver.frames[-1].end_sample == end:
            break
    driver.ack(1, end, end - 24_000)
    driver.run(acks=False)
    sent = driver.frames[-1]
    assert sent.utterance == 2
    driver.ack(2, sent.end_sample, 0)
    driver.run(acks=False)
    assert driver.frames[-1].end_sample == sent.end_sample  # a second of the first is still to be heard
    driver.numbered(c.Cancel, played_sample=end - 2 * SAMPLES_PER_CHARACTER)
    driver.drain()
    assert [m.heard_text_end for m in driver.of(s.Cancelled)] == [len(TEXT) - 2, 0]


def test_a_client_that_acked_the_last_sample_owes_no_ack_for_the_empty_frame() -> None:
    driver = opened()
    driver.say(1, TEXT)
    while not driver.of(s.Done):
        driver.run(acks=False)
        last = driver.frames[-1]
        driver.ack(1, last.first_sample + last.count, last.first_sample)
    assert driver.frames[-1].count == 0
    assert not driver.session.unfinished


def test_starting_again_and_again_does_not_excuse_missing_acks() -> None:
    driver = opened()
    driver.say(1, TEXT)
    driver.run(acks=False)
    with fails(driver, ErrorCode.CLIENT_STALLED):
        for n in range(2, 60):
            driver.now += 2
            driver.session.on_time(driver.now)
            driver.say(n, "好。")
            driver.drain()


def test_silences_take_room_and_the_room_is_never_negative() -> None:
    driver = opened()
    driver.numbered(c.Start, utterance=1)
    for _ in range(16):
        driver.numbered(c.Text, text="好" * limits.MAX_TEXT_CHARS)
    driver.drain()
    assert driver.of(s.SeqAck)[-1].room == 0
    with fails(driver, ErrorCode.TEXT_WINDOW, "silence"):
        driver.numbered(c.Silence, ms=10)


@pytest.mark.parametrize("text", ["好", "你好", "你好吗", TEXT])
@pytest.mark.parametrize("frame_ms", [20.0, 60.0])
def test_what_opus_is_padded_with_does_not_count_as_unheard(text: str, frame_ms: float) -> None:
    driver = opened(format="opus", frame_ms=frame_ms, max_lead_ms=100)
    done: list[s.Done] = []
    for n in range(1, 6):
        driver.say(n, text)
        for _ in range(200):
            driver.run(acks=False)
            done = [m for m in driver.of(s.Done) if m.utterance == n]
            frame = driver.frames[-1]
            length = done[0].samples if done else frame.end_sample
            driver.ack(n, frame.end_sample, min(length, frame.end_sample))
            if done:
                break
        assert done


def test_silence_without_payload_is_bounded_too() -> None:
    driver = opened(max_lead_ms=None)
    driver.numbered(c.Start, utterance=1)
    for _ in range(2_000):
        driver.numbered(c.Silence, ms=60_000)
    for _ in range(2_500):
        driver.run(acks=False)
        if driver.take_work() is None:
            break
    assert len(driver.frames) * HEADER.size <= limits.MAX_UNACKED_BYTES


def test_segments_without_sound_are_bounded_too() -> None:
    driver = opened()
    driver.numbered(c.Pause)
    driver.numbered(c.Start, utterance=1)
    for _ in range(3_000):
        driver.numbered(c.Silence, ms=1)
    done = 0
    while (work := driver.take_work()) is not None:
        driver.do(work)
        done += 1
        assert done < 3_000
    assert driver.session.delivery.ring._events < MAX_EVENTS + 4
