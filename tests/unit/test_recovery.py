"""What becomes of a segment that an engine failed at: decisions, pieces, durations, the clip."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.audio.clip import TONE_S, clip_pcm, seam_length, with_seam
from server.engines.base import FailureKind
from server.scheduler.recovery import (
    MAX_FAILURES,
    MAX_LOST_S,
    MAX_STEP_S,
    SKIP_AFTER,
    SKIP_S,
    Breaker,
    Failure,
    Recovery,
    Source,
    Task,
)
from server.text import pieces as text_pieces
from server.text.normaliser import normalise
from server.text.pieces import at_punctuation, part_of, says_something, to_fit
from server.text.speaking_time import longest_duration, position_after, usual_duration
from server.text.tokens import Boundary, Cut, CutCause, Language

TEXT = "你好世界，今天天气很好，我们去公园。"
FIRST, SECOND = TEXT.index("，") + 1, TEXT.rindex("，") + 1
END = len(TEXT)

Fails = Callable[[Task], tuple[Failure, int] | None]


def cut_of(text: str = TEXT, start: int = 0, language: Language = "zh") -> Cut:
    return Cut(start, start + len(text), text, Boundary.SENTENCE, CutCause.END, language)


def go(recovery: Recovery, fails: Fails, *, fallback: bool = True) -> list[tuple[Source, int, int]]:
    """The tasks in order, from the first one on; `fails` says of each how it fails, and how far it got."""
    task: Task | None = Task("engine", 0, END, whole=True)
    tasks: list[tuple[Source, int, int]] = []
    while task is not None:
        assert len(tasks) < 100, "no end"
        if task.source == "fallback" and not fallback:
            recovery.cannot("fallback")
        else:
            tasks.append((task.source, task.start, task.end))
            failed = None if task.source == "clip" else fails(task)
            if failed is None:
                recovery.finished()
            elif recovery.failed(*failed):
                continue
        task = recovery.next()
    return tasks


def said(tasks: list[tuple[Source, int, int]]) -> list[tuple[int, int]]:
    return [(start, end) for _, start, end in tasks]


def always(*sources: Source, kind: FailureKind = "exception", transient: bool = False) -> Fails:
    """These fail at once, whatever they are given."""

    def fails(task: Task) -> tuple[Failure, int] | None:
        return (Failure(kind, transient), task.start) if task.source in sources else None

    return fails


def once(failure: Failure, reached: int) -> Fails:
    left = [failure]
    return lambda task: (left.pop(), reached) if left else None


WHOLE = ("engine", 0, END)


@pytest.mark.parametrize(
    ("fails", "fallback", "tasks"),
    [
        (once(Failure("out_of_memory", True), 4), True, [WHOLE, WHOLE]),  # the same engine goes on
        (once(Failure("exception"), 0), True, [WHOLE, ("fallback", 0, END)]),
        (once(Failure("exception"), 7), True, [WHOLE, ("fallback", 7, END)]),
        (once(Failure("exception"), END), True, [WHOLE, ("clip", END, END)]),  # nothing is left to say
        (once(Failure("exception"), END - 1), True, [WHOLE, ("clip", END, END)]),  # only a mark
        (always("engine", transient=True), True, [WHOLE, WHOLE, ("fallback", 0, END)]),
        (
            once(Failure("exception"), 2),
            False,
            [WHOLE, ("engine", 2, FIRST), ("engine", FIRST, SECOND), ("engine", SECOND, END)],
        ),
        (
            always("fallback", "engine"),
            True,
            [
                WHOLE,
                ("fallback", 0, END),
                *(
                    (source, *span)
                    for span in [(0, FIRST), (FIRST, SECOND), (SECOND, END)]
                    for source in ("engine", "fallback", "clip")
                ),
            ],
        ),
        (
            always("engine"),
            False,
            [
                WHOLE,
                *((s, *span) for span in [(0, FIRST), (FIRST, SECOND), (SECOND, END)] for s in ("engine", "clip")),
            ],
        ),
    ],
)
def test_the_way_through_failures(fails: Fails, fallback: bool, tasks: list[tuple[Source, int, int]]) -> None:
    assert go(Recovery(cut_of()), fails, fallback=fallback) == tasks


def test_one_bad_piece_costs_only_itself() -> None:
    def fails(task: Task) -> tuple[Failure, int] | None:
        bad = task.start <= FIRST + 2 < task.end and task.source != "clip"
        return (Failure("exception"), task.start) if bad else None

    tasks = go(Recovery(cut_of()), fails)
    assert [task for task in tasks if task[0] == "clip"] == [("clip", FIRST, SECOND)]
    assert ("engine", 0, FIRST) in tasks
    assert tasks[-1] == ("engine", SECOND, END)


def test_what_a_piece_said_is_not_said_again() -> None:
    def fails(task: Task) -> tuple[Failure, int] | None:
        if task.source == "clip" or task.end == task.start + 1:
            return None
        return Failure("exception"), task.start + 1

    tasks = go(Recovery(cut_of()), fails)
    assert sorted(said(tasks), key=lambda span: span[0]) == said(tasks)
    starts = [start for start, _ in said(tasks)]
    assert all(late > early for early, late in pairwise(starts))


def test_the_same_text_is_not_tried_twice_by_the_same() -> None:
    short = cut_of("没有标点的话")
    recovery = Recovery(short)
    assert not recovery.failed(Failure("exception"), 0)
    assert recovery.next() == Task("fallback", 0, 6)
    recovery.failed(Failure("exception"), 0)
    assert recovery.next() == Task("clip", 0, 6, piece=True)


def test_only_one_retry() -> None:
    recovery = Recovery(cut_of())
    assert recovery.failed(Failure("exception", True), 0)
    assert not recovery.failed(Failure("exception", True), 0)


@pytest.mark.parametrize("failure", [Failure("exception"), Failure("time_out", seconds=11.0)])
def test_everything_has_an_end(failure: Failure) -> None:
    text = "好，" * 200
    recovery = Recovery(cut_of(text))
    recovery.failed(failure, 0)
    failures, clips = 1, []
    while (task := recovery.next()) is not None:
        if task.source == "clip":
            clips.append((task.start, task.end))
            recovery.finished()
        else:
            failures += 1
            recovery.failed(failure, task.start)
    assert failures <= MAX_FAILURES
    assert failures * failure.seconds < MAX_LOST_S + failure.seconds
    assert clips[0][0] == 0
    assert clips[-1][1] == len(text)  # the last one stands for all that was not tried
    assert all(first[1] == second[0] for first, second in pairwise(clips))


def test_going_on_from_a_task_in_the_middle() -> None:
    recovery = Recovery(cut_of(), Task("fallback", 0, FIRST, piece=True))
    recovery.finished()
    assert recovery.next() == Task("engine", FIRST, END, piece=True)
    recovery = Recovery(cut_of(), Task("fallback", 0, FIRST, piece=True))
    recovery.failed(Failure("exception"), 2)
    assert recovery.next() == Task("engine", 2, FIRST, piece=True)


def test_an_engine_that_is_skipped() -> None:
    recovery = Recovery(cut_of())
    recovery.skip()
    assert recovery.next() == Task("fallback", 0, END)
    recovery.failed(Failure("exception"), 0)
    assert recovery.next() == Task("fallback", 0, FIRST, piece=True)


def test_an_engine_that_takes_less_at_once() -> None:
    recovery = Recovery(cut_of())
    recovery.failed(Failure("exception"), 0)
    recovery.next()
    tasks = [recovery.fit(lambda text: len(text) <= 8)]
    recovery.finished()
    while (task := recovery.next()) is not None:
        tasks.append(task)
        recovery.finished()
    assert [task.source for task in tasks] == ["fallback"] * 3
    assert said([(task.source, task.start, task.end) for task in tasks]) == [(0, FIRST), (FIRST, SECOND), (SECOND, END)]


def test_waiting_for_its_turn_costs_a_segment_nothing() -> None:
    """On a busy server: an attempt that raised took one step, whatever it had to wait for that."""
    recovery = Recovery(cut_of())
    recovery.failed(Failure("exception", seconds=10 * MAX_LOST_S), 0)
    assert not recovery.exhausted
    assert recovery.next() == Task("fallback", 0, END)
    recovery.failed(Failure("exception", seconds=10 * MAX_LOST_S), 0)
    assert recovery.next() == Task("engine", 0, FIRST, piece=True)
    assert Failure("exception", seconds=99.0).lost_s == MAX_STEP_S
    assert Failure("time_out", seconds=99.0).lost_s == 99.0


def test_the_fallback_engine_is_asked_once_however_much_was_lost() -> None:
    recovery = Recovery(cut_of())
    recovery.failed(Failure("time_out", seconds=2 * MAX_LOST_S), 0)
    assert recovery.next() == Task("fallback", 0, END)
    assert recovery.fit(lambda text: len(text) <= 8) == Task("fallback", 0, FIRST)
    recovery.finished()
    assert recovery.next() == Task("fallback", FIRST, END)  # it works, so it goes on
    recovery.failed(Failure("exception"), FIRST + 1)
    assert recovery.next() == Task("clip", FIRST + 1, END, piece=True)
    recovery = Recovery(cut_of())
    recovery.failed(Failure("time_out", seconds=2 * MAX_LOST_S), 0)
    recovery.cannot("fallback")
    assert recovery.next() == Task("clip", 0, END, piece=True)


@given(st.lists(st.tuples(st.sampled_from(["fail", "again", "good"]), st.integers(0, 30)), max_size=60))
def test_every_word_is_said_once_whatever_fails(events: list[tuple[str, int]]) -> None:
    recovery = Recovery(cut_of())
    task: Task | None = Task("engine", 0, END, whole=True)
    at, steps = 0, iter(events)
    while task is not None:
        assert task.start == at or not says_something(part_of(cut_of(), at, task.start))
        event, reached = next(steps, ("good", 0))
        if event == "good" or task.source == "clip":
            recovery.finished()
            at = task.end
        else:
            at = min(max(reached, task.start), task.end)
            if recovery.failed(Failure("exception", event == "again"), at):
                at = task.start  # it goes on with the same text
                continue
        task = recovery.next()
    assert at == END or not says_something(part_of(cut_of(), at, END))


# ---- the breaker ----


def test_an_engine_that_loses_one_segment_after_the_other_is_left_alone_for_a_while() -> None:
    breaker = Breaker()
    for _ in range(SKIP_AFTER):
        assert breaker.allows(0.0)
        breaker.lost("time_out", 0.0)
    assert breaker.reason == "time_out"
    first, longest = SKIP_S
    assert not breaker.allows(first - 0.1)
    assert breaker.allows(first)  # one probe ...
    assert not breaker.allows(first)  # ... and no other
    breaker.lost("worker_lost", first)
    assert not breaker.allows(first + 2 * first - 0.1)
    assert breaker.allows(first + 2 * first)
    breaker.worked()
    assert all(breaker.allows(first + 2 * first) for _ in range(10))
    now = 100.0
    for _ in range(20):
        breaker.lost("time_out", now)
        now += longest
        assert breaker.allows(now)


def test_losses_between_which_it_worked_do_not_count() -> None:
    breaker = Breaker()
    for _ in range(10 * SKIP_AFTER):
        breaker.lost("time_out", 0.0)
        breaker.worked()
    assert breaker.allows(0.0)


# ---- pieces ----


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (
            "你好，世界。今天3.5元，1,000个，好！”然后",
            ["你好，", "世界。", "今天3.5元，", "1,000个，", "好！”", "然后"],
        ),
        ("It is 12:30, she said. OK", ["It is 12:30, ", "she said. ", "OK"]),
        ("没有标点的一段话", ["没有标点的一段话"]),
        ("，，，你好", ["，，，你好"]),
        ("你好……！！", ["你好……！！"]),
        ("一行\n两行", ["一行\n", "两行"]),
        ("", [""]),
        ("。。。", ["。。。"]),
    ],
)
def test_pieces_end_at_punctuation(text: str, pieces: list[str]) -> None:
    assert [piece.text for piece in at_punctuation(cut_of(text, 5))] == pieces


def test_a_piece_ends_as_its_mark_says() -> None:
    found = at_punctuation(cut_of("好，好。好\n好（好）、好"))
    assert [piece.boundary for piece in found] == [
        Boundary.CLAUSE, Boundary.SENTENCE, Boundary.PARAGRAPH, Boundary.CLAUSE, Boundary.SENTENCE,
    ]  # fmt: skip


SHARP = {"#": "井", "·": "点"}


def test_what_only_the_lexicon_gives_a_word_is_not_lost() -> None:
    assert not says_something(cut_of("#，"))
    assert says_something(cut_of("#，"), SHARP)
    assert not says_something(cut_of("好，"), {"好": "……"})
    assert [piece.text for piece in at_punctuation(cut_of("你好，#，世界，"), SHARP)] == ["你好，", "#，", "世界，"]
    fitting = to_fit(cut_of("你好，#，"), lambda text: len(text) <= 3, SHARP)
    assert [piece.text for piece in fitting] == ["你好，", "#，"]
    recovery = Recovery(cut_of("你好，#，"), lexicon=SHARP)
    recovery.failed(Failure("exception"), 3)
    assert recovery.next() == Task("fallback", 3, 5)
    recovery.cannot("fallback")
    assert recovery.next() == Task("engine", 3, 5, piece=True)


MARKUP = "*_#|-+=!()\"'<>[]&`~\\/:;.,%$@^，。：\u0301½²①㎡ЖПéß😀\U0003134b\x1f\n\t 12AbC你好０Ａ"


@given(st.one_of(st.text(alphabet=MARKUP, max_size=14), st.text(max_size=6)), st.sampled_from(["zh", "en"]))
def test_a_look_at_a_text_says_what_the_rules_say(text: str, language: Language) -> None:
    cut = cut_of(text, language=language)
    assert says_something(cut) == any(token.kind == "word" for token in normalise(cut))
    assert says_something(cut, {"你": "", "#": "b"}) == any(
        token.kind == "word" for token in normalise(cut, lexicon={"你": "", "#": "b"})
    )


@pytest.mark.parametrize("lexicon", [None, {"word": "词", "#": "井"}])
def test_a_long_segment_in_many_pieces_is_not_read_again(
    lexicon: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is decided on the event loop, where others wait."""
    read = 0

    def counting(cut: Cut, **options: object) -> object:
        nonlocal read
        read += 1
        return normalise(cut, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(text_pieces, "normalise", counting)
    text = "你，好，天，" * 512
    recovery = Recovery(cut_of(text), lexicon=lexicon)
    recovery.failed(Failure("exception"), 0)
    recovery.cannot("fallback")
    assert recovery.next() == Task("engine", 0, 2, piece=True)
    assert read == 0


def test_a_text_that_no_rule_can_read_is_still_to_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(cut: Cut, **_: object) -> object:
        raise LookupError("a text rule")

    monkeypatch.setattr(text_pieces, "normalise", fails)
    assert says_something(cut_of("<i>"))
    assert text_pieces.tokens_of(cut_of()) is None
    recovery = Recovery(cut_of("<i>，"))
    recovery.failed(Failure("exception"), 0)
    assert recovery.next() == Task("fallback", 0, 4)


@given(st.text(alphabet='你好世界 abc，。.,1\n"”😀\u0301', max_size=80), st.integers(1, 12))
def test_pieces_tile_the_cut(text: str, most: int) -> None:
    cut = cut_of(text, 7)
    for pieces in (at_punctuation(cut), to_fit(cut, lambda piece: len(piece) <= most)):
        assert "".join(piece.text for piece in pieces) == text
        assert pieces[0].start == cut.start
        assert pieces[-1].end == cut.end
        assert [piece.start for piece in pieces[1:]] == [piece.end for piece in pieces[:-1]]


def test_pieces_that_must_fit_are_cut_at_words() -> None:
    pieces = to_fit(cut_of("你好世界今天天气很好hello big world，好吗"), lambda text: len(text) <= 8)
    assert [piece.text for piece in pieces] == ["你好世界今天天气", "很好hello ", "big ", "world，好吗"]


# ---- how long a text takes ----


def test_durations_are_about_those_of_speech() -> None:
    tokens = normalise(cut_of())
    usual = usual_duration(tokens, Boundary.SENTENCE)
    assert 2.5 < usual < 5
    assert 5 * usual < longest_duration(tokens, Boundary.SENTENCE) < 15 * usual
    assert usual_duration(normalise(cut_of("……")), Boundary.SENTENCE) == 0.0
    assert longest_duration((), Boundary.WORD) > 0


def test_a_position_is_the_end_of_a_word() -> None:
    tokens = normalise(cut_of("我有12.5%的水"))
    places = [position_after(tokens, at / 20) for at in range(60)]
    assert places[0] is None
    assert set(places[1:]) - {None} == {1, 2, 7, 8, 9}  # never within the number
    found = [place or 0 for place in places]
    assert found == sorted(found)
    assert position_after((), 5.0) is None


# ---- the clip ----


@pytest.mark.parametrize("rate", [8_000, 24_000, 48_000])
def test_a_clip_is_a_soft_tone_and_silence(rate: int) -> None:
    length = 2 * rate
    whole = clip_pcm(0, length, length, rate)
    samples = np.frombuffer(whole, "<i2").astype(int)
    assert len(samples) == length
    assert 500 < abs(samples).max() < 1_500  # about -30 dBFS
    assert not samples[round(TONE_S * rate) :].any()
    assert abs(np.diff(samples)).max() < 700  # it swells: no click
    pieces = [clip_pcm(at, at + 777, length, rate) for at in range(0, length, 777)]
    assert b"".join(pieces) == whole


def test_a_clip_of_nothing_and_one_shorter_than_its_tone() -> None:
    assert clip_pcm(0, 100, 0, 24_000) == b""
    assert clip_pcm(200, 300, 150, 24_000) == b""
    short = np.frombuffer(clip_pcm(0, 1_000, 1_000, 24_000, volume=2.0), "<i2").astype(int)
    assert len(short) == 1_000
    assert abs(short[[0, -1]]).max() < 20


@pytest.mark.parametrize("value", [0, 1, -9_000, 32_767, -32_768])
def test_a_seam_fades_from_where_the_sound_broke_off(value: int) -> None:
    rate, silence = 24_000, bytes(2 * 200)
    whole = with_seam(silence, 0, value, rate)
    samples = np.frombuffer(whole, "<i2").astype(int)
    assert len(samples) == 200
    assert not samples[seam_length(rate) :].any()
    assert abs(np.diff([value, *samples])).max() <= abs(value) * 0.04 + 1
    pieces = [with_seam(silence[2 * at : 2 * at + 14], at, value, rate) for at in range(0, 200, 7)]
    assert b"".join(pieces) == whole
    loud = np.full(100, 32_000, "<i2").tobytes()
    assert np.frombuffer(with_seam(loud, 0, 32_767, rate), "<i2").max() == 32_767
    assert with_seam(b"", 0, value, rate) == b""
