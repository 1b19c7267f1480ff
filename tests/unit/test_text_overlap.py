"""What comes before a cut as context: of the same sentence, in whole words, bounded, by the cuts alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engines.tone import count_tokens
from server.text.overlap import Overlap
from server.text.segmenter import Segmenter
from server.text.tokens import Boundary, Cut, CutCause


def cuts_of(*pieces: str | tuple[str, Boundary, CutCause]) -> list[Cut]:
    """Cuts of these texts, by default between words."""
    cuts: list[Cut] = []
    at = 0
    for piece in pieces:
        text, boundary, cause = (piece, Boundary.WORD, CutCause.LENGTH) if isinstance(piece, str) else piece
        cuts.append(Cut(at, at + len(text), text, boundary, cause, "en"))
        at += len(text)
    return cuts


def contexts(tokens: int, cuts: list[Cut]) -> list[str]:
    overlap = Overlap(tokens, count_tokens)
    return [overlap.before(cut) for cut in cuts]


def test_the_last_words_of_the_same_sentence() -> None:
    assert contexts(4, cuts_of("The quick brown fox ", "jumps over ", "the dog")) == [
        "",
        "The quick brown fox ",
        "brown fox jumps over ",
    ]
    assert contexts(3, cuts_of("今天天气，", "我们", "走")) == ["", "天天气，", "气，我们"]


@pytest.mark.parametrize(
    "first",
    [
        ("Yes.", Boundary.SENTENCE, CutCause.PUNCTUATION),
        ("Title\n", Boundary.PARAGRAPH, CutCause.PUNCTUATION),
        ("Well, I ", Boundary.CLAUSE, CutCause.FLUSH),
        ("Well, I ", Boundary.CLAUSE, CutCause.SOFT_FLUSH),
    ],
)
def test_nothing_after_a_sentence_a_line_or_a_flush(first: tuple[str, Boundary, CutCause]) -> None:
    assert contexts(16, cuts_of("Oh ", first, "then ", "more")) == ["", "Oh ", "", "then "]


def test_nothing_where_the_line_or_sentence_ends_before_a_word() -> None:
    assert contexts(16, cuts_of("Milk, ", "\n- eggs, ", "tea")) == ["", "", "- eggs, "]
    assert contexts(16, cuts_of("走吧，", "！好", "的")) == ["", "", "好"]


def test_nothing_after_a_silence() -> None:
    overlap = Overlap(16, count_tokens)
    first, second = cuts_of("one two ", "three")
    overlap.before(first)
    overlap.forget()
    assert overlap.before(second) == ""


def test_nothing_where_none_is_wanted() -> None:
    assert contexts(0, cuts_of("one ", "two ", "three")) == ["", "", ""]


@pytest.mark.parametrize(
    ("text", "tokens", "context"),
    [
        ("pay the $99.5 now ", 5, "now "),  # the price alone has five when read out
        ("pay the $99.5 now ", 6, "$99.5 now "),  # and keeps its sign
        ("a 👨‍👩‍👧 b", 1, "👨‍👩‍👧 b"),
        ("你好👍🏽世界", 2, "👍🏽世界"),
        ("cafe\u0301 noir", 2, "cafe\u0301 noir"),
        ("x" * 130 + " end", 2, "end"),  # never the second half of a run
        ("see https://example.com/a/b?c=d now", 4, "now"),
        ("十二3点", 9, "十二3点"),
    ],
)
def test_a_context_begins_with_a_whole_word(text: str, tokens: int, context: str) -> None:
    assert contexts(tokens, cuts_of(text, "rest")) == ["", context]


def test_one_long_word_is_no_context() -> None:
    assert contexts(1, cuts_of("12345678", " and", " on")) == ["", "", "and"]


def test_a_million_symbols_are_not_remembered() -> None:
    overlap = Overlap(16, count_tokens)
    for cut in cuts_of(*["☂" * 2000] * 50):
        assert len(overlap.before(cut)) <= 1024


PIECES = "你 好 的 word U.S. 3.14 $5 👨‍👩‍👧 https://a.b/c ， 。 、 🇨🇳 -".split()
OTHERS = [" ", "  ", ", ", "! ", "\n", "\ud800", "e\u0301", "x" * 70]
TEXT = st.lists(st.sampled_from([*PIECES, *OTHERS]), max_size=80).map("".join) | st.text(max_size=60)


@settings(max_examples=200, deadline=None)
@given(text=TEXT, tokens=st.integers(1, 64))
def test_a_context_is_what_stands_before_and_never_more_than_allowed(text: str, tokens: int) -> None:
    segmenter = Segmenter()
    segmenter.feed(text)
    segmenter.end()
    overlap = Overlap(tokens, count_tokens)
    sentence = 0
    while (cut := segmenter.next()) is not None:
        context = overlap.before(cut)
        assert text[: cut.start].endswith(context)
        assert count_tokens(context) <= tokens
        assert len(context) <= cut.start - sentence
        if cut.boundary in (Boundary.SENTENCE, Boundary.PARAGRAPH):
            sentence = cut.end
