"""Captions: cues a person can read, word times that players accept, nothing of the text lost."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.captions import (
    MAX_CUE_S,
    MAX_LINE_UNITS,
    MAX_LINES,
    Cue,
    SpokenWord,
    make_cues,
    spoken_words,
    to_srt,
    to_vtt,
    width,
)

RATE = 24_000


def spoken(text: str, *, seconds: float = 0.25) -> list[SpokenWord]:
    """The words of a text, one after the other, as the client gets them."""
    spans = [m.span() for m in re.finditer(r"[一-鿿]|[A-Za-z0-9'’%.]*[A-Za-z0-9'’%]", text)]
    step = int(seconds * RATE)
    return list(spoken_words(text, [(a, b, i * step, (i + 1) * step) for i, (a, b) in enumerate(spans)], RATE))


def shown(cue: Cue) -> list[str]:
    return ["".join(word.text for word in line).strip() for line in cue.lines]


ENGLISH = (
    "The hall was opened in May 1987, after nine years of work, and it has been full ever since. "
    "“Nobody expected that,” said the director. It holds 2,000 people; on some evenings more than that stand outside."
)
CHINESE = (
    "山高水远，天蓝云白，风轻轻地吹过田野，孩子们在河边奔跑，笑声传得很远很远。"
    "老人坐在门前，看着夕阳慢慢落下。“明天还来吗？”他问。"
)


@pytest.mark.parametrize("text", [ENGLISH, CHINESE, ENGLISH + "\n" + CHINESE])
def test_cues_are_short_and_lose_nothing(text: str) -> None:
    cues = make_cues(spoken(text))
    for cue in cues:
        assert 1 <= len(cue.lines) <= MAX_LINES
        assert all(width(line) <= MAX_LINE_UNITS for line in shown(cue))
        assert cue.end_s - cue.start_s <= MAX_CUE_S
    assert "".join(text.split()) == "".join("".join(shown(cue)) for cue in cues).replace(" ", "")
    assert all(a.end_s <= b.start_s for a, b in pairwise(cues))


def test_a_sentence_ends_its_cue() -> None:
    assert [shown(cue) for cue in make_cues(spoken("Good morning. 你好。Bye!"))] == [
        ["Good morning."],
        ["你好。"],
        ["Bye!"],
    ]


def test_a_number_with_a_point_ends_nothing() -> None:
    assert [shown(cue) for cue in make_cues(spoken("It is 3.5 metres long."))] == [["It is 3.5 metres long."]]


def test_an_opening_quote_goes_with_its_word() -> None:
    words = spoken('他说：“你好”。 He said "hello" (twice).')
    assert [word.text for word in words] == ["他", "说：", "“你", "好”。 ", "He ", "said ", '"hello" ', "(twice)."]


def test_a_pause_begins_a_new_cue() -> None:
    words = [SpokenWord("one ", 0.0, 0.3), SpokenWord("two ", 0.3, 0.6), SpokenWord("three", 1.5, 1.9)]
    assert [(cue.start_s, shown(cue)) for cue in make_cues(words)] == [(0.0, ["one two"]), (1.5, ["three"])]


def test_a_short_cue_stays_readable_without_covering_the_next() -> None:
    first, second = make_cues([SpokenWord("Yes. ", 0.0, 0.2), SpokenWord("No.", 0.7, 0.9)])
    assert (first.end_s, second.end_s) == (0.7, 1.7)


def test_words_that_share_a_span_become_one() -> None:
    words = list(
        spoken_words("涨了12.5%吗", [(0, 1, 0, 1), (1, 2, 1, 2), (2, 7, 2, 3), (2, 7, 3, 9), (7, 8, 9, 10)], 1)
    )
    assert words[2] == SpokenWord("12.5%", 2.0, 9.0)
    assert "".join(word.text for word in words) == "涨了12.5%吗"


def test_vtt() -> None:
    text = to_vtt(make_cues(spoken("Tom & <b>Jo</b>. 好的。")))
    assert text == (
        "WEBVTT\n\n"
        "00:00:00.000 --> 00:00:01.000\nTom &amp; &lt;<00:00:00.250>b&gt;<00:00:00.500>Jo&lt;/<00:00:00.750>b&gt;.\n\n"
        "00:00:01.000 --> 00:00:02.000\n好<00:00:01.250>的。\n"
    )


def test_srt() -> None:
    cues = make_cues([SpokenWord("One. ", 3_599.9996, 3_600.5), SpokenWord("Two.", 3_602.0, 3_603.25)])
    assert to_srt(cues) == ("1\n01:00:00,000 --> 01:00:01,000\nOne.\n\n2\n01:00:02,000 --> 01:00:03,250\nTwo.\n")


def test_nothing_spoken_gives_a_valid_file() -> None:
    assert to_vtt(make_cues([])) == "WEBVTT\n"
    assert to_srt(make_cues([])) == ""


@given(
    st.lists(st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.floats(0, 3)), max_size=30)
)
def test_word_stamps_always_grow(pieces: list[tuple[str, float]]) -> None:
    words, now = [], 0.0
    for text, gap in pieces:
        words.append(SpokenWord(text, now + gap, now + gap + 0.1))
        now += gap
    vtt = to_vtt(make_cues(words))
    for block in re.split(r"\n\n", vtt)[1:]:
        stamps = re.findall(r"(?:^|<)(\d\d:\d\d:\d\d\.\d{3})", block)
        assert stamps == sorted(set(stamps))
