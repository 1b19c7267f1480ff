"""How a segment is cut into pieces of one language, and how word times are put together."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engines.base import RenderPlan, Segment
from server.engines.embedded.pieces import (
    MAX_WORDS,
    PAUSE_MS,
    Ending,
    Mark,
    Piece,
    cut_into_pieces,
    fold_to_ascii,
    mark_of,
    romanised,
    word_timings,
)
from server.engines.embedded.rendering import BLOCK_FRAMES, ChunkSizes, word_spans
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
    return ("" if piece.language == "zh" else " ").join(w.text for w in piece.words)


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
    assert [w.token for p in pieces for w in p.words] == [0, 1, 3, 5, 7]
    assert [romanised(c) for c in "好额哦々"] == ["Hao", "Uh", "Oh", ""]


def test_digits_of_a_chinese_text_stay_digits_for_a_voice_without_chinese() -> None:
    segment = Segment(0, (Token("25", 0, 2, "zh"), Token("\U00030000", 2, 3, "zh")), Boundary.SENTENCE, "any")
    assert [(p.language, _said(p)) for p in cut_into_pieces(segment, ENGLISH_ONLY)] == [("en", "25")]


@given(st.text("你好一〇々龍額𠀀ab1 ，。"))
def test_a_voice_without_chinese_gets_english_pieces_alone(text: str) -> None:
    pieces = _pieces(text, languages=ENGLISH_ONLY)
    assert all(p.language == "en" and len(p.words) <= MAX_WORDS["en"] for p in pieces)
    assert all(w.text.isascii() and any(c.isalnum() for c in w.text) for p in pieces for w in p.words)


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
    assert [w.token for p in pieces for w in p.words] == [i for i, p in enumerate(parts) if p in ("你", "word")]
    assert all(len(p.words) == len(p.marks) <= MAX_WORDS[p.language] for p in pieces)


def test_a_long_run_is_cut_at_a_mark_or_evenly_but_not_inside_a_span() -> None:
    assert [len(p.words) for p in _pieces("一" * 20 + "，" + "二" * 20)] == [20, 20]
    assert [len(p.words) for p in _pieces("一" * 40)] == [20, 20]
    tokens = tuple(Token("一", i // 15, i // 15 + 1, "zh") for i in range(45))
    pieces = cut_into_pieces(Segment(0, tokens, Boundary.SENTENCE, "any"), BOTH)
    assert [len(p.words) for p in pieces] == [15, 30]
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
    assert [b - a for a, b in ChunkSizes(RenderPlan("block")).cut(400)] == [*BLOCK_FRAMES * 2, 80]
    assert [b - a for a, b in ChunkSizes(RenderPlan("stream", (50, 500))).cut(100)] == [4, 40, 40, 16]
