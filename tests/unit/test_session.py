"""The session machine, driven without I/O."""

import time
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import client_messages as c
from protocol import limits
from protocol import server_messages as s
from protocol.errors import ErrorCode, ProtocolError
from protocol.frames import HEADER, AudioFrame, Codec, FrameFlag, unpack_packets
from server.engines.base import EngineError
from server.session import Policy, SpeakSegment
from server.session.states import ALLOWED, State
from tests.support.session_driver import SAMPLES_PER_CHARACTER, Driver

TEXT = "你好，世界。今天天气很好，我们去公园散步吧。"


def fails(driver: Driver, code: ErrorCode, field: str | None = None) -> Any:
    class Check:
        def __enter__(self) -> None: ...

        def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
            assert isinstance(error, ProtocolError), error
            assert error.code is code
            assert field is None or error.field == field
            return True

    return Check()


def opened(**fields: Any) -> Driver:
    driver = Driver()
    driver.open(**fields)
    driver.drain()
    return driver


def test_speaks_a_text_and_proves_it() -> None:
    driver = opened()
    assert isinstance(driver.messages[0], s.Opened)
    driver.say(1, TEXT)
    driver.run()
    done = driver.of(s.Done)[0]
    pcm = driver.pcm(1)
    assert done.samples == len(pcm) // 2 == len(TEXT) * SAMPLES_PER_CHARACTER
    digests = b""
    position = 0
    for begin, end in zip(driver.of(s.SegmentBegin), driver.of(s.SegmentEnd), strict=True):
        assert begin.segment == end.segment
        assert begin.start == position
        position = begin.end
        piece = pcm[2 * begin.first_sample : 2 * (begin.first_sample + end.samples)]
        assert end.digest == sha256(piece).hexdigest()
        digests += sha256(piece).digest()
    assert position == len(TEXT)
    assert done.digest == sha256(digests).hexdigest()
    assert done.wire_digest == sha256(pcm).hexdigest()
    assert driver.frames[-1].flags & FrameFlag.LAST
    assert done.statistics["characters"] == len(TEXT)


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


def test_words_are_on_the_utterances_timeline() -> None:
    driver = opened()
    driver.say(1, TEXT)
    driver.run()
    for word in (word for timing in driver.of(s.Timing) for word in timing.words):
        assert word.text == TEXT[word.start : word.end]
        assert word.first_sample == word.start * SAMPLES_PER_CHARACTER


def test_timings_can_be_declined() -> None:
    driver = opened(timings=False)
    driver.say(1, TEXT)
    driver.run()
    assert not driver.of(s.Timing)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=30))
@settings(max_examples=30, deadline=None)
def test_samples_do_not_depend_on_how_the_text_was_cut_into_messages(sizes: list[int]) -> None:
    whole = opened()
    whole.say(1, TEXT)
    whole.run()
    pieces = opened()
    pieces.numbered(c.Start, utterance=1)
    at = 0
    for size in sizes:
        pieces.numbered(c.Text, text=TEXT[at : at + size])
        pieces.run()
        at += size
    pieces.numbered(c.Text, text=TEXT[at:])
    pieces.numbered(c.End)
    pieces.run()
    assert pieces.pcm(1) == whole.pcm(1)
    assert pieces.of(s.Done)[0].digest == whole.of(s.Done)[0].digest


def test_first_segment_is_rendered_while_the_text_is_still_coming() -> None:
    driver = opened()
    driver.numbered(c.Start, utterance=1)
    driver.numbered(c.Text, text="你好，世")
    work = driver.take_work()
    assert isinstance(work, SpeakSegment)
    assert work.request.cut.text == "你好，"


def test_text_that_says_nothing_is_done_with_zero_samples() -> None:
    driver = opened()
    driver.say(1, "")
    driver.run()
    assert driver.of(s.Done)[0].samples == 0
    assert not driver.frames


# ---- sequence numbers and flow of text ----


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
    for _ in range(2_000):
        work = driver.take_work()
        if work is None:
            break
        driver.do(work)
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


# ---- flow of audio ----


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
    assert driver.session._unsent <= (500 + 40 * 100) * 24  # the bound and the segment that crossed it
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


# ---- silence, overrides, formats ----


def test_silence_stands_where_it_was_written() -> None:
    driver = opened()
    driver.numbered(c.Start, utterance=1)
    driver.numbered(c.Text, text="你好")
    driver.numbered(c.Silence, ms=1500)
    driver.numbered(c.Text, text="再见")
    driver.numbered(c.End)
    driver.run()
    begins = driver.of(s.SegmentBegin)
    assert [(b.kind, b.start, b.end) for b in begins] == [("speech", 0, 2), ("silence", 2, 2), ("speech", 2, 4)]
    pcm = driver.pcm(1)
    first = 2 * 2 * SAMPLES_PER_CHARACTER
    assert not any(pcm[first : first + 2 * 36_000])
    assert len(pcm) // 2 == 4 * SAMPLES_PER_CHARACTER + 36_000
    assert sum(len(f.payload) for f in driver.frames if f.flags & FrameFlag.SILENCE_RUN) == 0


def test_overrides_belong_to_one_utterance() -> None:
    driver = opened(speed=1.5)
    driver.numbered(c.Start, utterance=1, voice="tone-high", speed=0.5, seed=7, lexicon={"a": "b"})
    driver.numbered(c.Text, text="你好。")
    work = driver.take_work()
    assert isinstance(work, SpeakSegment)
    request = work.request
    assert (request.voice, request.speed, request.seed) == ("tone-high", 0.5, 7)
    assert request.lexicon == {"a": "b"}
    driver.do(work)
    driver.numbered(c.End)
    driver.run()
    driver.numbered(c.Start, utterance=2)
    driver.numbered(c.Text, text="你好。")
    work = driver.take_work()
    assert isinstance(work, SpeakSegment)
    assert (work.request.voice, work.request.speed) == ("tone-low", 1.5)


def test_opus_frames_carry_exact_lengths() -> None:
    driver = opened(format="opus")
    opening = driver.of(s.Opened)[0]
    driver.say(1, TEXT)
    driver.run()
    done = driver.of(s.Done)[0]
    assert all(frame.codec is Codec.OPUS for frame in driver.frames)
    assert driver.frames[0].flags & FrameFlag.DECODER_RESET
    assert not driver.frames[1].flags & FrameFlag.DECODER_RESET
    assert driver.frames[-1].flags & FrameFlag.LAST
    packets = [packet for frame in driver.frames for packet in unpack_packets(frame.payload)]
    assert driver.frames[-1].end_sample == len(packets) * 480
    assert 0 <= driver.frames[-1].end_sample - opening.pre_skip - done.samples < 480


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"voice": "nobody"}, ErrorCode.UNKNOWN_VOICE, "open.voice"),
        ({"sample_rate": 12_000}, ErrorCode.BAD_MESSAGE, "open.sample_rate"),
        ({"format": "opus", "sample_rate": 44_100}, ErrorCode.BAD_MESSAGE, "open.sample_rate"),
        ({"format": "opus", "frame_ms": 30.0}, ErrorCode.BAD_MESSAGE, "open.frame_ms"),
        ({"frame_ms": 2.5}, ErrorCode.BAD_MESSAGE, "open.frame_ms"),
    ],
)
def test_open_says_what_is_allowed(fields: dict[str, Any], code: ErrorCode, field: str) -> None:
    with fails(Driver(), code, field):
        Driver().open(**fields)


def test_instruct_needs_a_voice_that_follows_instructions() -> None:
    driver = opened()
    with fails(driver, ErrorCode.UNSUPPORTED, "start.instruct"):
        driver.numbered(c.Start, utterance=1, instruct="cheerfully")


def test_opened_never_echoes_the_key() -> None:
    driver = opened(api_key="secret")
    assert "secret" not in str(driver.messages)


# ---- cancel ----


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
    driver.run(acks=False)
    assert driver.of(s.Done)
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


# ---- states ----


def example(cls: type[c.ClientMessage], seq: int) -> c.ClientMessage:
    examples: dict[type[Any], c.ClientMessage] = {
        c.Open: c.Open(),
        c.Resume: c.Resume("s", "t", 0, 0, 0, 0, 0),
        c.Ping: c.Ping(),
        c.Ack: c.Ack(1, 0, 0),
        c.Start: c.Start(seq, 50),
        c.Text: c.Text(seq, "a"),
        c.Silence: c.Silence(seq, 5),
        c.Flush: c.Flush(seq),
        c.End: c.End(seq),
        c.Cancel: c.Cancel(seq),
        c.Pause: c.Pause(seq),
        c.Unpause: c.Unpause(seq),
    }
    return examples[cls]


@pytest.mark.parametrize("state", [State.AWAITING_OPEN, State.IDLE, State.WRITING])
@pytest.mark.parametrize("cls", c.CLIENT_MESSAGES, ids=lambda cls: cls.type)
def test_every_message_in_every_state(state: State, cls: type[c.ClientMessage]) -> None:
    driver = Driver()
    if state is not State.AWAITING_OPEN:
        driver.open()
    if state is State.WRITING:
        driver.numbered(c.Start, utterance=1)
    assert driver.session.state is state
    message = example(cls, driver.seq + 1)
    if cls in ALLOWED[state]:
        driver.send(message)
    else:
        with fails(driver, ErrorCode.UNEXPECTED, "type"):
            driver.send(message)


def test_resume_of_a_session_that_is_not_kept_fails_and_open_may_follow() -> None:
    driver = Driver()
    driver.send(c.Resume("s", "t", 0, 0, 0, 0, 0))
    driver.open()
    driver.drain()
    assert driver.of(s.ResumeFailed)[0].reason == "unknown"
    assert driver.of(s.Opened)


def test_utterance_ids_must_grow() -> None:
    driver = opened()
    driver.say(5, "好。")
    with fails(driver, ErrorCode.BAD_MESSAGE, "start.utterance"):
        driver.numbered(c.Start, utterance=5)


# ---- time ----


def test_no_open_in_time() -> None:
    driver = Driver()
    driver.now = driver.session.deadline()
    with fails(driver, ErrorCode.OPEN_TIMEOUT):
        driver.session.on_time(driver.now)


def advance(driver: Driver, seconds: float) -> None:
    limit = driver.now + seconds
    while driver.session.deadline() <= limit:
        driver.now = max(driver.now, driver.session.deadline())
        driver.session.on_time(driver.now)
        driver.run()
    driver.now = limit


def test_heartbeats_are_frequent_only_while_something_is_unfinished() -> None:
    driver = opened()
    advance(driver, 60)
    assert len(driver.of(s.Heartbeat)) == 4
    driver.numbered(c.Start, utterance=1)
    driver.numbered(c.Text, text="and")
    advance(driver, 10)
    assert 18 <= len(driver.of(s.Heartbeat)) - 4 <= 20


def test_silent_clients_are_told_before_they_are_closed() -> None:
    driver = opened()
    with fails(driver, ErrorCode.IDLE_TIMEOUT):
        advance(driver, 301)


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


def test_a_paused_client_may_wait() -> None:
    driver = opened()
    driver.say(1, TEXT)
    driver.run(acks=False)
    driver.numbered(c.Pause)
    for _ in range(200):
        driver.now += 1
        driver.session.on_time(driver.now)
        driver.send(c.Ping())
        driver.drain()


def test_text_that_looks_complete_is_spoken_after_a_pause() -> None:
    driver = opened(max_buffer_delay_ms=800)
    driver.numbered(c.Start, utterance=1)
    driver.numbered(c.Text, text="The hall opened in May 1987.")
    driver.run()
    heard = driver.of(s.SegmentBegin)[-1].end if driver.of(s.SegmentBegin) else 0
    assert heard < 28
    advance(driver, 1.0)
    assert driver.of(s.SegmentBegin)[-1].end == 28


def test_without_a_buffer_delay_only_flushes_speak_it() -> None:
    driver = opened(max_buffer_delay_ms=None)
    driver.numbered(c.Start, utterance=1)
    driver.numbered(c.Text, text="The hall opened in May 1987.")
    advance(driver, 30)
    heard = driver.of(s.SegmentBegin)[-1].end if driver.of(s.SegmentBegin) else 0
    assert heard < 28
    driver.numbered(c.Flush, soft=True)
    driver.run()
    assert driver.of(s.SegmentBegin)[-1].end == 28


def test_an_unfinished_number_waits_for_its_digits() -> None:
    driver = opened(max_buffer_delay_ms=800)
    driver.numbered(c.Start, utterance=1)
    driver.numbered(c.Text, text="3.")
    advance(driver, 5)
    assert not driver.frames


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


def test_a_client_that_acked_the_last_sample_owes_no_ack_for_the_empty_frame() -> None:
    driver = opened()
    driver.say(1, TEXT)
    while not driver.of(s.Done):
        driver.run(acks=False)
        last = driver.frames[-1]
        driver.ack(1, last.first_sample + last.count, last.first_sample)
    assert driver.frames[-1].count == 0
    assert not driver.session.unfinished


def test_what_was_cancelled_after_its_end_counts_once() -> None:
    driver = opened(max_lead_ms=60_000)
    driver.say(1, TEXT)
    driver.run(acks=False)
    driver.numbered(c.Cancel)
    driver.drain()
    assert driver.session.utterances == 1


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


def test_cancelling_what_is_queued_keeps_the_lead_of_what_is_heard() -> None:
    driver = opened(max_lead_ms=4_000)
    driver.say(1, TEXT + TEXT)
    driver.run(acks=False)
    sent = driver.frames[-1].end_sample
    driver.say(2, TEXT)
    driver.numbered(c.Cancel, utterance=2)
    driver.run(acks=False)
    assert driver.frames[-1].end_sample == sent
    assert driver.session._flow.lead == sent


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


def test_answers_that_are_not_read_stop_the_reading() -> None:
    driver = opened()
    for _ in range(100):
        driver.send(c.Ping())
    assert driver.session.answers_full
    driver.drain()
    assert not driver.session.answers_full


@pytest.mark.parametrize("transient", [True, False])
def test_an_engine_says_whether_trying_again_may_help(transient: bool) -> None:
    driver = opened()
    driver.say(1, TEXT)
    work = driver.take_work()
    assert work is not None
    error = driver.session.failed(work, EngineError("no", transient=transient))
    assert (error.code, error.retryable) == (ErrorCode.ENGINE_FAILED, transient)
    assert error.message == "text [0, 3) of utterance 1: no"


def test_cancels_by_the_thousand_cost_nothing_and_stop_the_reading() -> None:
    driver = opened(max_lead_ms=100)
    driver.say(1, TEXT * 20)
    driver.run(acks=False)
    started = time.perf_counter()
    for n in range(2, 5_000):
        driver.numbered(c.Start, utterance=n)
        driver.numbered(c.Cancel, utterance=n)
    assert time.perf_counter() - started < 5
    full = driver.session.answers_full
    driver.drain()
    assert (full, driver.session.answers_full) == (True, False)
    assert len(driver.of(s.Cancelled)) == 4_998


def test_a_cancel_takes_away_exactly_what_is_queued() -> None:
    driver = opened(max_lead_ms=100)
    for n in (1, 2, 3):
        driver.say(n, TEXT)
    driver.run(acks=False)
    driver.numbered(c.Cancel)
    driver.drain()
    session = driver.session
    assert (session._unsent, session._unsent_events, session._unsent_answers) == (0, 0, 0)
    assert not session._timeline


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
    assert len(driver.session._timeline) < 2 * 2_048


def test_an_utterance_that_says_nothing_makes_no_trouble_for_cancel() -> None:
    driver = opened()
    driver.say(1, "")
    driver.say(2, TEXT)
    driver.run(acks=False)
    driver.numbered(c.Cancel)
    driver.drain()
    assert [m.utterance for m in driver.of(s.Cancelled)] == [2]
