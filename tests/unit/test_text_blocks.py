"""Whole sentences and blocks of them: three limits, no word twice or lost, by the text alone, at linear cost."""

import re
import time
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engines.tone import count_tokens
from server.text.characters import CLOSERS
from server.text.limits import LONGEST
from server.text.normaliser import normalise
from server.text.overlap import Overlap
from server.text.segmenter import Segmenter, SegmentLimits
from server.text.tokens import Boundary, Cut, CutCause

LARGE = SegmentLimits(max_tokens=1024, count_tokens=count_tokens)
WARM_UP = " The lazy dog sleeps under an old tree." * 80  # so much was said that nothing need be short any more
CLAUSE = "the quick brown fox jumps over the lazy dog, "  # nine words


def pieces_of_bytes(text: str) -> int:
    """Small tokens, as a language model has them: three bytes each."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // 3)


def cut_up(parts: Iterable[str], limits: SegmentLimits = LARGE, flushes: Iterable[int] = ()) -> list[Cut]:
    """All cuts of a text that comes in these parts, each pulled as early as it can be; flushed after some of them."""
    segmenter = Segmenter(limits=limits)
    cuts: list[Cut] = []

    def drain() -> None:
        while (cut := segmenter.next()) is not None:
            cuts.append(cut)

    for number, part in enumerate(parts):
        segmenter.feed(part)
        if number in flushes:
            segmenter.flush()
        drain()
    segmenter.end()
    drain()
    return cuts


def after_warm_up(text: str, limits: SegmentLimits = LARGE) -> list[Cut]:
    return [cut for cut in cut_up([f"{WARM_UP} {text}"], limits) if cut.start >= len(WARM_UP)]


def sizes(cuts: Iterable[Cut], count: Callable[[str], int] = count_tokens) -> list[int]:
    """Tokens of what is spoken: spaces count once, closing quotes not at all."""
    return [count(re.sub(r"\s+", " ", cut.text.strip().rstrip("".join(CLOSERS)))) for cut in cuts]


# -- the rules ---------------------------------------------------------------------------------------------------------


def test_a_sentence_of_a_block_stays_whole() -> None:
    sentence = CLAUSE * 28 + "and so on."  # 255 words
    (cut, *_) = after_warm_up(sentence + " Then more.")
    assert cut.text.strip() == sentence
    assert (cut.boundary, cut.cause) == (Boundary.SENTENCE, CutCause.PUNCTUATION)


def test_a_longer_one_is_cut_window_by_window_until_it_ends() -> None:
    cuts = after_warm_up(CLAUSE * 40 + "and so on. " + CLAUSE * 20 + "to the end. Yes.")
    # Fourteen clauses of nine words fit into a window of 128; then comes a sentence that fits, which is whole again.
    assert sizes(cuts) == [126, 126, 108 + 3, 180 + 3, 1]
    assert [cut.boundary for cut in cuts] == [Boundary.CLAUSE] * 2 + [Boundary.SENTENCE] * 3
    assert all(cut.text.endswith("lazy dog,") for cut in cuts[:2])


def test_the_best_boundary_inside_the_window() -> None:
    words = "lorem ipsum dolor amet "  # four words, none of which opens a phrase
    for before, after, boundary in ((";", "", "clause"), (",", "", "clause"), ("", "because ", "word")):
        cut = after_warm_up(words * 20 + f"lorem{before} {after}" + words * 60 + ".")[0]
        assert cut.text.split() == (words * 20 + f"lorem{before}").split()
        assert (cut.boundary, cut.cause) == (boundary, CutCause.LENGTH)
    text = words * 17 + "lorem; " + words * 10 + "ipsum, " + words * 60 + "."
    assert after_warm_up(text)[0].text.endswith("lorem;")  # between main clauses before between parts of them


def test_without_any_mark_between_words() -> None:
    cuts = after_warm_up("lorem ipsum dolor amet " * 100 + "end.")
    assert sizes(cuts) == [128, 128, 128, 17]
    assert all(cut.text.split()[0] in ("lorem", "ipsum", "dolor", "amet") for cut in cuts)


@pytest.mark.parametrize(
    ("engine", "block", "window", "most", "most_inside"),
    [(1024, 256, 128, 256, 128), (200, 256, 128, 200, 128), (100, 256, 128, 100, 100), (1024, 60, 30, 60, 30)],
)
def test_each_of_the_three_limits(engine: int, block: int, window: int, most: int, most_inside: int) -> None:
    limits = SegmentLimits(max_tokens=engine, count_tokens=count_tokens, block_tokens=block, block_window_tokens=window)
    text = "".join(CLAUSE * count + "so be it. " for count in range(1, 45))
    cuts = after_warm_up(text, limits)
    whole = [size for size, cut in zip(sizes(cuts), cuts, strict=True) if cut.cause is CutCause.PUNCTUATION]
    inside = [size for size, cut in zip(sizes(cuts), cuts, strict=True) if cut.cause is CutCause.LENGTH]
    assert most - 9 < max(whole) <= most
    assert most_inside - 9 < max(inside) <= most_inside


def test_the_first_segments_are_short_all_the_same() -> None:
    grown = sizes(cut_up([CLAUSE * 60 + "."]))
    assert grown[0] <= 7
    assert sum(grown[:3]) <= 40
    assert max(grown) > 100
    flushed = cut_up([WARM_UP, " Well", " and " + CLAUSE * 30], flushes=[1])
    (after,) = (number for number, cut in enumerate(flushed) if cut.cause is CutCause.FLUSH)
    assert sizes(flushed)[after + 1] <= 10


def test_an_engine_of_small_segments_speaks_clauses_whatever_a_block_is() -> None:
    text = WARM_UP + CLAUSE * 40 + "and so on."
    clauses = cut_up([text], SegmentLimits(count_tokens=count_tokens))
    assert max(sizes(clauses)) <= 40
    for block, window in ((256, 16), (4096, 4096), (40, 40)):
        limits = SegmentLimits(count_tokens=count_tokens, block_tokens=block, block_window_tokens=window)
        assert cut_up([text], limits) == clauses
    assert max(sizes(cut_up([text], SegmentLimits(count_tokens=count_tokens, block_tokens=16)))) <= 16


def test_long_words_make_a_sentence_too_long_before_it_has_many_tokens() -> None:
    text = ("counterrevolutionaries' " * 200)[:-1] + "."
    cuts = after_warm_up(text + " Yes.")
    assert all(len(cut.text) <= LONGEST for cut in cuts)
    assert [word for cut in cuts for word in cut.text.split()] == [*text.split(), "Yes."]


def test_no_word_is_torn_behind_very_much_that_is_silent() -> None:
    cuts = cut_up(["☂" * (LONGEST - 3) + "wonderful, isn't it?"])
    assert [cut.text for cut in cuts][:2] == ["☂" * (LONGEST - 3), "wonderful,"]


def test_a_word_that_no_segment_can_hold_is_cut() -> None:
    limits = SegmentLimits(max_tokens=80, count_tokens=lambda text: 3 * len(text))
    cuts = cut_up(["a" * 64 + " bird"], limits)
    assert "".join(cut.text for cut in cuts) == "a" * 64 + " bird"
    assert max(len(cut.text.strip()) for cut in cuts) <= 80 // 3


def test_what_alone_is_more_than_a_window_stands_alone() -> None:
    limits = SegmentLimits(max_tokens=65, count_tokens=len, block_tokens=45, block_window_tokens=16)
    url = "https://example.com/a?b=1"
    assert f"{url} " in [cut.text for cut in cut_up([f"lorem 7 lorem {url} " + "lorem " * 9], limits)]


def test_emoji_are_not_torn_where_they_count() -> None:
    family = "👨‍👩‍👧‍👦"
    cuts = cut_up([family * 400], SegmentLimits(max_tokens=256, count_tokens=pieces_of_bytes))
    assert len(cuts) > 10
    assert all(cut.text.replace(family, "") == "" for cut in cuts)


# -- properties --------------------------------------------------------------------------------------------------------

WORDS = "lorem ipsum dolor wonderful because without bird quick".split()
HANZI = "今天公园散步我们认为因为但是问题复杂了的山水"
SILENT = ["😀", "👨‍👩‍👧", "🇨🇳", "\ud800", "（", "”", "☂"]
MARKS = ["，", "。", "！", "？", "；", "、", "\n", "……"]
ENDS = [" ", " ", " ", " ", ", ", ". ", "! ", "; ", "，", "。", "\n", " “", "” ", " 😀 "]


@dataclass(frozen=True)
class Piece:
    """Part of a text; `said`: plain words, a number or URL, or nothing."""

    text: str
    said: str = ""


WORD = st.builds(lambda word, end: [Piece(word, word), Piece(end)], st.sampled_from(WORDS), st.sampled_from(ENDS))
NUMBER = st.builds(
    lambda text: [Piece(" "), Piece(text, "?"), Piece(" ")], st.sampled_from(["7", "3.14", "1,000", "12:30"])
)
URL = st.just([Piece(" "), Piece("https://example.com/a?b=1", "?"), Piece(" ")])
CHINESE = st.builds(
    lambda text, end: [Piece(text, text), Piece(end)], st.text(HANZI, min_size=1), st.sampled_from(MARKS)
)
OTHER = st.builds(lambda text: [Piece(text)], st.sampled_from(SILENT))
RUN = st.builds(
    lambda words: [Piece(word, word) for word in words], st.lists(st.sampled_from(HANZI), max_size=90)
) | st.builds(
    lambda words: [each for word in words for each in (Piece(word, word), Piece(" "))],
    st.lists(st.sampled_from(WORDS), max_size=60),
)
TEXT = st.lists(WORD | NUMBER | URL | CHINESE | OTHER | RUN, max_size=30).map(
    lambda parts: [p for part in parts for p in part]
)
LIMITS = st.builds(
    lambda most, count, block, window: SegmentLimits(
        max_tokens=most, count_tokens=count, block_tokens=block, block_window_tokens=min(block, window)
    ),
    st.sampled_from([40, 65, 100, 300]),
    st.sampled_from([None, count_tokens, len, pieces_of_bytes]),
    st.integers(16, 300),
    st.integers(16, 300),
)


def written(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


@settings(max_examples=250, deadline=None)
@given(pieces=TEXT, limits=LIMITS)
def test_every_word_is_spoken_once_and_none_is_skipped(pieces: list[Piece], limits: SegmentLimits) -> None:
    text = written(pieces)
    overlap = Overlap(16, count_tokens)
    spoken = []
    at = 0
    for cut in cut_up([text], limits):
        assert cut.start == at < cut.end
        assert text[cut.start : cut.end] == cut.text
        assert text[: cut.start].endswith(overlap.before(cut))
        tokens = normalise(cut)
        assert all(cut.start <= token.start < token.end <= cut.end for token in tokens)
        spoken += [token for token in tokens if token.kind == "word"]
        at = cut.end
    assert at == len(text)
    assert spoken == sorted(spoken, key=lambda token: token.start)
    at = 0
    for piece in pieces:
        start, at = at, at + len(piece.text)
        inside = [token.text for token in spoken if start <= token.start and token.end <= at]
        assert len(inside) == sum(1 for token in spoken if token.start < at and token.end > start)
        if piece.said == "?":
            assert inside
        else:
            assert "".join(inside) == piece.said


@settings(max_examples=250, deadline=None)
@given(pieces=TEXT, limits=LIMITS)
def test_no_segment_exceeds_its_limits(pieces: list[Piece], limits: SegmentLimits) -> None:
    cuts = cut_up([written(pieces)], limits)
    assert all(len(cut.text) <= limits.segment_chars for cut in cuts)
    if limits.count_tokens is None or not limits.whole_sentences:
        return
    for cut, size in zip(cuts, sizes(cuts, limits.count_tokens), strict=True):
        alone = len(cut.text.split()) <= 1  # one word may have more tokens than a block, not than the engine takes
        assert size <= (limits.max_tokens if alone else limits.segment_tokens)
        if cut.cause is CutCause.LENGTH and not alone:
            assert size <= limits.window_tokens


@settings(max_examples=250, deadline=None)
@given(pieces=TEXT, limits=LIMITS, data=st.data())
def test_cuts_depend_on_text_and_flushes_alone(pieces: list[Piece], limits: SegmentLimits, data: st.DataObject) -> None:
    text = written(pieces)
    whole = cut_up([text], limits)
    assert cut_up(text, limits) == whole
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    parts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert cut_up(parts, limits) == whole
    flushed = Segmenter(limits=limits)  # nothing pulled before the end, against all pulled at once
    for part in parts:
        flushed.feed(part)
        flushed.flush()
    flushed.end()
    late = []
    while (cut := flushed.next()) is not None:
        late.append(cut)
    assert cut_up(parts, limits, range(len(parts))) == late


# -- cost --------------------------------------------------------------------------------------------------------------

ENDLESS = {
    "hanzi": "我们认为这个问题并没有大家想象的那么复杂",
    "numerals": "一二三",
    "words": "lorem ipsum ",
    "letters": "a",
    "digits": "1",
    "symbols": "☂",
    "commas": "好，",
    "stops": "e.g. ",
    "spaces": "word" + " " * 5000,
    "one word in symbols": "word, " + "☂" * 3000,
}


@pytest.mark.parametrize(
    ("unit", "count"),
    [*((unit, count_tokens) for unit in ENDLESS.values()), (ENDLESS["symbols"], len), (ENDLESS["words"], len)],
    ids=[*ENDLESS, "symbols that count", "letters that count"],
)
def test_a_sentence_without_end_takes_linear_time(unit: str, count: Callable[[str], int]) -> None:
    limits = SegmentLimits(max_tokens=300, count_tokens=count)

    def seconds(chars: int) -> float:
        text = (unit * (chars // len(unit) + 1))[:chars]
        best = float("inf")
        for _ in range(2):
            started = time.process_time()
            assert sum(len(cut.text) for cut in cut_up([text], limits)) == chars
            best = min(best, time.process_time() - started)
        return best

    short = seconds(8_000)
    assert seconds(32_000) < 8 * short + 0.01  # 4 where the cost is linear, 16 where it is quadratic


def test_a_sentence_without_end_takes_bounded_memory() -> None:
    segmenter = Segmenter(limits=LARGE)
    part = ENDLESS["hanzi"] * 50
    tracemalloc.start()
    for _ in range(12):
        segmenter.feed(part)
        while segmenter.next() is not None:
            pass
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 200_000  # about 35,000; a place kept for every character would be 5 million
