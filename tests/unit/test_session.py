"""The session machine, driven without I/O: what is spoken, in which state, in which format."""

from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.errors import ErrorCode, ProtocolError
from protocol.frames import Codec, FrameFlag, unpack_packets
from server.engines.base import EngineError
from server.session import ResumeRefused, SpeakSegment
from server.session.config import configure
from server.session.states import ALLOWED, State
from tests.support.session_driver import SAMPLES_PER_CHARACTER, TEXT, Driver, capabilities, fails, opened


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
    driver.session.refuse(ResumeRefused("unknown"))
    driver.open()
    driver.drain()
    assert driver.of(s.ResumeFailed)[0].reason == "unknown"
    assert driver.of(s.Opened)


def test_utterance_ids_must_grow() -> None:
    driver = opened()
    driver.say(5, "好。")
    with fails(driver, ErrorCode.BAD_MESSAGE, "start.utterance"):
        driver.numbered(c.Start, utterance=5)


@pytest.mark.parametrize("transient", [True, False])
def test_an_engine_says_whether_trying_again_may_help(transient: bool) -> None:
    driver = opened()
    driver.say(1, TEXT)
    work = driver.take_work()
    assert work is not None
    error = driver.session.failed(work, EngineError("no", transient=transient))
    assert (error.code, error.retryable) == (ErrorCode.ENGINE_FAILED, transient)
    assert error.message == "text [0, 3) of utterance 1: no"


def test_what_a_voice_does_not_follow_is_refused_with_its_name() -> None:
    """An engine may follow instructions that one of its voices does not: better said than ignored."""
    can = capabilities()
    voices = (replace(can.voices[0], lacks=("instruct",)), *can.voices[1:])
    can = replace(can, parameters=can.parameters | {"instruct"}, voices=voices)
    first, second = (voice.id for voice in voices[:2])
    config = configure(c.Open(), can, first, lambda _: False)
    config.check_overrides(c.Start(1, 1, voice=second, instruct="whisper"), can, lambda _: False)
    for asked in (c.Start(1, 1, instruct="whisper"), c.Start(1, 1, voice=first, instruct="whisper")):
        with pytest.raises(ProtocolError, match=f"the voice {first} follows no instruct") as refused:
            config.check_overrides(asked, can, lambda _: False)
        assert refused.value.field == "start.instruct"
        assert refused.value.code is ErrorCode.UNSUPPORTED


def test_a_refusal_names_voices_that_do_follow() -> None:
    can = capabilities()
    lacking = replace(can.voices[0], id="a", lacks=("speed",))
    others = tuple([replace(lacking, id=name, lacks=lacks) for name, lacks in (("b", ()), ("c", ("speed",)))])
    for voices, cloning, instead in (
        ((lacking,), False, ""),
        ((lacking,), True, ", or use a voice learnt from a recording"),
        ((lacking, *others), True, ", or use b or a voice learnt from a recording"),
    ):
        with pytest.raises(ProtocolError) as refused:
            configure(c.Open(speed=1.5), replace(can, voices=voices, cloning=cloning), "a", lambda _: False)
        assert refused.value.message == f"the voice a follows no speed: leave it out{instead}"


def test_what_a_session_asks_for_holds_for_each_of_its_voices() -> None:
    can = capabilities()
    voices = (replace(can.voices[0], lacks=("speed", "pitch")), *can.voices[1:])
    can = replace(can, voices=voices)
    first, second = (voice.id for voice in voices[:2])
    asked_for: dict[str, tuple[c.Open, c.Start]] = {
        "speed": (c.Open(speed=1.5), c.Start(1, 1, voice=first, speed=1.0)),
        "pitch": (c.Open(pitch=1.5), c.Start(1, 1, voice=first, pitch=1.0)),
    }
    for name, (asked, usual) in asked_for.items():
        for open_ in (asked, replace(asked, voice=first)):
            with pytest.raises(ProtocolError, match=f"the voice {first} follows no {name}: leave it out") as refused:
                configure(open_, can, first, lambda _: False)
            assert (refused.value.code, refused.value.field) == (ErrorCode.UNSUPPORTED, f"open.{name}")
        config = configure(replace(asked, voice=second), can, first, lambda _: False)
        config.check_overrides(c.Start(1, 1), can, lambda _: False)
        config.check_overrides(usual, can, lambda _: False)
        with pytest.raises(ProtocolError, match=f"give 1 as start.{name}") as refused:
            config.check_overrides(c.Start(1, 1, voice=first), can, lambda _: False)
        assert refused.value.field == "start.voice"


def test_a_voice_without_chance_takes_any_seed() -> None:
    can = capabilities()
    can = replace(can, voices=(replace(can.voices[0], lacks=("seed", "speed")),))
    config = configure(c.Open(), can, can.voices[0].id, lambda _: False)
    for seed in (0, 7):
        config.check_overrides(c.Start(1, 1, seed=seed), can, lambda _: False)
    with pytest.raises(ProtocolError, match="follows no speed"):
        config.check_overrides(c.Start(1, 1, seed=7, speed=1.5), can, lambda _: False)
