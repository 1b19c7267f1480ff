"""How a segment is cut into pieces of one language, and how word times are put together."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engines.base import RenderPlan, Segment
from server.engines.embedded.pieces import (
    CONTEXT_WORDS,
    MAX_WORDS,
    PAUSE_MS,
    Ending,
    Mark,
    Piece,
    cut_into_pieces,
    mark_of,
    word_timings,
)
from server.engines.embedded.rendering import BLOCK_FRAMES, ChunkSizes, own_symbols, word_spans
from server.engines.embedded.sayable import fold_to_ascii, romanised
from server.text.characters import is_hanzi
from server.text.tokens import Boundary, Language, Token

_UNIT = re.compile(r"[\u4e00-\u9fff]|[A-Za-z]+|\S")


def _tokens(text: str) -> tuple[Token, ...]:
    return tuple(
        Token(
            m.group(),
            m.start(),
            m.end(),
            "zh" if is_hanzi(m.group()[0]) else "en",
            "word" if m.group()[0].isalnum() else "mark",
        )
        for m in _UNIT.finditer(text)
    )


BOTH: tuple[Language, ...] = ("zh", "en")
ENGLISH_ONLY: tuple[Language, ...] = ("en",)


def _pieces(
    text: str, boundary: Boundary = Boundary.SENTENCE, languages: tuple[Language, ...] = BOTH
) -> tuple[Piece, ...]:
    return cut_into_pieces(Segment(0, _tokens(text), boundary, "any"), languages)


def _said(piece: Piece) -> str:
    return ("" if piece.language == "zh" else " ").join(w.text for w in piece.words[piece.heard])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Yesterday we went out, and today we bake.", ["Yesterday we went out", "and today we bake"]),
        ("Yes, sir.", ["Yes sir"]),
        ("one, two, three, four", ["one two", "three four"]),
        ("周末钓鱼；今天看书。", ["周末钓鱼", "今天看书"]),
        ("今天天气好，我们去公园。", ["今天天气好我们去公园"]),
    ],
)
def test_pieces_end_at_marks_the_voice_would_read_over(text: str, said: list[str]) -> None:
    pieces = _pieces(text)
    assert [_said(piece) for piece in pieces] == said
    assert all(piece.ending is Ending.CLAUSE and piece.pause_ms >= 200 for piece in pieces[:-1])


def test_runs_of_one_language_become_pieces() -> None:
    pieces = _pieces("我用Python写 two scripts，很快。")
    assert [(p.language, _said(p)) for p in pieces] == [
        ("zh", "我用"),
        ("en", "Python"),
        ("zh", "写"),
        ("en", "two scripts"),
        ("zh", "很快"),
    ]
    assert [p.ending for p in pieces] == [Ending.JOIN] * 3 + [Ending.CLAUSE, Ending.SENTENCE]
    assert [p.pause_ms for p in pieces] == [0, 0, 0, 200, PAUSE_MS[Mark.STOP]]


def test_a_voice_without_chinese_says_hanzi_in_latin_letters() -> None:
    pieces = _pieces("你好，Bob，啊！〇々", languages=ENGLISH_ONLY)
    assert [(p.language, _said(p)) for p in pieces] == [("en", "Ni Hao"), ("en", "Bob Ah Ling")]
    assert [w.token for p in pieces for w in p.words[p.heard]] == [0, 1, 3, 5, 7]
    assert [romanised(c) for c in "好额哦々"] == ["Hao", "Uh", "Oh", ""]


def test_digits_of_a_chinese_text_stay_digits_for_a_voice_without_chinese() -> None:
    segment = Segment(0, (Token("25", 0, 2, "zh"), Token("\U00030000", 2, 3, "zh")), Boundary.SENTENCE, "any")
    assert [(p.language, _said(p)) for p in cut_into_pieces(segment, ENGLISH_ONLY)] == [("en", "25")]


@given(st.text("你好一〇々龍額𠀀ab1 ，。"))
def test_a_voice_without_chinese_gets_english_pieces_alone(text: str) -> None:
    pieces = _pieces(text, languages=ENGLISH_ONLY)
    assert all(p.language == "en" and len(p.words[p.heard]) <= MAX_WORDS["en"] for p in pieces)
    assert all(w.text.isascii() and any(c.isalnum() for c in w.text) for p in pieces for w in p.words[p.heard])


@pytest.mark.parametrize("text", ["", "……", "。", "“”", "привет", "。。。！", "😀", "- — *"])
def test_nothing_sayable_gives_no_piece(text: str) -> None:
    assert _pieces(text) == ()


@pytest.mark.parametrize(
    ("boundary", "ending", "pause"),
    [
        (Boundary.WORD, Ending.JOIN, 0),
        (Boundary.CLAUSE, Ending.CLAUSE, 270),
        (Boundary.SENTENCE, Ending.SENTENCE, 420),
        (Boundary.PARAGRAPH, Ending.SENTENCE, 650),
    ],
)
def test_the_boundary_decides_the_last_pause(boundary: Boundary, ending: Ending, pause: int) -> None:
    for text in ("你好", "hello"):
        assert [(p.ending, p.pause_ms) for p in _pieces(text, boundary)] == [(ending, pause)]


def test_the_mark_of_a_clause_sets_its_pause() -> None:
    assert [_pieces(f"好{mark}", Boundary.CLAUSE)[0].pause_ms for mark in "、，：—"] == [200, 270, 320, 270]


def test_an_ellipsis_is_a_pause_not_a_stop() -> None:
    assert mark_of(Token("...", 0, 3, "en", "mark")) is Mark.COMMA
    assert mark_of(Token("……", 0, 2, "zh", "mark")) is Mark.COMMA
    assert mark_of(Token("?!", 0, 2, "en", "mark")) is Mark.QUESTION
    assert mark_of(Token("（", 0, 1, "zh", "mark")) is None


def test_letters_are_folded_and_foreign_ones_dropped() -> None:
    assert fold_to_ascii("Café’s") == "Cafe's"
    assert fold_to_ascii("Straße") == "Strasse"
    assert fold_to_ascii("-state-of-") == "state-of"
    assert fold_to_ascii("мир") == ""


def test_digits_are_read_in_the_language_of_their_token() -> None:
    segment = Segment(0, (Token("25", 0, 2, "zh"), Token("25", 2, 4, "en")), Boundary.SENTENCE, "any")
    assert [(p.language, _said(p)) for p in cut_into_pieces(segment, BOTH)] == [("zh", "二五"), ("en", "25")]


@given(st.lists(st.sampled_from(["你", "word", "，", "?", "…", "#", "ж"]), max_size=200))
def test_every_word_is_said_once_in_order_and_pieces_are_bounded(parts: list[str]) -> None:
    tokens = tuple(
        Token(p, i, i + 1, "zh" if p == "你" else "en", "word" if p.isalpha() else "mark") for i, p in enumerate(parts)
    )
    pieces = cut_into_pieces(Segment(0, tokens, Boundary.CLAUSE, "any"), BOTH)
    assert [w.token for p in pieces for w in p.words[p.heard]] == [
        i for i, p in enumerate(parts) if p in ("你", "word")
    ]
    assert all(len(p.words[p.heard]) <= MAX_WORDS[p.language] for p in pieces)
    assert all(len(p.words) == len(p.marks) <= MAX_WORDS[p.language] + CONTEXT_WORDS + 3 for p in pieces)


def test_a_long_run_is_cut_at_a_mark_or_evenly_but_not_inside_a_span() -> None:
    assert [len(p.words[p.heard]) for p in _pieces("一" * 20 + "，" + "二" * 20)] == [20, 20]
    assert [len(p.words[p.heard]) for p in _pieces("一" * 40)] == [20, 20]
    tokens = tuple(Token("一", i // 15, i // 15 + 1, "zh") for i in range(45))
    pieces = cut_into_pieces(Segment(0, tokens, Boundary.SENTENCE, "any"), BOTH)
    assert [len(p.words[p.heard]) for p in pieces] == [15, 30]
    assert pieces[0].ending is Ending.JOIN


def test_words_of_one_source_span_share_one_timing() -> None:
    tokens = (Token("百", 0, 3, "zh"), Token("分", 0, 3, "zh"), Token("之", 0, 3, "zh"), Token("高", 3, 4, "zh"))
    piece = cut_into_pieces(Segment(0, tokens, Boundary.SENTENCE, "any"), BOTH)[0]
    timings = word_timings(piece, tokens, [(0, 10), (10, 20), (20, 30), (30, 50)])
    assert [(t.text, t.start, t.end, t.first_sample, t.end_sample) for t in timings] == [
        ("百分之", 0, 3, 0, 30),
        ("高", 3, 4, 30, 50),
    ]
    english = cut_into_pieces(Segment(0, tokens, Boundary.SENTENCE, "any"), ENGLISH_ONLY)[0]
    assert word_timings(english, tokens, [(0, 10), (10, 20), (20, 30), (30, 50)]) == timings


def test_word_spans_follow_the_durations() -> None:
    owners = (None, 0, 0, None, 2, None)  # word 1 has no sound
    ends = [4, 6, 10, 12, 20, 25]
    spans = word_spans(owners, np.array(ends), 3, begin=3, end=22)
    assert spans == ((300, 2100), (2100, 2100), (2700, 5700))  # the last word reaches to the end of speech


@given(
    st.integers(1, 700),
    st.sampled_from(["stream", "block"]),
    st.lists(st.integers(1, 4000), max_size=4),
)
def test_chunks_tile_a_piece(frames: int, mode: str, chunk_ms: list[int]) -> None:
    sizes = ChunkSizes(RenderPlan("stream" if mode == "stream" else "block", tuple(chunk_ms)))
    for length in (frames, 30, frames):
        cuts = list(sizes.cut(length))
        assert cuts[0][0] == 0
        assert cuts[-1][1] == length
        assert all(a[1] == b[0] for a, b in itertools.pairwise(cuts))
        assert all(a < b for a, b in cuts)


def test_chunk_sizes_follow_the_plan() -> None:
    assert [b - a for a, b in ChunkSizes(RenderPlan()).cut(300)] == [8, 24, 48, 80, 80, 60]
    assert [b - a for a, b in ChunkSizes(RenderPlan("block")).cut(BLOCK_FRAMES)] == [BLOCK_FRAMES]
    assert [b - a for a, b in ChunkSizes(RenderPlan("block")).cut(2 * BLOCK_FRAMES + 3)] == [161, 161, 161]
    assert [b - a for a, b in ChunkSizes(RenderPlan("stream", (50, 500))).cut(100)] == [4, 40, 40, 16]


def test_what_decides_the_cuts_of_the_next_piece() -> None:
    streamed = ChunkSizes(RenderPlan())
    states = [streamed.state]
    for frames in (30, 100, 100):
        list(streamed.cut(frames))
        states.append(streamed.state)
    assert len(set(states[:3])) == 3
    assert states[2] == states[3]  # the sizes have settled
    asked = ChunkSizes(RenderPlan("stream", (25,)))
    list(asked.cut(100))
    assert asked.state == ChunkSizes(RenderPlan("block", (25,))).state
    assert asked.state != streamed.state


# --- what is said along with a piece


def _with_context(piece: Piece) -> tuple[str, str, str]:
    """What is said before a piece, in it and after it."""
    own = piece.heard
    return tuple(
        "|".join(w.text for w in part) for part in (piece.words[: own.start], piece.words[own], piece.words[own.stop :])
    )  # type: ignore[return-value]  # three parts


def _after(
    before: str, text: str, boundary: Boundary, languages: tuple[Language, ...] = BOTH
) -> list[tuple[str, str, str]]:
    segment = Segment(0, _tokens(text), boundary, "any", before=_tokens(before))
    return [_with_context(piece) for piece in cut_into_pieces(segment, languages)]


def test_a_piece_that_runs_on_is_followed_by_words_that_are_not_heard() -> None:
    assert _after("", "今天下午", Boundary.WORD) == [("", "今|天|下|午", "和|他|们")]
    assert _after("", "this afternoon", Boundary.WORD) == [("", "this|afternoon", "because|we")]
    for boundary in (Boundary.CLAUSE, Boundary.SENTENCE, Boundary.PARAGRAPH):
        assert _after("", "今天下午", boundary)[0][2] == ""


def test_a_long_run_is_followed_by_the_words_that_follow() -> None:
    first, second = _after("", "一" * 19 + "三二" + "八" * 19, Boundary.SENTENCE)
    assert first[2] == "二|八|八"
    assert second[0] == "|".join("一" * 7 + "三")


def test_the_words_before_a_piece_are_said_along_with_it() -> None:
    assert _after("甲乙丙丁戊己庚辛壬癸", "今天", Boundary.CLAUSE) == [("丙|丁|戊|己|庚|辛|壬|癸", "今|天", "")]
    assert _after("我们说，", "今天", Boundary.CLAUSE) == [("我|们|说", "今|天", "")]
    assert _after("At dawn, he", "walks on", Boundary.SENTENCE) == [("At|dawn|he", "walks|on", "")]
    assert _after("the old man", "walks on", Boundary.SENTENCE) == [("the|old|man", "walks|on", "")]
    assert _after("你好", "Bob", Boundary.SENTENCE, ENGLISH_ONLY) == [("Ni|Hao", "Bob", "")]


@pytest.mark.parametrize(
    ("before", "text"),
    [
        ("好了。", "今天"),
        ("真的？", "今天"),
        ("hello", "今天"),
        ("今天", "hello"),
        ("Really?", "we go"),
        ("привет", "we go"),
    ],
)
def test_context_ends_with_a_sentence_and_a_voice(before: str, text: str) -> None:
    assert _after(before, text, Boundary.SENTENCE)[0][0] == ""


def test_pieces_of_a_segment_are_context_of_the_next() -> None:
    assert [(a, b) for a, b, _ in _after("", "周末钓鱼：今天看书。明天", Boundary.SENTENCE)] == [
        ("", "周|末|钓|鱼"),
        ("周|末|钓|鱼", "今|天|看|书"),
        ("", "明|天"),
    ]
    assert [(a, b, c) for a, b, c in _after("", "我用Python写", Boundary.SENTENCE)] == [
        ("", "我|用", ""),  # another voice goes on
        ("", "Python", ""),
        ("", "写", ""),
    ]


def test_timings_are_those_of_a_piece_alone() -> None:
    tokens = _tokens("今天")
    piece = cut_into_pieces(Segment(0, tokens, Boundary.WORD, "any", before=_tokens("我们")), BOTH)[0]
    timings = word_timings(piece, tokens, [(0, 5), (5, 9)])
    assert [(t.text, t.first_sample, t.end_sample) for t in timings] == [("今", 0, 5), ("天", 5, 9)]


def test_own_symbols_lie_between_those_of_other_words() -> None:
    owners = (None, 0, 0, 1, None, 2, 2, 3, None)
    assert own_symbols(owners, slice(1, 3)) == (3, 7)
    assert own_symbols(owners, slice(0, 4)) == (1, 8)
    assert own_symbols(owners, slice(4, 6)) is None
