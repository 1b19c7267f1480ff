"""The client's pure session: audio exactly once and proven whole, acks on time, text within the window."""

import hashlib
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.effects import Deliver, Finished, RoomGrew, Send
from client.errors import Busy, DigestMismatch, ServerError, ServerLost, ServerMisbehaved
from client.items import Audio
from client.session import SessionState
from client.writing import SOFT_FLUSH_S
from protocol import client_messages as c
from protocol import limits
from protocol import server_messages as s
from protocol.frames import AudioFrame, Codec, FrameFlag, pack_packets
from tests.support.client_script import (
    RATE,
    Script,
    Sent,
    acks_of,
    failure_of,
    feed,
    frame,
    opened,
    pcm_of,
    play,
    samples,
    started,
)

segment_lists = st.lists(st.integers(0, 400), min_size=1, max_size=6)
cut_lists = st.lists(st.integers(1, 2_400), max_size=12)


# ---- audio, exactly once and whole ----


@given(segments=segment_lists, cuts=cut_lists, late=st.booleans())
def test_any_cut_of_the_audio_arrives_whole(segments: list[int], cuts: list[int], late: bool) -> None:
    script = Script().speak(segments, cuts, late_ends=late)
    effects = play(started(), script.sent)
    assert failure_of(effects) is None
    assert pcm_of(effects) == script.pcm
    assert effects.count(Finished(1)) == 1
    last = acks_of(effects)[-1]
    assert (last.next_sample, last.event) == (sum(segments), script.event)


@given(segments=segment_lists, cuts=cut_lists, data=st.data())
def test_what_comes_twice_is_delivered_once(segments: list[int], cuts: list[int], data: st.DataObject) -> None:
    script = Script().speak(segments, cuts)
    state = started()
    effects = []
    payloads = hashlib.sha256()
    for index, item in enumerate(script.sent):
        if isinstance(item, s.Done):
            item = replace(item, wire_digest=payloads.hexdigest())
        effects += feed(state, item)
        if isinstance(item, AudioFrame):
            payloads.update(item.payload)
        if data.draw(st.booleans()):
            again = script.sent[data.draw(st.integers(0, index))]
            if isinstance(again, AudioFrame) and not isinstance(item, s.Done):
                payloads.update(again.payload)
            effects += feed(state, again)
    assert failure_of(effects) is None
    assert pcm_of(effects) == script.pcm
    delivered = [e.item for e in effects if isinstance(e, Deliver) and not isinstance(e.item, Audio)]
    assert [event.event for event in delivered] == list(range(1, script.event + 1))


@given(segments=st.lists(st.integers(2, 300), min_size=1, max_size=4), cuts=cut_lists, data=st.data())
def test_a_frame_left_out_is_an_error(segments: list[int], cuts: list[int], data: st.DataObject) -> None:
    script = Script().speak(segments, cuts)
    frames = [item for item in script.sent if isinstance(item, AudioFrame)]
    gone = data.draw(st.sampled_from(frames))
    effects = play(started(), [item for item in script.sent if item is not gone])
    assert isinstance(failure_of(effects), ServerMisbehaved)
    assert Finished(1) not in effects


@given(segments=segment_lists, cuts=cut_lists, data=st.data())
def test_an_event_left_out_is_an_error(segments: list[int], cuts: list[int], data: st.DataObject) -> None:
    script = Script().speak(segments, cuts)
    events = [item for item in script.sent if isinstance(item, s.SegmentBegin | s.SegmentEnd)]
    gone = data.draw(st.sampled_from(events))
    effects = play(started(), [item for item in script.sent if item is not gone])
    assert isinstance(failure_of(effects), ServerMisbehaved)


def test_overlap_is_trimmed() -> None:
    pcm = samples(300)
    state = started()
    feed(state, s.SegmentBegin(1, 1, 0, 0, 1, 0))
    effects = play(state, [frame(0, pcm[:200]), frame(60, pcm[120:600])])
    assert pcm_of(effects) == pcm
    digest = hashlib.sha256(pcm)
    whole = hashlib.sha256(digest.digest()).hexdigest()
    wire = hashlib.sha256(pcm[:200] + pcm[120:]).hexdigest()
    end: list[Sent] = [s.SegmentEnd(2, 1, 0, 300, digest.hexdigest()), s.Done(3, 1, 300, whole, wire, {})]
    assert failure_of(play(state, end)) is None


def test_a_silence_run_is_zeros() -> None:
    state = started()
    feed(state, s.SegmentBegin(1, 1, 0, 0, 1, 0, kind="silence"))
    run = AudioFrame(Codec.PCM, 1, 0, 2_400, b"", FrameFlag.SILENCE_RUN)
    effects = feed(state, run)
    assert pcm_of(effects) == bytes(4_800)
    digest = hashlib.sha256(bytes(4_800))
    done = s.Done(3, 1, 2_400, hashlib.sha256(digest.digest()).hexdigest(), hashlib.sha256().hexdigest(), {})
    assert failure_of(play(state, [s.SegmentEnd(2, 1, 0, 2_400, digest.hexdigest()), done])) is None


def test_a_silence_run_longer_than_the_protocol_allows_is_refused() -> None:
    run = AudioFrame(Codec.PCM, 1, 0, 2**32 - 1, b"", FrameFlag.SILENCE_RUN)
    assert isinstance(failure_of(feed(started(), run)), ServerMisbehaved)


@pytest.mark.parametrize("what", ["sample", "segment digest", "digest", "wire digest", "length"])
def test_damage_is_noticed(what: str) -> None:
    script = Script().speak([100, 50], [40, 120])

    def damage(item: Any) -> Any:
        match what, item:
            case "sample", AudioFrame(first_sample=40):
                return frame(40, bytes(reversed(item.payload)))
            case "segment digest", s.SegmentEnd(segment=1):
                return replace(item, digest="0" * 64)
            case "digest", s.Done():
                return replace(item, digest="0" * 64)
            case "wire digest", s.Done():
                return replace(item, wire_digest="0" * 64)
            case "length", s.Done():
                return replace(item, samples=151)
            case _:
                return item

    effects = play(started(), [damage(item) for item in script.sent])
    expected = ServerMisbehaved if what == "length" else DigestMismatch
    assert type(failure_of(effects)) is expected
    assert Finished(1) not in effects


def test_opus_counts_coded_samples_and_checks_the_wire() -> None:
    state = started(pre_skip=312)
    packets = [bytes([n]) * 5 for n in range(4)]
    wire = hashlib.sha256()
    effects = feed(state, s.SegmentBegin(1, 1, 0, 0, 1, 0))
    for n, packet in enumerate(packets):
        payload = pack_packets([packet])
        wire.update(payload)
        effects += feed(state, AudioFrame(Codec.OPUS, 1, 480 * n, 480, payload), 0.2 * n)
    assert [e.item.packets for e in effects if isinstance(e, Deliver) and isinstance(e.item, Audio)] == [
        (packet,) for packet in packets
    ]
    assert acks_of(effects)[-1].next_sample == 1_920
    state.consumed(1, 960 - 312, 100, 0.7)
    assert acks_of(state.tick(1.0, 1.0))[-1].played_sample == 960 - 312  # what was heard is told in timeline samples
    digest = "ab" * 32
    whole = hashlib.sha256(bytes.fromhex(digest)).hexdigest()
    feed(state, s.SegmentEnd(2, 1, 0, 1_600, digest))
    assert failure_of(feed(state, s.Done(3, 1, 1_600, whole, wire.hexdigest(), {}))) is None
    assert state.statistics(1).samples == 1_600  # type: ignore[union-attr]  # it is there


def test_opus_that_ends_early_is_noticed() -> None:
    state = started(pre_skip=312)
    payload = pack_packets([b"x"])
    feed(state, AudioFrame(Codec.OPUS, 1, 0, 480, payload))
    done = s.Done(1, 1, 169, hashlib.sha256().hexdigest(), hashlib.sha256(payload).hexdigest(), {})
    assert isinstance(failure_of(feed(state, done)), ServerMisbehaved)


def test_a_digest_that_is_none_is_refused() -> None:
    state = started(pre_skip=312)
    feed(state, s.SegmentBegin(1, 1, 0, 0, 1, 0))
    feed(state, AudioFrame(Codec.OPUS, 1, 0, 480, pack_packets([b"x"])))
    assert isinstance(failure_of(feed(state, s.SegmentEnd(2, 1, 0, 100, "x" * 64))), ServerMisbehaved)


# ---- cancelled and old audio ----


def test_nothing_of_a_cancelled_utterance_is_delivered() -> None:
    script = Script().speak([100, 50], [40, 120])
    state = started()
    play(state, script.sent[:2])
    assert state.cancel(1, 17, 0.0) == [Send(c.Cancel(2, 1, 17))]
    assert state.cancel(1, 17, 0.0) is None
    effects = play(state, script.sent[2:-1])
    assert not [effect for effect in effects if isinstance(effect, Deliver)]
    assert failure_of(effects) is None
    effects = feed(state, s.Cancelled(script.event, 1, 120, 1))
    assert [type(e.item) for e in effects if isinstance(e, Deliver)] == [s.Cancelled]
    assert Finished(1) in effects
    assert feed(state, frame(150, samples(10))) == []  # later than late


def test_audio_of_an_older_generation_is_dropped() -> None:
    state = SessionState(opened(generation=3), 0.0)
    state.start(c.Start(0, 1), 0.0)
    assert state.feed_frame(frame(0, samples(10)), 0.0) == []


@pytest.mark.parametrize("utterance", [0, 2])
def test_audio_of_an_utterance_never_started_is_an_error(utterance: int) -> None:
    assert isinstance(failure_of(feed(started(), frame(0, samples(10), utterance))), ServerMisbehaved)


def test_audio_outside_any_segment_is_an_error() -> None:
    assert isinstance(failure_of(feed(started(), frame(0, samples(10)))), ServerMisbehaved)


def test_a_cancel_says_how_far_its_utterance_was_heard() -> None:
    state = started()
    state.start(c.Start(0, 1), 0.0)
    feed(state, s.SegmentBegin(1, 1, 0, 0, 1, 0))
    feed(state, frame(0, samples(2_400)))
    state.consumed(1, 960, 1_920, 0.0)
    assert state.cancel(2, None, 0.0) == [Send(c.Cancel(3, 2, 0))]
    assert state.cancel(1, None, 0.0) == [Send(c.Cancel(4, 1, 960))]
    reporting = started(max_lead_ms=4_000)
    feed(reporting, s.SegmentBegin(1, 1, 0, 0, 1, 0))
    feed(reporting, frame(0, samples(2_400)))
    reporting.consumed(1, 2_400, 4_800, 0.0)
    reporting.played(1, 480, 80, 0, 0.0)
    assert reporting.cancel(1, None, 0.0) == [Send(c.Cancel(2, 1, 480))]


def test_what_is_complete_but_not_heard_can_be_cancelled() -> None:
    script = Script().speak([2_400], [])
    state = started(max_lead_ms=4_000)
    play(state, script.sent)
    state.played(1, 1_000, 50, 0, 1.0)
    assert state.unfinished == 0
    assert state.cancel(1, None, 9.0) == [Send(c.Cancel(2, 1, 1_000))]
    assert state.unfinished == 1
    assert failure_of(state.tick(9.5, 9.5)) is None
    event = s.Cancelled(script.event + 1, 1, 2_400, 3)
    effects = feed(state, event, 9.6)
    assert effects[:2] == [Deliver(1, event, 256), Finished(1)]
    assert state.unfinished == 0
    assert state.cancel(1, None, 9.7) is None


@pytest.mark.parametrize("lead", [None, 4_000])
def test_what_was_heard_cannot_be_cancelled(lead: int | None) -> None:
    state = started(max_lead_ms=lead)
    play(state, Script().speak([2_400], []).sent)
    if lead is not None:
        state.played(1, 2_400, 0, 0, 0.1)
    assert state.cancel(1, None, 0.2) is None
    assert state.cancel(7, None, 0.2) is None


def test_a_done_that_crosses_a_cancel_is_not_the_end_of_what_still_plays() -> None:
    script = Script().speak([2_400], [])
    state = started(max_lead_ms=4_000)
    play(state, script.sent[:-1])
    state.cancel(1, 100, 0.0)
    assert Finished(1) not in feed(state, script.sent[-1])
    assert Finished(1) in feed(state, s.Cancelled(script.event + 1, 1, 2_400, 0))


def test_the_late_end_of_a_cancelled_utterance_does_not_turn_acks_back() -> None:
    state = started()
    state.start(c.Start(0, 1), 0.0)
    state.cancel(1, None, 0.0)
    feed(state, s.SegmentBegin(1, 2, 0, 0, 1, 0))
    feed(state, frame(0, samples(2_400), utterance=2))
    (ack,) = acks_of(feed(state, s.Cancelled(2, 1, 0, 0)))
    assert (ack.utterance, ack.next_sample, ack.event) == (2, 2_400, 2)


def test_a_later_utterance_that_is_cancelled_confirms_nothing_of_the_one_before() -> None:
    state = started()
    state.start(c.Start(0, 1), 0.0)
    feed(state, s.SegmentBegin(1, 1, 0, 0, 1, 0))
    feed(state, frame(0, samples(2_400)))
    state.cancel(2, None, 0.0)
    (ack,) = acks_of(feed(state, s.Cancelled(2, 2, 0, 0)))
    assert (ack.utterance, ack.next_sample, ack.event) == (1, 2_400, 2)
    feed(state, frame(2_400, samples(2_400)), 0.05)
    (ack,) = acks_of(state.tick(0.3, 0.3))
    assert (ack.utterance, ack.next_sample) == (1, 4_800)


# ---- acks ----


def stream(state: SessionState, frames: int, size: int, every_s: float) -> list[tuple[float, c.Ack]]:
    """Feeds frames of `size` samples at this pace, ticking as a shell would; returns the acks with their times."""
    pcm = samples(size)
    acks: list[tuple[float, c.Ack]] = []
    feed(state, s.SegmentBegin(1, 1, 0, 0, 1, 0))
    now = 0.0
    for n in range(frames):
        arrives = now + every_s
        while (due := state.deadline()) is not None and due <= arrives:
            acks += [(due, ack) for ack in acks_of(state.tick(due, due))]
        now = arrives
        acks += [(now, ack) for ack in acks_of(feed(state, frame(n * size, pcm), now))]
    return acks


def test_acks_come_at_most_every_100_ms_while_audio_flows() -> None:
    acks = stream(started(), 100, 960, 0.04)
    times = [when for when, _ in acks]
    gaps = [b - a for a, b in pairwise(times)]
    assert all(gap >= limits.ACK_INTERVAL_S - 1e-9 for gap in gaps)
    assert all(gap <= limits.ACK_TIMER_S + 1e-9 for gap in gaps)
    assert all(ack.next_sample <= when / 0.04 * 960 + 1 for when, ack in acks)
    positions = [ack.next_sample for _, ack in acks]
    assert positions == sorted(positions)


def test_acks_come_by_timer_while_nothing_arrives() -> None:
    state = started()
    times: list[float] = []
    for beat in range(1, 7):
        while (due := state.deadline()) is not None and due <= 0.5 * beat:
            times += [due for _ in acks_of(state.tick(due, due))]
        feed(state, s.Heartbeat(), 0.5 * beat)
    assert times == pytest.approx([0.2 * n for n in range(1, 15)])


def test_fast_transfers_are_acked_by_bytes() -> None:
    acks = stream(started(queue_bytes=10**9), 400, 960, 0.0)
    steps = [b[1].next_sample - a[1].next_sample for a, b in pairwise(acks)]
    assert steps
    assert all(2 * step <= limits.ACK_BYTES + 1_920 for step in steps)


def test_done_is_acked_at_once() -> None:
    script = Script().speak([100], [])
    state = started()
    play(state, script.sent[:-1])
    effects = feed(state, script.sent[-1])
    assert acks_of(effects)[-1].next_sample == 100
    assert acks_of(effects)[-1].event == script.event


def test_a_slow_consumer_holds_acks_back() -> None:
    state = started(queue_bytes=10_000)
    feed(state, s.SegmentBegin(1, 1, 0, 0, 1, 0))
    pcm = samples(1_000)
    effects = play(state, [frame(1_000 * n, pcm) for n in range(20)])
    assert not acks_of(effects)
    due = state.deadline()
    assert due is not None
    (ack,) = acks_of(state.tick(due, due))
    assert ack.next_sample == 4_000  # the fifth frame would make more than 10,000 bytes with the event
    state.consumed(1, 0, 256, 0.3)
    for n in range(6):
        state.consumed(1, 1_000 * (n + 1), 2_000, 0.3)
    due = state.deadline()
    assert due is not None
    (ack,) = acks_of(state.tick(due, due))
    assert (ack.next_sample, ack.played_sample) == (11_000, 6_000)
    assert not acks_of(state.tick(due + 0.1, due + 0.1))


def test_taking_much_at_once_acks_at_once() -> None:
    state = started(queue_bytes=100_000)
    feed(state, s.SegmentBegin(1, 1, 0, 0, 1, 0))
    play(state, [frame(20_000 * n, samples(20_000)) for n in range(10)])
    assert acks_of(state.consumed(1, 200_000, 400_000, 0.0))[0].next_sample == 200_000


def test_the_player_s_report_travels_in_acks() -> None:
    state = started(max_lead_ms=4_000)
    feed(state, s.SegmentBegin(1, 1, 0, 0, 1, 0))
    feed(state, frame(0, samples(2_400)))
    state.played(1, 1_200, 50, 2, 0.1)
    (ack,) = acks_of(state.tick(0.2, 0.2))
    assert (ack.played_sample, ack.buffered_ms, ack.stalls) == (1_200, 50, 2)


def test_acks_go_on_until_everything_was_heard() -> None:
    state = started(max_lead_ms=4_000)
    script = Script().speak([2_400], [])
    play(state, script.sent)
    state.played(1, 1_200, 50, 0, 0.1)
    (ack,) = acks_of(state.tick(0.2, 0.2))
    assert (ack.next_sample, ack.played_sample) == (2_400, 1_200)
    (ack,) = acks_of(state.played(1, 2_400, 0, 0, 0.3))
    assert ack.played_sample == 2_400
    assert not acks_of(state.tick(0.8, 0.8))


def test_the_utterance_being_heard_is_acked_before_the_next() -> None:
    state = started(max_lead_ms=4_000)
    state.start(c.Start(0, 1), 0.0)
    first = Script().speak([2_400], [])
    second = Script(utterance=2, event=first.event).speak([4_800], [])
    play(state, first.sent + second.sent[:2])
    state.played(1, 1_000, 0, 0, 0.1)
    (ack,) = acks_of(state.tick(0.2, 0.2))
    assert (ack.utterance, ack.next_sample, ack.played_sample) == (1, 2_400, 1_000)
    (ack,) = acks_of(state.played(1, 2_400, 0, 0, 0.1))
    assert (ack.utterance, ack.next_sample, ack.played_sample) == (1, 2_400, 2_400)  # else nobody would tell its end
    state.played(2, 100, 0, 0, 0.1)
    (ack,) = acks_of(state.tick(0.4, 0.4))
    assert (ack.utterance, ack.next_sample, ack.played_sample) == (2, 4_800, 100)


# ---- time ----


def test_an_idle_session_is_not_watched_but_kept_alive() -> None:
    state = SessionState(opened(), 0.0)
    due = state.deadline()
    assert due == 20.0
    assert state.tick(due, due) == [Send(c.Ping())]
    assert state.deadline() == 40.0


def test_a_writer_who_pauses_is_flushed_softly_once() -> None:
    state = started()
    state.text("It is", 0.0)
    state.text(" late.", 0.1)
    assert not [e for e in state.tick(0.45, 0.45) if isinstance(e, Send) and isinstance(e.message, c.Flush)]
    effects = state.tick(0.1 + SOFT_FLUSH_S, 0.1 + SOFT_FLUSH_S)
    assert Send(c.Flush(4, True)) in effects
    feed(state, s.Heartbeat(), 1.0)
    assert not [e for e in state.tick(1.5, 1.5) if isinstance(e, Send) and isinstance(e.message, c.Flush)]


@pytest.mark.parametrize("what", ["flush", "end", "silence", "cancel"])
def test_nothing_is_flushed_softly_after(what: str) -> None:
    state = started()
    state.text("It is late.", 0.0)
    match what:
        case "flush":
            state.flush(0.0)
        case "end":
            state.end(0.0)
        case "silence":
            state.silence(100, 0.0)
        case _:
            state.cancel(1, None, 0.0)
    effects = state.tick(0.5, 0.5)
    assert not [e for e in effects if isinstance(e, Send) and isinstance(e.message, c.Flush)]


# ---- sending ----


def test_messages_are_numbered_from_one() -> None:
    state = SessionState(opened(), 0.0)
    sends = [*state.start(c.Start(0, 1), 0.0), *state.text("a", 0.0), *state.silence(10, 0.0), *state.end(0.0)]
    assert [send.message.seq for send in sends] == [1, 2, 3, 4]  # type: ignore[union-attr]  # all are numbered
    assert state.start(c.Start(0, 1, speed=1.5), 0.0) == [Send(c.Start(5, 2, speed=1.5))]


@given(st.lists(st.tuples(st.integers(1, 300), st.booleans()), max_size=40))
def test_text_never_overruns_the_window(steps: list[tuple[int, bool]]) -> None:
    state = started(window=500)
    server_room, unacked = 500, 0
    for size, speaks in steps:
        take = min(size, state.window.room)
        if take:
            state.text("x" * take, 0.0)
            unacked += take
        assert unacked <= server_room
        if speaks:  # the server takes everything and has spoken half of it
            server_room = 500 - unacked // 2
            unacked = 0
            feed(state, s.SeqAck(state.window.seq, server_room))
            assert state.window.room == server_room
        else:
            assert state.window.room == server_room - unacked


def test_room_is_counted_from_what_the_server_has_taken() -> None:
    state = started(window=100)
    state.text("x" * 60, 0.0)
    state.text("y" * 40, 0.0)
    assert state.window.room == 0
    with pytest.raises(ValueError, match="do not fit"):
        state.text("z", 0.0)
    assert feed(state, s.SeqAck(2, 100)) == [RoomGrew()]
    assert state.window.room == 60
    assert [message.seq for message in state.window.unacked] == [3]


def test_a_silence_takes_one_character_of_the_window() -> None:
    state = started(window=3)
    state.text("x", 0.0)
    state.silence(100, 0.0)
    state.silence(100, 0.0)
    assert state.window.room == 0
    with pytest.raises(ValueError, match="do not fit"):
        state.silence(100, 0.0)
    state.flush(0.0)
    state.end(0.0)
    assert feed(state, s.SeqAck(3, 1)) == []  # the second silence is still on its way
    assert feed(state, s.SeqAck(4, 1)) == [RoomGrew()]
    assert state.window.room == 1


def test_an_ack_of_what_was_never_sent_is_an_error() -> None:
    assert isinstance(failure_of(feed(started(), s.SeqAck(9, 100))), ServerMisbehaved)


# ---- the end ----


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (s.Error("engine_failed", "the engine died", None, True), ServerError),
        (s.Busy(2_000), Busy),
        (s.Resumed(1, 0, 1, 0, 0, "", "stream"), ServerMisbehaved),
        (opened(), ServerMisbehaved),
    ],
)
def test_messages_that_end_the_session(message: s.ServerMessage, kind: type[Exception]) -> None:
    state = started()
    effects = feed(state, message)
    assert type(failure_of(effects)) is kind
    assert state.lost(1011, "", 0.0) == []  # the first reason stands
    assert feed(state, s.Heartbeat()) == []


@pytest.mark.parametrize(
    ("code", "reason", "said"),
    [
        (1000, "", "before the audio was complete"),
        (1011, "engine died", "engine died"),
        (1012, "", "restarts"),
        (None, "", "connection broke"),
    ],
)
def test_a_lost_connection_says_why(code: int | None, reason: str, said: str) -> None:
    error = failure_of(started().lost(code, reason, 0.0))
    assert isinstance(error, ServerLost)
    assert said in str(error)
    assert error.close_code == code


def test_goaway_explains_the_close_that_follows() -> None:
    state = started()
    assert feed(state, s.GoAway(500, "maintenance")) == []
    assert "restarts" in str(failure_of(state.lost(1006, "", 0.0)))


def test_statistics_of_an_utterance() -> None:
    state = SessionState(opened(), 10.0)
    state.start(c.Start(0, 1), 10.0)
    state.text("你好。", 10.5)
    script = Script().speak([RATE // 10, RATE // 10], [RATE // 10])
    for index, item in enumerate(script.sent):
        feed(state, item, 10.6 + 0.3 * (index > 2))
    statistics = state.statistics(1)
    assert statistics is not None
    assert statistics.ttfa_s == pytest.approx(0.1)
    assert statistics.ttfa_clause_s == pytest.approx(0.1)
    assert (statistics.samples, statistics.bytes, statistics.segments, statistics.characters) == (4_800, 9_600, 2, 3)
    assert statistics.stalls == 1
    assert statistics.stall_s == pytest.approx(0.2)
