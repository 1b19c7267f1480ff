"""The segmenter: where text is cut, that it never depends on how the text arrived, and that it stays cheap."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from server.text.segmenter import Segmenter, SegmentLimits
from server.text.tokens import Boundary, Cut, CutCause


def drain(segmenter: Segmenter) -> list[Cut]:
    cuts = []
    while (cut := segmenter.next()) is not None:
        cuts.append(cut)
    return cuts


def cut_up(parts: Iterable[str], limits: SegmentLimits | None = None) -> list[Cut]:
    """All cuts of a text that arrives in these parts; each is pulled as early as it can be."""
    segmenter = Segmenter(limits=limits)
    cuts: list[Cut] = []
    for part in parts:
        segmenter.feed(part)
        cuts += drain(segmenter)
    segmenter.end()
    cuts += drain(segmenter)
    assert segmenter.pending == 0
    return cuts


def texts(cuts: Sequence[Cut]) -> list[str]:
    return [cut.text for cut in cuts]


# -- where it cuts -----------------------------------------------------------------------------------------------------

EXAMPLES = [
    # Sentences and first clauses.
    ("你好，很高兴认识你。", ["你好，", "很高兴认识你。"]),
    ("Hello, world. How are you?", ["Hello,", " world.", " How are you?"]),
    ("好。好的。是。", ["好。", "好的。", "是。"]),
    ("Is it 3:30? Yes.", ["Is it 3:30?", " Yes."]),
    ("Sure! Here it is.", ["Sure!", " Here it is."]),
    # Closing marks go to the front of the next segment; into the same one where the next character was needed anyway.
    ("他说：“OK，没问题！”然后走了。", ["他说：", "“OK，没问题！", "”然后走了。"]),
    ('he said "Yes." Then', ['he said "Yes."', " Then"]),
    ("再见！！！", ["再见！", "！！"]),
    # Numbers, decimals, times, lists of digits.
    ("我有1,000,000个，还有12:30，3.14", ["我有1,000,000个，", "还有12:30，3.14"]),
    ("Pay $1,234.56. Now.", ["Pay $1,234.56.", " Now."]),
    ("会议12：30开始。", ["会议12：30开始。"]),
    ("It was May 1987. Then 3.", ["It was May 1987.", " Then 3."]),
    ("Due March 14th, 2025. Pay.", ["Due March 14th, 2025.", " Pay."]),
    # Abbreviations, initials, addresses.
    ("Dr. Smith and Mrs. Li met. Ok.", ["Dr. Smith and Mrs. Li met.", " Ok."]),
    ("Use tools, e.g. this, i.e. that.", ["Use tools,", " e.g. this,", " i.e. that."]),
    ("J. K. Rowling wrote it.", ["J. K. Rowling wrote it."]),
    ("U.S. troops left. Then", ["U.S. troops left.", " Then"]),
    ("Cats, dogs, etc. and more.", ["Cats,", " dogs,", " etc. and more."]),
    ("Cats etc. The end.", ["Cats etc.", " The end."]),
    ("See No. 5 now. No. I go.", ["See No. 5 now.", " No.", " I go."]),
    ("At 5 p.m. we left. Bye.", ["At 5 p.m. we left.", " Bye."]),
    ("Visit http://a.b/c?d=1,2. Or not.", ["Visit http://a.b/c?d=1,2.", " Or not."]),
    ("请打开https://example.com/a?b=1,2，然后登录。", ["请打开https://example.com/a?b=1,2，", "然后登录。"]),
    ("Mail a@b.co, or call.", ["Mail a@b.co,", " or call."]),
    ("Version v1.2.3 is out. Yes.", ["Version v1.2.3 is out.", " Yes."]),
    ("AT&amp;T won. AT&T lost.", ["AT&amp;T won.", " AT&T lost."]),
    ("is 3 != 4? yes", ["is 3 != 4?", " yes"]),
    # Ellipses and dashes stay whole.
    ("好……那就这样吧。", ["好……", "那就这样吧。"]),
    ("Wait... what?", ["Wait...", " what?"]),
    ("我——不知道。", ["我——", "不知道。"]),
    # Lines, lists, headings; a wrapped line of English is no end.
    ("# Title\n1. Milk\n2. Eggs\n", ["# Title\n", "1. Milk\n", "2. Eggs\n"]),
    ("床前明月光\n疑是地上霜\n", ["床前明月光\n", "疑是地上霜\n"]),
    ("A long, long line, which somebody had wrapped\nby hand. Ok.", None),
    # Without punctuation: at a word boundary.
    ("The quick brown fox jumps over the lazy dog.", ["The quick brown fox jumps ", "over the lazy dog."]),
    ("我认为这个问题其实并没有大家想象的那么复杂啊", ["我认为这个问题其实并没有大家想象的", "那么复杂啊"]),
    # Small clauses are gathered.
    ("Hello, a, b, c, d, e, f, g.", ["Hello,", " a, b,", " c, d, e,", " f, g."]),
    ("苹果、香蕉、梨都好吃。", ["苹果、香蕉、梨都好吃。"]),
    # Nothing to say.
    ("）", ["）"]),
    ("", []),
]


@pytest.mark.parametrize(("text", "expected"), EXAMPLES)
def test_examples_whole_and_one_character_at_a_time(text: str, expected: list[str] | None) -> None:
    cuts = cut_up([text])
    assert cut_up(text) == cuts
    if expected is None:
        assert Boundary.PARAGRAPH not in [cut.boundary for cut in cuts]
    else:
        assert texts(cuts) == expected


@pytest.mark.parametrize(
    ("text", "boundaries"),
    [
        ("你好，好。", [Boundary.CLAUSE, Boundary.SENTENCE]),
        ("标题\n好", [Boundary.PARAGRAPH, Boundary.SENTENCE]),
        ("The quick brown fox jumps over the lazy dog.", [Boundary.WORD, Boundary.SENTENCE]),
        ("Wait... ok?", [Boundary.CLAUSE, Boundary.SENTENCE]),
    ],
)
def test_boundaries(text: str, boundaries: list[Boundary]) -> None:
    assert [cut.boundary for cut in cut_up([text])] == boundaries


def test_causes() -> None:
    causes = [cut.cause for cut in cut_up(["So it was, the quick brown fox jumps over the lazy dog"])]
    assert causes[0] is CutCause.PUNCTUATION
    assert set(causes[1:-1]) == {CutCause.LENGTH}
    assert causes[-1] is CutCause.END


def test_language_follows_the_letters_then_the_text_before_then_the_hint() -> None:
    assert [cut.language for cut in cut_up(["Hello. 1987. 你好。123。"])] == ["en", "en", "zh", "zh"]
    assert [cut.language for cut in cut_up(["我用iPhone15拍了3张照片。"])] == ["zh"]
    segmenter = Segmenter(language="en")
    segmenter.feed("1987。")
    cut = segmenter.next()
    assert cut is not None
    assert cut.language == "en"


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("你好，世界", 3),  # the comma itself is enough
        ("你好。”", 3),
        ("Hello, world", 6),
        ("Hello! You", 6),
        ("Title\nmore", 6),
        ("Hello. You", 7),  # "Hello.com" would go on
        ("我有3，还有", 5),  # "3，000" would go on
        ("Pi is 3.14, yes", 12),
        ("好……那", 4),
    ],
)
def test_first_cut_comes_with_the_character_that_makes_it_certain(text: str, needed: int) -> None:
    segmenter = Segmenter()
    for count, char in enumerate(text, 1):
        segmenter.feed(char)
        if segmenter.next() is not None:
            assert count == needed
            return
    pytest.fail("never cut")


# -- limits ------------------------------------------------------------------------------------------------------------


def test_long_clauses_respect_the_token_limit() -> None:
    text = "今天天气非常好我们一起去公园散步然后回家吃饭" * 20
    for cut in cut_up([text], SegmentLimits(max_tokens=12, first_max_chars=10)):
        assert len(cut.text) <= 12


def test_count_tokens_of_the_engine_is_used() -> None:
    limits = SegmentLimits(max_tokens=20, count_tokens=len)
    assert all(len(cut.text.replace(" ", "")) <= 20 for cut in cut_up(["lorem ipsum dolor sit amet " * 20], limits))


def test_a_run_without_any_break_is_cut_hard() -> None:
    cuts = cut_up(["a" * 10_000])
    assert max(len(cut.text) for cut in cuts) <= 600
    assert "".join(texts(cuts)) == "a" * 10_000


def test_sounds_written_one_by_one_stay_together() -> None:
    for before in range(20):
        cuts = texts(cut_up(["我" * before + "[h][ǎo]" + "说得很慢" * 8]))
        assert len(cuts) > 1
        assert any("[h][ǎo]" in cut for cut in cuts), cuts


def test_emoji_sequences_are_never_torn() -> None:
    family = "👨‍👩‍👧‍👦"
    assert all(cut.text.replace(family, "") == "" for cut in cut_up([family * 1500]))


def test_impossible_limits_are_refused() -> None:
    for wrong in ({"max_tokens": 0}, {"first_max_chars": 0}, {"first_max_words": 0}, {"clause_tokens": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            replace(SegmentLimits(), **wrong)  # type: ignore[arg-type]  # names and values from a table
    with pytest.raises(ValueError, match="max_chars"):
        SegmentLimits(max_chars=10)


# -- flushes -----------------------------------------------------------------------------------------------------------

SOFT = [
    ("The hall opened in May 1987.", True),
    ("Price is 3.", False),
    ("I met Dr.", False),
    ("It costs $19.99.", True),
    ("你好", False),
    ("你好吗", True),
    ("你好。", True),
    ("我们走，", True),
    ("There are 1,", False),
    ("It is 12:", False),
    ("Wait...", True),
    ("He said: “Go.”", True),
    ("Hello world", False),
    ("see http://a.b/c?", False),
    ("Born in Jan.", False),
    ("I said no.", True),
    ("", False),
    ("）", False),
]


@pytest.mark.parametrize(("text", "complete"), SOFT)
def test_soft_flush_speaks_what_looks_complete(text: str, complete: bool) -> None:
    segmenter = Segmenter()
    segmenter.feed("Ok then. ")
    drain(segmenter)
    segmenter.feed(text)
    done = "".join(texts(drain(segmenter)))
    effect = segmenter.flush(soft=True)
    spoken = done + "".join(texts(drain(segmenter)))
    assert (text in spoken and bool(text.strip("）"))) is complete
    if effect is not None:
        assert complete


def test_soft_flush_is_not_repeated() -> None:
    segmenter = Segmenter()
    segmenter.feed("Open since 1987.")
    assert segmenter.flush(soft=True) is CutCause.SOFT_FLUSH
    assert segmenter.flush(soft=True) is None
    assert [(cut.text, cut.cause) for cut in drain(segmenter)] == [("Open since 1987.", CutCause.SOFT_FLUSH)]
    assert segmenter.flush(soft=True) is None


def test_hard_flush_cuts_anywhere() -> None:
    segmenter = Segmenter()
    segmenter.feed("Hello wor")
    assert segmenter.flush() is CutCause.FLUSH
    segmenter.feed("ld. Yes. ")
    assert [(cut.text, cut.cause) for cut in drain(segmenter)] == [
        ("Hello wor", CutCause.FLUSH),
        ("ld.", CutCause.PUNCTUATION),
        (" Yes.", CutCause.PUNCTUATION),
    ]
    assert segmenter.position == len("Hello world. Yes.")
    assert segmenter.pending == 1


def test_a_lone_closing_bracket_never_speaks_alone() -> None:
    segmenter = Segmenter()
    for part in ("你好，请稍等。", "The hall opened in May 1987.", "）"):
        segmenter.feed(part)
        drain(segmenter)
        segmenter.flush(soft=True)
    cuts = drain(segmenter)
    assert cuts == []  # the bracket waits for what follows
    segmenter.end()
    assert texts(drain(segmenter)) == ["）"]


def test_no_text_after_the_end() -> None:
    segmenter = Segmenter()
    segmenter.end()
    segmenter.end()
    assert segmenter.next() is None
    with pytest.raises(ValueError, match="after the end"):
        segmenter.feed("x")


# -- properties --------------------------------------------------------------------------------------------------------

FRAGMENTS = (
    "你好 今天天气 的 了 ， 。 ！ ？ 、 ： ； …… — “ ” （ ） . , : ; ! ? - ' \" ( ) / Hello world Dr etc U.S. e.g 1 23"
    " 2025 3.14 1,000 12:30 http:// www. a.b @ & &amp; <b> < $ % _ * ** # ` | \\ é １ ． 年 月 第 March 14th 🇨🇳"
    " 因为 所以 但是"
)
OTHERS = ["👨\u200d👩\u200d👧", " ", "  ", "\n", "\r\n", "\t", "\u200d", "\u0301"]
TEXT = st.lists(st.sampled_from([*FRAGMENTS.split(), *OTHERS]), max_size=60).map("".join) | st.text(max_size=80)


@settings(max_examples=400, deadline=None)
@given(text=TEXT, data=st.data())
@example(text="1,000.50 and a.b.c/d?e", data=None)
@example(text="走 , 3.5anbanana着因为所以 所以如果a喝山水。", data=None)  # cut in time, before what is not there yet
def test_cuts_do_not_depend_on_the_parting_into_messages(text: str, data: st.DataObject | None) -> None:
    whole = cut_up([text])
    assert cut_up(text) == whole  # one character at a time
    if data is not None:
        marks = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
        parts = [text[a:b] for a, b in zip([0, *marks], [*marks, len(text)], strict=True)]
        assert cut_up(parts) == whole
    segmenter = Segmenter()  # nothing pulled before the end
    segmenter.feed(text)
    segmenter.end()
    assert drain(segmenter) == whole


@settings(max_examples=200, deadline=None)
@given(text=TEXT)
def test_cuts_tile_the_text(text: str) -> None:
    at = 0
    for cut in cut_up([text]):
        assert cut.start == at < cut.end
        assert cut.text == text[cut.start : cut.end]
        at = cut.end
    assert at == len(text)


@settings(max_examples=200, deadline=None)
@given(text=TEXT, flushes=st.lists(st.tuples(st.integers(0, 80), st.booleans()), max_size=4))
@example(text="你好你好你好的的的etc，，", flushes=[(13, True), (13, False)])  # soft, then hard
def test_flushes_act_alike_whenever_cuts_are_pulled(text: str, flushes: list[tuple[int, bool]]) -> None:
    runs = []
    for eager in (True, False):
        segmenter = Segmenter()
        cuts: list[Cut] = []
        for at, char in enumerate(text):
            segmenter.feed(char)
            cuts += drain(segmenter) if eager else []
            for position, soft in flushes:
                if position == at:
                    segmenter.flush(soft=soft)
        segmenter.end()
        runs.append(cuts + drain(segmenter))
    assert runs[0] == runs[1]
    assert "".join(texts(runs[0])) == text


PROTECTED = [
    "3.14", "1,000,000", "$19.99", "12:30", "9：30", "12.5%", "v1.2.3", "192.168.1.1", "2025-03-14", "https://a.b/c?d=1,2",
    "www.example.com/x", "me@example.co.uk", "snake_case", "AT&T", "e.g.", "U.S.", "Dr. Wu", "...", "……", "——", "don't",
    "well-known", "C++", "1/2", "-5°C", "👨‍👩‍👧‍👦", "🇨🇳", "e\u0301", "&amp;", "example.com/a,b",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    units=st.lists(st.sampled_from(PROTECTED), min_size=1, max_size=12),
    fillers=st.lists(
        st.sampled_from([" ", " and ", "，", "。", "的", " the lazy dog ", ", ", "! ", "今天"]), min_size=13
    ),
)
def test_never_inside_what_belongs_together(units: list[str], fillers: list[str]) -> None:
    text, inner = "", set()
    for unit, filler in zip(units, fillers, strict=False):
        text += filler
        inner |= set(range(len(text) + 1, len(text) + len(unit)))
        text += unit
    text += " "
    assert not inner & {cut.end for cut in cut_up(text)}


# -- cost --------------------------------------------------------------------------------------------------------------


def test_two_million_characters_in_bounded_time_and_memory() -> None:
    text = "今天天气不错，我们一起去公园散步吧。The quick brown fox, jumps over 1,000 dogs. " * 33_000
    segmenter = Segmenter()
    started = time.process_time()
    longest = 0.0
    total = 0
    for at in range(0, 2_000_000, 16_384):
        segmenter.feed(text[at : at + 16_384])
        while True:
            before = time.process_time()
            cut = segmenter.next()
            longest = max(longest, time.process_time() - before)
            if cut is None:
                break
            total += len(cut.text)
    assert total + segmenter.pending >= 2_000_000
    assert segmenter.pending < 200
    assert time.process_time() - started < 60  # about 5 s alone on one core
    assert longest < 0.5  # about 0.3 ms


@pytest.mark.parametrize("unit", ["a", " ", "9", "-", "👨‍👩", ".", "，", "\n", "<a", "http://a"])
def test_hostile_runs_cost_linear_time(unit: str) -> None:
    started = time.process_time()
    assert "".join(texts(cut_up([unit * (60_000 // len(unit))]))) == unit * (60_000 // len(unit))
    assert time.process_time() - started < 10
