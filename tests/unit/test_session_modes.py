"""Modes through whole sessions, in virtual time: every reason, what changes with the mode, and all that does not."""

import random
from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.frames import AudioFrame, Codec, FrameFlag, unpack_packets
from server.link import Mode, Switch
from server.link.mode import BLOCKS_MS
from server.session import Policy, SessionObserver
from tests.support.session_driver import TEXT, Driver, advance, opened
from tests.support.session_line import FAST, Report, SessionLine
from tests.unit.test_session_resume import Receiver

HOLE = [(0.0, FAST), (3.0, 0.0), (5.0, FAST)]


def line(text: str = TEXT * 20, open_: dict[str, Any] | None = None, **options: Any) -> SessionLine:
    made = SessionLine(**options)
    made.open(**(open_ or {}))
    made.driver.say(1, text)
    return made


# ---- reasons ----


def bulk(**options: Any) -> SessionLine:
    """Audio that waits for the line all the time, so that the client's buffer counts."""
    return line(TEXT * 60, {"max_lead_ms": 600_000}, rtt=0.1, rates=[(0.0, 400_000.0)], **options)


REASONS: dict[str, tuple[Callable[[], SessionLine], float]] = {
    "ack_age": (lambda: line(rates=HOLE), 6.0),
    "stall": (lambda: bulk(report=lambda now, _: Report(500, int(now > 3))), 5.0),
    "buffer_low": (lambda: bulk(report=lambda now, _: Report(500 if now < 3 else 30, 0)), 5.0),
    "buffer_falling": (lambda: bulk(report=lambda now, _: Report(2_000 - max(0, int(300 * (now - 3))), 0)), 5.0),
    "jitter": (
        lambda: line(
            TEXT * 100,
            {"max_lead_ms": None},
            rtt=0.1,
            rates=[(0.0, 400_000.0)],
            late=lambda number: 0.3 if number % 8 == 0 else 0.0,
        ),
        8.0,
    ),
}


@pytest.mark.parametrize("reason", REASONS)
def test_every_reason_is_told_to_the_client(reason: str) -> None:
    make, until = REASONS[reason]
    made = make()
    told: list[tuple[str, str]] = []

    class Told(SessionObserver):
        def switched(self, switch: Switch) -> None:
            told.append((switch.mode, switch.reason))

    made.driver.session.observer = Told()
    made.run(until)
    assert made.modes[0] == ("block", reason)
    assert told == made.modes
    assert made.driver.session.delivery.switches_made == len(told)
    _, event = next(each for each in made.events if isinstance(each[1], s.ModeChange))
    assert isinstance(event, s.ModeChange)
    begins = [frame.first_sample for _, frame, _ in made.sent]
    assert event.utterance == 1
    assert event.at_sample in begins or event.at_sample == made.sent[-1][1].end_sample


@pytest.mark.parametrize("rtt", [0.001, 0.04, 0.3])
def test_a_calm_line_never_leaves_stream(rtt: float) -> None:
    made = line(rtt=rtt)
    made.run(40)
    assert made.modes == []
    assert made.stalls == 0


@pytest.mark.parametrize("rtt", [0.04, 0.3])
def test_after_a_hole_it_goes_back_to_stream(rtt: float) -> None:
    made = line(TEXT * 40, rtt=rtt, rates=HOLE)
    made.run(60)
    assert [mode for mode, _ in made.modes] == ["block", "stream"]
    assert made.modes[1][1] == "recovered"


@pytest.mark.parametrize("mode", get_args(Mode))
def test_a_mode_that_was_asked_for_stays(mode: Mode) -> None:
    made = line(open_={"mode": mode}, rates=[(0.0, FAST), (3.0, 0.0), (5.0, FAST), (9.0, 30_000.0), (15.0, FAST)])
    made.run(30)
    assert made.modes == []
    assert made.driver.session.mode == mode
    assert {plan for _, plan in made.plans} == {mode}


def test_the_next_segment_is_rendered_in_the_new_mode() -> None:
    made = line(TEXT * 40, rates=HOLE)
    made.run(40)
    switches = [(at, event.mode) for at, event in made.events if isinstance(event, s.ModeChange)]
    assert [mode for _, mode in switches] == ["block", "stream"]
    assert {plan for at, plan in made.plans if at < 3} == {"stream"}
    assert {plan for at, plan in made.plans if 5.2 < at < switches[1][0] - 0.2} == {"block"}
    assert {plan for at, plan in made.plans if at > switches[1][0]} == {"stream"}


def test_resumed_says_the_mode() -> None:
    for asked, told in (("auto", "block"), ("stream", "stream"), ("block", "block")):
        driver = opened(mode=asked, max_lead_ms=None)
        driver.say(1, TEXT)
        driver.run(acks=False)
        receiver = Receiver(driver)
        receiver.resume()
        driver.drain()
        assert driver.of(s.Resumed)[0].mode == told
        assert not driver.of(s.ModeChange)


def mode_of(driver: Driver) -> Mode:
    """The mode of now."""
    return driver.session.mode


def test_a_resumed_session_streams_again_after_thirty_seconds() -> None:
    made = line(TEXT * 60)
    made.run(2.0)
    session, driver = made.driver.session, made.driver
    session.detach(driver.now)
    session.resume(c.Resume("s", "t", 0, 1, *made.place, made._event), "t2", driver.now)
    assert session.mode == "block"
    driver.send(c.Ack(2, *made.place, event=made._event))
    while mode_of(driver) == "block":
        driver.now += 0.01
        assert driver.now < 40
        session.on_time(driver.now)
        driver.run(acks=False)
        frames = [frame for frame in driver.frames if frame.generation == 2]
        if driver.now % 0.1 < 0.01 and frames:
            end = frames[-1].end_sample
            played = min(end, round((driver.now - 2.0) * 24_000))
            driver.send(c.Ack(2, 1, end, played, 3_500, event=session.delivery.event))
    at = driver.now
    assert 32.0 <= at < 34.0
    assert [(event.mode, event.reason) for event in driver.of(s.ModeChange)] == [("stream", "recovered")]


# ---- messages in block mode ----


def sizes_ms(frames: list[AudioFrame], rate: int = 24_000) -> list[float]:
    return [frame.count * 1_000 / rate for frame in frames]


def test_blocks_grow_while_the_trouble_lasts() -> None:
    made = line(TEXT * 60, {"mode": "block", "frame_ms": 40.0, "max_lead_ms": None})
    delivery = made.driver.session.delivery
    modes = delivery.link._modes
    seen = []
    for step in range(3):
        modes._step = step
        mark = len(made.sent)
        made.run(0.05 * (step + 1))
        ring_frames = [frame for _, frame, _ in made.sent[mark:]]
        seen.append(max(sizes_ms(ring_frames)))
    assert seen == [float(ms) for ms in BLOCKS_MS]


@pytest.mark.parametrize("rate", [12_000.0, 24_000.0, 40_000.0])
@pytest.mark.parametrize("frame_ms", [40.0, 1_000.0])
@pytest.mark.parametrize("mode", ["auto", "block"])
def test_no_message_takes_the_line_longer_than_a_quarter_of_a_second(rate: float, frame_ms: float, mode: str) -> None:
    """Once the line is known: PCM frames of a second are cut, blocks are joined only so far."""
    made = line(TEXT * 6, {"frame_ms": frame_ms, "mode": mode}, rates=[(0.0, rate)], chunk_samples=24_000)
    made.run(20)
    assert all(len(frame.payload) <= most for _, frame, most in made.sent)
    known = [len(frame.payload) for at, frame, _ in made.sent if at > 6]
    assert known
    assert max(known) <= 0.25 * rate * 1.1
    at = 0
    for _, frame, _ in made.sent:
        assert frame.first_sample == at
        at = frame.end_sample


def test_a_cut_frame_keeps_every_sample() -> None:
    whole = opened(max_lead_ms=None)
    whole.say(1, TEXT)
    whole.run()
    made = line(TEXT, {"frame_ms": 1_000.0}, rates=[(0.0, 12_000.0)], chunk_samples=24_000)
    made.run(60)
    assert b"".join(bytes(frame.payload) for _, frame, _ in made.sent) == whole.pcm(1)
    assert max(len(frame.payload) for _, frame, _ in made.sent) < 48_000


# ---- what no mode changes ----


def speak_all(driver: Driver) -> None:
    driver.say(1, TEXT)
    driver.say(2, "")
    driver.numbered(c.Start, utterance=3)
    driver.numbered(c.Text, text="再见。")
    driver.numbered(c.Silence, ms=2_300)
    driver.numbered(c.Text, text="你好")
    driver.numbered(c.Silence, ms=30)
    driver.numbered(c.End)


def followed(driver: Driver, chance: random.Random | None) -> None:
    """Send and ack all, with modes and sizes of blocks thrown at random."""
    idle = 0
    while idle < 3:
        if chance is not None:
            modes = driver.session.delivery.link._modes
            modes.mode = chance.choice(get_args(Mode))
            modes._step = chance.randrange(3)
        before = len(driver.order)
        work = driver.take_work()
        if work is not None:
            driver.do(work)
        for _ in range(chance.randint(1, 12) if chance is not None else 1_000):
            if not driver.take():
                break
        if driver.frames:
            last = driver.frames[-1]
            driver.ack(last.utterance, last.end_sample, driver.played_by(last))
        idle = idle + 1 if work is None and len(driver.order) == before else 0


def facts(driver: Driver) -> tuple[Any, ...]:
    """All that a listener could tell."""
    cuts = [(b.utterance, b.segment, b.start, b.end, b.first_sample, b.cause) for b in driver.of(s.SegmentBegin)]
    ends = [(e.utterance, e.segment, e.samples, e.digest) for e in driver.of(s.SegmentEnd)]
    done = [(d.utterance, d.samples, d.digest) for d in driver.of(s.Done)]
    words = [word for timing in driver.of(s.Timing) for word in timing.words]
    return cuts, ends, done, words


def placed(driver: Driver) -> list[tuple[str, int, int]]:
    """Where in the audio each event comes: (kind, utterance, sample sent before it)."""
    at: dict[int, int] = {}
    out = []
    for item in driver.order:
        if isinstance(item, AudioFrame):
            at[item.utterance] = item.end_sample
        elif isinstance(item, s.EVENTS) and not isinstance(item, s.ModeChange):
            out.append((item.type, item.utterance, at.get(item.utterance, 0)))
    return out


@pytest.mark.parametrize("format", ["pcm", "opus"])
@given(seed=st.integers(0, 2**32), frame_ms=st.sampled_from((20.0, 40.0)))
@settings(max_examples=15, deadline=None)
def test_a_schedule_of_modes_changes_no_cut_no_order_no_length_and_no_digest(
    format: str, seed: int, frame_ms: float
) -> None:
    plain, restless = opened(format=format, frame_ms=frame_ms), opened(format=format, frame_ms=frame_ms)
    for driver, chance in ((plain, None), (restless, random.Random(seed))):
        speak_all(driver)
        followed(driver, chance)
    assert facts(restless) == facts(plain)
    assert [d.utterance for d in restless.of(s.Done)] == [1, 2, 3]
    assert placed(restless) == placed(plain)
    if format == "pcm":
        assert [restless.pcm(n) for n in (1, 3)] == [plain.pcm(n) for n in (1, 3)]
    else:
        assert packets(restless) == packets(plain)
    check_frames(restless.frames)


def packets(driver: Driver) -> list[bytes]:
    return [packet for frame in driver.frames for packet in unpack_packets(frame.payload)]


def check_frames(frames: list[AudioFrame]) -> None:
    """Silence runs and the empty last frame stand alone, and a decoder begins with a frame."""
    for frame in frames:
        if frame.flags & FrameFlag.SILENCE_RUN:
            assert not frame.payload
            assert not frame.flags & FrameFlag.LAST
        elif frame.codec is Codec.PCM:
            assert len(frame.payload) == 2 * frame.count
            assert bool(frame.flags & FrameFlag.LAST) == (frame.count == 0)
        if frame.flags & FrameFlag.DECODER_RESET:
            assert (frame.codec, frame.first_sample) == (Codec.OPUS, 0)
    for number in {frame.utterance for frame in frames}:
        assert [bool(frame.flags & FrameFlag.LAST) for frame in frames if frame.utterance == number].count(True) == 1


# ---- bitrate ----


@pytest.mark.parametrize(("bitrate", "wish"), [(None, 16_000), (32_000, 32_000), (64_000, 64_000)])
def test_a_slow_line_lowers_only_a_bitrate_that_was_not_asked_for(bitrate: int | None, wish: int) -> None:
    made = line(TEXT * 6, {"format": "opus", "bitrate": bitrate}, rates=[(0.0, 4_500.0)])
    made.run(20)
    assert made.driver.session.mode == "block"
    assert made.driver.session.coder_wish() == (wish, False)


def test_format_auto_falls_where_pcm_does_not_fit_and_later_utterances_begin_as_pcm() -> None:
    made = line(TEXT * 3, {"format": "auto"}, rates=[(0.0, 20_000.0), (40.0, FAST)])
    made.run(60)
    codecs = [frame.codec for _, frame, _ in made.sent]
    assert codecs[0] is Codec.PCM
    assert codecs[-1] is Codec.OPUS
    assert codecs == sorted(codecs)
    made.driver.say(2, TEXT)
    made.run(70)
    assert next(frame.codec for _, frame, _ in made.sent if frame.utterance == 2) is Codec.PCM
    fast = line(TEXT * 3, {"format": "auto"})
    fast.run(20)
    assert {frame.codec for _, frame, _ in fast.sent} == {Codec.PCM}


# ---- dead connections, heartbeats, timers ----


def test_a_connection_that_says_nothing_is_dead_after_four_seconds() -> None:
    made = line(rates=[(0.0, FAST), (3.0, 0.0), (60.0, FAST)])
    made.run(30)
    assert made.aborted_at is not None
    assert 6.8 < made.aborted_at < 7.3


def wait_for_death(driver: Driver, seconds: float, *, ping: bool = False) -> bool:
    limit, turns = driver.now + seconds, 0
    while (due := driver.session.deadline()) <= limit:
        driver.now = max(driver.now, due)
        driver.session.on_time(driver.now)
        if ping:
            driver.send(c.Ping())
        driver.drain()
        turns += 1
        assert turns < 20 * seconds, "the timer asks again and again for a time that has passed"
        if driver.session.dead:
            return True
    driver.now = limit
    return False


def test_who_only_pings_is_alive() -> None:
    driver = opened()
    driver.say(1, TEXT)
    driver.run(acks=False)
    assert not wait_for_death(driver, 20, ping=True)
    assert wait_for_death(driver, 5)


def test_who_has_paused_may_be_silent() -> None:
    driver = opened()
    driver.say(1, TEXT)
    driver.run(acks=False)
    driver.numbered(c.Pause)
    assert not wait_for_death(driver, 30)
    driver.numbered(c.Unpause)
    assert wait_for_death(driver, 5)


def test_who_owes_no_ack_may_be_silent() -> None:
    driver = opened(max_lead_ms=None)
    driver.numbered(c.Start, utterance=1)
    driver.numbered(c.Text, text=TEXT)
    driver.run()
    assert not wait_for_death(driver, 60)


def test_without_resume_nobody_is_dropped_and_no_timer_spins() -> None:
    driver = Driver(Policy("tone-low", resume_ttl_s=0))
    driver.open()
    driver.say(1, TEXT)
    driver.run(acks=False)
    assert not wait_for_death(driver, 30)


def test_a_peer_that_does_not_read_makes_no_timer_spin() -> None:
    """A heartbeat waits to be written: there is nothing to do before it is."""
    driver = opened()
    driver.say(1, TEXT)
    driver.run(acks=False)
    times, limit = [], driver.now + 3.5
    while (due := driver.session.deadline()) <= limit:
        driver.now = max(driver.now, due)
        driver.session.on_time(driver.now)
        times.append(driver.now)
        assert len(times) < 20
    driver.drain()
    assert len(driver.of(s.Heartbeat)) == 1


def test_heartbeats_only_fill_silence() -> None:
    driver = opened()
    driver.numbered(c.Start, utterance=1)
    for _ in range(20):
        driver.numbered(c.Text, text="and ")
        driver.drain()
        advance(driver, 0.3)
    assert not driver.of(s.Heartbeat)
    advance(driver, 5)
    assert 9 <= len(driver.of(s.Heartbeat)) <= 10
    assert driver.of(s.Heartbeat)[-1].event == driver.session.delivery.event
