"""A session that cannot be resumed goes on in a new one: from the right word, on the same timeline, and saying so."""

import hashlib
from dataclasses import replace
from typing import get_args

import pytest

from client.errors import ServerError, ServerLost, ServerMisbehaved, why_gone
from client.items import Audio
from client.transcript import Transcript
from protocol import client_messages as c
from protocol import server_messages as s
from protocol.frames import AudioFrame, Codec, FrameFlag, pack_packets
from tests.support.client_rehearsal import TTL_MS, Rehearsal
from tests.support.client_script import RATE, Script, Sent, frame, opened, samples

TEXT = "One two. Three four. Five."


def begin(event: int, segment: int, start: int, end: int, first: int) -> s.SegmentBegin:
    return s.SegmentBegin(event, 1, segment, start, end, first)


def word(text: str, first: int, last: int) -> s.Word:
    at = TEXT.index(text)
    return s.Word(text, at, at + len(text), first, last)


def end(event: int, segment: int, pcm: bytes) -> s.SegmentEnd:
    return s.SegmentEnd(event, 1, segment, len(pcm) // 2, hashlib.sha256(pcm).hexdigest())


def speaking(received: int, *, timings: bool = True, text: str = TEXT, ended: bool = True) -> Rehearsal:
    """Segment 0 is "One two." (2,400 samples), segment 1 " Three four." (3,000); audio is here up to a sample."""
    show = Rehearsal().say(text, end=ended)
    one, two = samples(2_400), samples(3_000, 1)
    show.feed(s.SeqAck(3 if ended else 2, 1_000), begin(1, 0, 0, 8, 0))
    if timings:
        show.feed(s.Timing(2, 1, 0, (word("One", 0, 1_000), word("two", 1_000, 2_000))))
    show.feed(frame(0, one[: 2 * min(2_400, received)]))
    if received >= 2_400:
        show.feed(end(3 if timings else 2, 0, one), begin(4 if timings else 3, 1, 8, 20, 2_400))
        if timings:
            show.feed(s.Timing(5, 1, 1, (word("Three", 2_500, 3_500), word("four", 3_500, 5_000))))
        if received > 2_400:
            show.feed(frame(2_400, two[: 2 * (received - 2_400)]))
    assert show.failure is None
    return show


def fail(show: Rehearsal, reason: str = "expired", utterance: int | None = None, position: int | None = None) -> None:
    """The connection breaks, and `resume` fails."""
    show.lose()
    show.connect()
    failed = s.ResumeFailed(reason, utterance, position)  # type: ignore[arg-type]  # a reason
    show.feed(failed, connection=show.asked[-1][0])


def reopen(show: Rehearsal, **changes: object) -> list[c.ClientMessage]:
    """The server opens a new session. What it is told to say."""
    number, asked = show.asked[-1]
    assert isinstance(asked, c.Open)
    before = len(show.sent)
    show.feed(opened(**({"resume_ttl_ms": TTL_MS, "session": "new", "token": "newer"} | changes)), connection=number)
    return show.sent[before:]


@pytest.mark.parametrize("reason", get_args(s.ResumeFailure))
def test_every_failed_resume_goes_on_in_a_new_session(reason: str) -> None:
    show = speaking(2_700)
    fail(show, reason)
    said = reopen(show)
    assert said == [c.Start(1, 1), c.Text(2, TEXT[8:]), c.End(3)]
    assert show.notices[-1] == f"{why_gone(reason)}: going on with a new one, from character 8"
    assert f"({reason})" not in show.notices[-1]  # in words
    script = Script().speak([1_000], [400])
    show.feed(*script.sent)
    assert show.failure is None
    assert show.pcm() == samples(2_400) + samples(3_000, 1)[:600] + script.pcm
    done = show.events()[-1]
    assert isinstance(done, s.Done)
    assert done.samples == 2_700 + 1_000
    statistics = show.state.statistics(1)
    assert statistics is not None
    assert (statistics.restarts, statistics.samples, show.state.line.restarts) == (1, 3_700, 1)
    assert show.state.line.resumes == 0


@pytest.mark.parametrize(
    ("received", "position"),
    [
        (500, 0),  # in "One"
        (1_000, 4),  # at the start of "two"
        (1_999, 4),
        (2_000, 7),  # after "two": the full stop
        (2_399, 7),
        (2_400, 8),  # at the end of the segment, nothing of the next
        (2_450, 8),  # before its first word
        (3_499, 8),  # in its first word
        (3_500, 15),  # "four"
        (5_000, 19),
    ],
)
def test_the_rest_begins_with_the_word_that_broke_off(received: int, position: int) -> None:
    show = speaking(received)
    fail(show)
    said = reopen(show)
    assert said[1] == c.Text(2, TEXT[position:])


def test_without_word_times_the_rest_begins_with_the_segment() -> None:
    show = speaking(3_600, timings=False)
    fail(show)
    assert reopen(show)[1] == c.Text(2, TEXT[8:])


@pytest.mark.parametrize(("named", "position"), [(None, 8), (3, 8), (15, 15), (26, 26), (27, 8)])
def test_a_later_position_that_the_server_names_counts(named: int | None, position: int) -> None:
    show = speaking(3_600, timings=False)
    fail(show, "epoch", 1, named)
    said = reopen(show)
    assert [m.text for m in said if isinstance(m, c.Text)] == ([TEXT[position:]] if position < len(TEXT) else [])


def test_a_position_of_another_utterance_does_not_count() -> None:
    show = speaking(3_600, timings=False)
    fail(show, "epoch", 2, 15)
    assert reopen(show)[1] == c.Text(2, TEXT[8:])


def test_events_and_audio_go_on_in_the_utterance_s_own_numbers() -> None:
    show = speaking(3_600)
    fail(show)
    reopen(show)
    pcm = samples(1_000)
    show.feed(
        s.SegmentBegin(1, 1, 0, 0, 5, 0),
        s.Timing(2, 1, 0, (s.Word("four", 0, 4, 10, 900),)),
        s.ModeChange(3, 1, "block", "why", 700),
        frame(0, pcm),
        s.SegmentEnd(4, 1, 0, 1_000, hashlib.sha256(pcm).hexdigest()),
        s.Cancelled(5, 1, 1_000, 4),
    )
    assert show.events()[-5:] == [
        s.SegmentBegin(6, 1, 2, 15, 20, 3_600),
        s.Timing(7, 1, 2, (s.Word("four", 15, 19, 3_610, 4_500),)),
        s.ModeChange(8, 1, "block", "why", 4_300),
        s.SegmentEnd(9, 1, 2, 1_000, hashlib.sha256(pcm).hexdigest()),
        s.Cancelled(10, 1, 4_600, 19),
    ]
    assert len(show.pcm()) == 2 * 4_600


def test_acks_count_the_new_session_s_samples() -> None:
    show = Rehearsal(max_lead_ms=4_000).say("x" * 9)
    show.feed(begin(1, 0, 0, 9, 0), frame(0, samples(2_400)))
    show.do(show.state.played(1, 1_200, 50, 0, 0.0))
    fail(show)
    reopen(show, max_lead_ms=4_000)
    show.feed(begin(1, 0, 0, 9, 0), frame(0, samples(960)))
    show.do(show.state.played(1, 1_300, 40, 0, 0.0)).until(0.3)
    ack = show.of(c.Ack)[-1]
    assert (ack.generation, ack.utterance, ack.next_sample, ack.played_sample, ack.event) == (1, 1, 960, 0, 1)
    show.do(show.state.played(1, 2_500, 40, 0, 0.3)).until(0.6)
    assert show.of(c.Ack)[-1].played_sample == 100
    assert isinstance(show.lose().connect(), c.Resume)
    ask = show.asked[-1][1]
    assert ask == c.Resume("new", "newer", 0, 1, 1, 960, 1, 100, True)


def test_queued_utterances_their_overrides_silences_and_flushes_are_kept() -> None:
    show = Rehearsal()
    state = show.state
    for n, start in enumerate([c.Start(0, 1, "v", 1.5, seed=7), c.Start(0, 1, lexicon={"a": "b"})], 1):
        show.do(state.start(start, 0.0)).do(state.text(f"{n} one.", 0.0)).do(state.silence(100 * n, 0.0))
        show.do(state.text(" two", 0.0)).do(state.flush(0.0)).do(state.text(" three", 0.0))
    show.do(state.cancel(2, 0, 0.0))
    show.do(state.start(c.Start(0, 1), 0.0))
    pcm = samples(2_400)
    show.feed(s.SeqAck(13, 1_000), begin(1, 0, 0, 6, 0), frame(0, pcm), end(2, 0, pcm))
    show.feed(replace(begin(3, 1, 6, 6, 2_400), kind="silence"))
    show.feed(AudioFrame(Codec.PCM, 1, 2_400, 720, b"", FrameFlag.SILENCE_RUN))
    fail(show)
    assert reopen(show) == [
        c.Start(1, 1, "v", 1.5, seed=7),
        c.Silence(2, 70),  # 30 ms of it were heard
        c.Text(3, " two"),
        c.Flush(4),
        c.Text(5, " three"),
        c.Start(6, 3),
    ]
    assert show.events(2) == [s.Cancelled(4, 2, 0, 0)]
    assert show.finished == [2]
    assert show.do(state.text("Bye", 0.0)).sent[-1] == c.Text(7, "Bye")
    assert show.notices[-1].endswith("from character 6")


def test_what_was_complete_is_forgotten() -> None:
    script = Script().speak([2_400], [])
    show = Rehearsal(max_lead_ms=4_000).say("x")
    show.feed(*script.sent)
    show.do(show.state.played(1, 1_000, 0, 0, 0.0))
    fail(show)
    assert reopen(show, max_lead_ms=4_000) == []
    assert show.notices[-1] == "the server did not keep the session for so long: a new one was opened"
    assert show.state.cancel(1, None, 0.0) is None  # nobody would confirm it
    show.do(show.state.played(1, 1_100, 0, 0, 0.0)).until(5.0)
    assert [ack for ack in show.of(c.Ack) if ack.utterance == 1 and show.sent.index(ack) > 8] == []
    show.say("y")
    assert show.of(c.Start)[-1] == c.Start(1, 2)


def test_a_lost_done_of_a_text_said_to_its_end_gives_an_empty_rest() -> None:
    script = Script().speak([2_400], [])
    show = Rehearsal().say("x").feed(*script.sent[:-1])
    fail(show)
    assert reopen(show) == [c.Start(1, 1), c.End(2)]
    nothing = hashlib.sha256().hexdigest()
    show.feed(s.Done(1, 1, 0, nothing, nothing, {}))
    done = show.events()[-1]
    assert isinstance(done, s.Done)
    assert (done.samples, show.finished) == (2_400, [1])
    assert show.pcm() == script.pcm


def test_a_cancel_that_nobody_will_confirm_is_confirmed_here() -> None:
    show = speaking(3_600)
    show.do(show.state.cancel(1, 2_100, 0.0))
    fail(show)
    assert reopen(show) == []
    cancelled = show.events()[-1]
    assert isinstance(cancelled, s.Cancelled)
    assert (cancelled.sample, cancelled.heard_text_end) == (3_600, 7)
    assert show.finished == [1]


def test_a_rest_longer_than_the_window_waits_for_room_and_keeps_its_order() -> None:
    show = Rehearsal(window=1_000).say("a" * 60, end=False)
    fail(show)
    assert reopen(show, window=25) == [c.Start(1, 1), c.Text(2, "a" * 25)]
    assert show.state.room == 0
    show.do(show.state.flush(0.0)).do(show.state.end(0.0))
    before = len(show.sent)
    show.feed(s.SeqAck(2, 25))
    assert show.sent[before:] == [c.Text(3, "a" * 25)]
    show.feed(s.SeqAck(3, 25))
    assert show.sent[before + 1 :] == [c.Text(4, "a" * 10), c.Flush(5), c.End(6)]
    assert show.state.room == 15


def test_an_utterance_in_the_backlog_can_be_cancelled() -> None:
    show = Rehearsal().say("a" * 60)
    show.say("b" * 60)
    fail(show)
    reopen(show, window=25)
    before = len(show.sent)
    show.do(show.state.cancel(2, None, 0.0))
    assert show.finished == [2]  # the server never heard of it
    show.do(show.state.cancel(1, None, 0.0))
    assert show.sent[before:] == [c.Cancel(3, 1, 0)]
    show.feed(s.SeqAck(3, 25))
    assert show.sent[before + 1 :] == []


def test_a_pause_holds_in_the_new_session() -> None:
    show = speaking(500)
    show.do(show.state.pause(True, 0.0))
    fail(show)
    assert reopen(show)[0] == c.Pause(1)


def test_the_new_session_uses_the_voice_that_spoke() -> None:
    show = Rehearsal(config={"sample_rate": RATE, "format": "pcm", "voice": "zh-1"}).say("x")
    fail(show)
    assert show.asked[-1][1] == c.Open("zh-1", max_lead_ms=None, max_buffer_delay_ms=None)


def test_a_new_session_that_sounds_different_is_refused() -> None:
    show = speaking(500)
    fail(show)
    reopen(show, pre_skip=312)
    assert isinstance(show.failure, ServerMisbehaved)


def test_a_server_that_is_full_when_a_new_session_is_needed_is_waited_for() -> None:
    show = speaking(500)
    fail(show)
    show.feed(s.Busy(1_000), connection=show.asked[-1][0]).until(1.3)
    assert isinstance(show.connect(), c.Open)  # the old session is gone: no second `resume`
    assert reopen(show)[0] == c.Start(1, 1)
    show = speaking(500)
    fail(show)
    show.feed(s.Error("unknown_voice", "no such voice"), connection=show.asked[-1][0])
    assert isinstance(show.failure, ServerError)


def test_a_connection_that_breaks_before_opened_is_tried_again() -> None:
    show = speaking(500)
    fail(show)
    show.do(show.state.lost(None, "", show.now, show.asked[-1][0])).until(1.0)
    assert isinstance(show.connect(), c.Open)
    assert reopen(show)[1] == c.Text(2, TEXT)


def test_a_text_that_kills_the_server_is_given_up() -> None:
    show = speaking(500)
    for _ in range(3):
        fail(show)
        reopen(show)
        assert show.failure is None
        show.until(show.now + 2)
    fail(show)
    reopen(show)
    assert isinstance(show.failure, ServerLost)
    assert "failed 4 times at character 0" in str(show.failure)


def test_the_rest_may_break_off_too() -> None:
    show = speaking(3_600)
    fail(show)
    reopen(show)
    pcm = samples(900)
    show.feed(s.SegmentBegin(1, 1, 0, 0, 5, 0), s.Timing(2, 1, 0, (s.Word("four", 0, 4, 0, 800),)), frame(0, pcm))
    show.feed(s.SegmentEnd(3, 1, 0, 900, hashlib.sha256(pcm).hexdigest()), s.SegmentBegin(4, 1, 1, 5, 11, 900))
    show.feed(frame(900, samples(100)))
    fail(show)
    assert reopen(show) == [c.Start(1, 1), c.Text(2, " Five."), c.End(3)]
    show.feed(s.SegmentBegin(1, 1, 0, 0, 6, 0), frame(0, samples(10)))
    assert show.events()[-1] == s.SegmentBegin(10, 1, 4, 20, 26, 4_600)
    assert len(show.pcm()) == 2 * 4_610


def test_opus_goes_on_where_it_broke_off() -> None:
    packet = 480

    def coded(at: int, flags: FrameFlag = FrameFlag.NONE) -> AudioFrame:
        return AudioFrame(Codec.OPUS, 1, at, packet, pack_packets([b"abc"]), flags)

    show = Rehearsal(format="opus", pre_skip=312).say("One two.")
    show.feed(begin(1, 0, 0, 8, 0), *[coded(packet * n) for n in range(4)])
    fail(show)
    reopen(show, format="opus", pre_skip=312)
    show.feed(begin(1, 0, 0, 8, 0), coded(0, FrameFlag.DECODER_RESET), coded(packet))
    audio = [item for _, item in show.delivered if isinstance(item, Audio)]
    assert [item.first_sample for item in audio] == [0, 480, 960, 1_440, 1_608, 2_088]
    assert [item.reset for item in audio] == [False] * 4 + [True, False]
    assert 4 * packet - 312 == 1_608
    digest = "ab" * 32
    wire = hashlib.sha256(pack_packets([b"abc"]) * 2).hexdigest()
    whole = hashlib.sha256(bytes.fromhex(digest)).hexdigest()
    show.feed(s.SegmentEnd(2, 1, 0, 600, digest), s.Done(3, 1, 600, whole, wire, {}))
    assert show.failure is None
    done = show.events()[-1]
    assert isinstance(done, s.Done)
    assert done.samples == 1_608 + 600


def test_all_of_opus_but_its_done_ends_where_the_last_segment_does() -> None:
    show = Rehearsal(format="opus", pre_skip=312).say("One two.")
    last = AudioFrame(Codec.OPUS, 1, 0, 960, pack_packets([b"abc", b"def"]), FrameFlag.LAST)
    show.feed(begin(1, 0, 0, 8, 0), s.SegmentEnd(2, 1, 0, 600, "ab" * 32), last)
    fail(show)
    assert reopen(show, format="opus", pre_skip=312) == [c.Start(1, 1), c.End(2)]
    nothing = hashlib.sha256().hexdigest()
    show.feed(s.Done(1, 1, 0, nothing, nothing, {}))
    done = show.events()[-1]
    assert isinstance(done, s.Done)
    assert done.samples == 600


# ---- the transcript alone ----


def test_text_is_forgotten_once_it_was_heard() -> None:
    transcript = Transcript(c.Start(0, 1))
    for n in range(1_000):
        for character in f"Sentence {n}.":
            transcript.write(character)
    at = sample = 0
    for n in range(1_000):
        size = len(f"Sentence {n}.")
        assert transcript.begin(s.SegmentBegin(1, 1, n, at, at + size, sample))
        assert transcript.end(s.SegmentEnd(1, 1, n, 100, "0" * 64))
        at, sample = at + size, sample + 100
        transcript.received(sample)
    rest = transcript.rest(sample, 0, RATE)
    assert (rest.position, rest.pieces) == (at, ())
    assert not transcript._pieces


def test_long_text_is_said_again_in_messages_that_fit() -> None:
    transcript = Transcript(c.Start(0, 1))
    transcript.write("x" * 3_000)
    transcript.ended = True
    said: list[Sent] | list[c.Numbered] = transcript.rest(0, 0, RATE).messages(1_000)  # type: ignore[assignment]  # both
    assert [type(m) for m in said] == [c.Start, c.Text, c.Text, c.Text, c.End]
