"""The normaliser: what is said for what is written, in Chinese, English and both; it never fails and is quick."""

import re
import subprocess
import sys
import time
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from server.text.clean import clean
from server.text.lexicon import Lexicon
from server.text.normaliser import normalise, warm_up
from server.text.segmenter import Segmenter
from server.text.tokens import Boundary, Cut, CutCause, Language, Token


def tokens_of(
    text: str, language: Language = "zh", start: int = 0, lexicon: dict[str, str] | None = None
) -> list[Token]:
    cut = Cut(start, start + len(text), text, Boundary.SENTENCE, CutCause.END, language)
    return list(normalise(cut, lexicon=lexicon))


def spoken(text: str, language: Language = "zh", lexicon: dict[str, str] | None = None) -> str:
    """The tokens as one string: Hanzi joined, Latin words parted by spaces, marks after what they follow."""
    out, latin = "", False
    for token in tokens_of(text, language, lexicon=lexicon):
        if token.kind == "word" and out and (latin or token.language == "en"):
            out += " "
        out += token.text
        latin = token.language == "en"
    return out


CHINESE = [
    ("你好，很高兴认识你。", "你好,很高兴认识你."),
    ("2025年3月14日上午9点30分，会议准时开始。", "二零二五年三月十四日上午九点三十分,会议准时开始."),
    ("这个季度的销售额增长了12.5%，达到3.6亿元。", "这个季度的销售额增长了百分之十二点五,达到三点六亿元."),
    ("我用iPhone15拍了3张照片，花了￥99.5。", "我用 iPhone 十五拍了三张照片,花了九十九点五元."),
    ("请拨打电话13800138000联系客服。", "请拨打电话幺三八零零幺三八零零零联系客服."),
    ("我的号码是13800138000，谢谢", "我的号码是幺三八零零幺三八零零零,谢谢"),
    ("他买了一个苹果，两斤香蕉，还有三百二十克奶酪。", "他买了一个苹果,两斤香蕉,还有三百二十克奶酪."),
    ("他说：“OK，没问题！”", "他说: OK, 没问题!"),
    # Numbers.
    ("1,000人", "一千人"),
    ("2个，22个，2米，2月，第2个，2点，2万", "两个,二十二个,两米,二月,第二个,两点,两万"),
    ("10000、20000、1010、105、120000", "一万、两万、一千零一十、一百零五、十二万"),
    ("-3度，3.14，007", "负三度,三点一四,零零七"),
    ("12345678元，1234567", "一千二百三十四万五千六百七十八元,一二三四五六七"),
    ("100多人，100+人，约50，~50", "一百多人,一百多人,约五十,约五十"),
    ("1/3，2:1，3-5天，比分3-2", "三分之一,二比一,三到五天,比分三比二"),
    ("3%-5%，50‰，±5，≥10", "百分之三到百分之五,千分之五十,正负五,不少于十"),
    ("3*4=12，1+1=2，10-5=5", "三乘以四等于十二,一加一等于二,十减五等于五"),
    # Dates and times.
    ("1990年代，98年，80后，10年", "一九九零年代,九八年,八零后,十年"),
    ("2020-2025年，2024-2025赛季", "二零二零到二零二五年,二零二四到二零二五赛季"),
    ("2025 年，在1987出生，到2000人", "二零二五年,在一九八七出生,到两千人"),
    ("2025-03-14和2025/3/14", "二零二五年三月十四日和二零二五年三月十四日"),
    ("9:00，9:05，15:30", "九点,九点零五分,十五点三十分"),
    ("8:00-9:30，1月-3月", "八点到九点三十分,一月到三月"),
    ("9:30 pm", "下午九点三十分"),
    # Money and units.
    ("￥99.5元，$5，€20，$1.5万", "九十九点五元,五美元,二十欧元,一点五万美元"),
    ("¥1,234.50，100USD，$3.5 million", "一千二百三十四点五元,一百美元,三百五十万美元"),
    ("100元/人", "一百元每人"),
    ("20kg，500ml，3m²，5-10kg", "二十千克,五百毫升,三平方米,五到十千克"),
    ("220V，2.4GHz，10mAh，5GB", "二百二十伏,二点四吉赫,十毫安时,五 GB"),
    ("-5°C，37.5℃，100°F", "零下五摄氏度,三十七点五摄氏度,华氏一百度"),
    # Phones, ids, addresses, names.
    ("电话555-0123，010-12345678", "电话五五五,零幺二三,零幺零,幺二三四五六七八"),
    ("拨打110，房间302", "拨打幺幺零,房间三零二"),
    ("https://example.com/a?b=1", "example 点 com 斜杠 a"),
    ("邮箱a@b.co。", "邮箱 a 艾特 b 点 co."),
    ("v1.2.3版，192.168.1.1", "V 一点二点三版,一九二点一六八点一点一"),
    ("snake_case变量，C++语言，main.py", "snake case 变量, C plus plus 语言, main 点 P.Y."),
    ("GPT-4很强，H2O，5G网络，RTX4090", "GPT 四很强, H 二 O, 五 G 网络, RTX 四零九零"),
    ("ABC公司的CEO，T恤", "ABC 公司的 CEO, T 恤"),
    ("请打开Windows系统的Settings", "请打开 Windows 系统的 Settings"),
    ("Windows 10 Pro很好", "Windows ten Pro 很好"),
    # Characters.
    ("１２３，ＡＢＣ，①，Ⅳ章", "一百二十三, ABC, 一,四章"),
    ("龍馬精神，〇，々", "龍馬精神,〇,々"),
    ("他/她，α粒子，x²", "他、她, alpha 粒子, x 平方"),
    ("好😀的👨‍👩‍👧！", "好的!"),
    ("好\u200b的\ufeff吗", "好的吗"),
    # Markdown.
    ("**加粗** `code` # 标题", "加粗 code 标题"),
    ("# 标题", "标题"),
    ("- 第一\n- 第二", "第一第二"),
    ("| 名 | 值 |", "名,值,"),
    ("|---|:-:|", ""),
    ("[链接](https://a.b/c)和![图](x.png)", "链接和图"),
    ("> 引用", "引用"),
    ("```python", ""),
    # Nothing to say.
    ("", ""),
    ("   ", ""),
    ("。。。！", ""),
    ("……", ""),
    ("）", ""),
    ("😀🎉", ""),
    ("***", ""),
    ("\u200b\ufeff", ""),
]

ENGLISH = [
    ("Hello, nice to meet you.", "Hello, nice to meet you."),
    ("The weather is lovely today, so let's go.", "The weather is lovely today, so let's go."),
    ("The meeting starts at 9:30 am on March 14th, 2025.",
     "The meeting starts at nine thirty A.M. on March fourteenth twenty twenty five."),
    ("Dr. Smith paid $19.99 for 3 kg of apples, about 12.5% more.",
     ("Doctor Smith paid nineteen dollars and ninety nine cents for three kilograms of apples, about twelve point five"
     " percent more.")),
    ("NASA launched the rocket on 10/12/2019 from Cape Canaveral, FL.",
     "NASA launched the rocket on October twelfth twenty nineteen from Cape Canaveral, FL."),
    ("Please call 555-0123 for more information.",
     "Please call five five five, zero one two three for more information."),
    ("Why is the sky blue? Because.", "Why is the sky blue? Because."),
    # Numbers.
    ("1,000 people and 10,000,000", "one thousand people and ten million"),
    ("1,234.56, 0.5, .5, -3", ("one thousand two hundred thirty four point five six, zero point five, zero point five,"
     " minus three")),
    ("1st, 2nd, 23rd, 100th", "first, second, twenty third, one hundredth"),
    ("1/2 cup, 3/4 mile, 2 1/2 hours", "one half cup, three quarters mile, two and one half hours"),
    ("pages 3-5, 2:1, 100+ items", "pages three to five, two to one, one hundred plus items"),
    ("50%, 3-5%, ~50", "fifty percent, three to five percent, about fifty"),
    ("a + b = c, 2 * 3, 3*4=12", "a plus b equals c, two times three, three times four equals twelve"),
    ("007 and 1234567", "zero zero seven and one two three four five six seven"),
    ("#1, No. 5, Fig. 2, Room 101", "number one, number five, figure two, Room one oh one"),
    # Years, dates, times.
    ("He was born in 1987.", "He was born in nineteen eighty seven."),
    ("1987 people", "one thousand nine hundred eighty seven people"),
    ("in 1776, from 2010 to 2020, in 2005",
     "in seventeen seventy six, from twenty ten to twenty twenty, in two thousand five"),
    ("the 1990s and the 80s", "the nineteen nineties and the eighties"),
    ("14 March 2025, Jan. 5", "the fourteenth of March twenty twenty five, January fifth"),
    ("2025-03-14", "March fourteenth twenty twenty five"),
    ("at 9:00, 14:30, 9pm", "at nine o'clock, fourteen thirty, nine P.M."),
    ("9:30-10:30", "nine thirty to ten thirty"),
    # Money and units.
    ("$5, €20, £3.50, ¥100", "five dollars, twenty euros, three pounds and fifty pence, one hundred yuan"),
    ("$1.50, $3.5 million, $5k, 100 USD",
     "one dollar and fifty cents, three point five million dollars, five thousand dollars, one hundred U.S. dollars"),
    ("60 mph, 16 GB, 2.4GHz, 5-10 kg", ("sixty miles per hour, sixteen gigabytes, two point four gigahertz, five to ten"
     " kilograms")),
    ("-5°C and 1 km", "minus five degrees Celsius and one kilometer"),
    # Phones, addresses, names.
    ("+1 (555) 123-4567", "plus one, five five five, one two three, four five six seven"),
    ("http://example.com/a/b?c=d#e, done", "example dot com slash a slash b, done"),
    ("See www.google.com.", "See W.W.W. dot google dot com."),
    ("a@b.co", "a at b dot co"),
    ("snake_case v1.2.3", "snake case version one point two point three"),
    ("b=1", "b equals one"),
    ("C++, C#, .NET, AT&T, R&D", "C plus plus, C sharp, dot net, A.T. and T, R and D"),
    ("GPT-4, H2O, MP3, COVID-19, UTF-8, F-16", "GPT four, H two O, MP three, COVID nineteen, UTF eight, F sixteen"),
    ("don’t, it's, John's, well-known Wi-Fi", "don't, it's, John's, well-known Wi-Fi"),
    ("Mr. Jones vs. St. John on Main St.", "Mister Jones versus Saint John on Main Street."),
    ("e.g. this; i.e. that, etc.", "for example this; that is that, et cetera."),
    ("U.S. and J. K. Rowling", "U.S. and J. K. Rowling"),
    ("done.Next", "done. Next"),
    ("Python3.11, a Ph.D. now", "Python three point eleven, a P.H.D. now"),
    ("Wait... what?!", "Wait… what?"),
    ("café, naïve, Привет, α", "cafe, naive, Privet, alpha"),
    ("<b>hi</b><br>there &amp; you", "hi, there and you"),
    ("**bold** *it* __b__ ~~s~~ `code`", "bold it b s code"),
    ("- [x] done", "done"),
    ("/path/to, and/or", "path to, and or"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), CHINESE)
def test_chinese(text: str, expected: str) -> None:
    assert spoken(text) == expected


@pytest.mark.parametrize(("text", "expected"), ENGLISH)
def test_english(text: str, expected: str) -> None:
    assert spoken(text, "en") == expected


def test_an_address_is_one_word() -> None:
    address = "john.smith_99@mail.example.com"
    tokens = tokens_of(f"Write to {address}, please", "en")
    assert " ".join(t.text for t in tokens) == (
        "Write to john dot smith ninety nine at mail dot example dot com , please"
    )
    assert {(t.start, t.end) for t in tokens[2:-2]} == {(9, 9 + len(address))}


def test_spans_point_at_the_source() -> None:
    text = "涨了12.5%，OK"
    got = [(token.text, token.start, token.end) for token in tokens_of(text, start=100)]
    assert got == [
        ("涨", 100, 101),
        ("了", 101, 102),
        *[(hanzi, 102, 107) for hanzi in "百分之十二点五"],
        (",", 107, 108),
        ("OK", 108, 110),
    ]
    link = tokens_of("[a](http://x.y/z) b", "en")
    assert [(token.text, token.start, token.end) for token in link] == [("a", 1, 2), ("b", 18, 19)]


def test_languages_and_kinds_of_tokens() -> None:
    assert [(t.text, t.language, t.kind) for t in tokens_of("好，OK!")] == [
        ("好", "zh", "word"),
        (",", "zh", "mark"),
        ("OK", "en", "word"),
        ("!", "en", "mark"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CosyStream很好", "cozy stream 很好"),
        ("行长说", "航掌说"),
        ("他是行长，老行长", "他是航掌,老航掌"),
        ("xCosyStream", "xCosyStream"),
        ("AB和A", "三和 one"),
    ],
)
def test_lexicon(text: str, expected: str) -> None:
    lexicon = {"CosyStream": "cozy stream", "行长": "航掌", "A": "one", "AB": "3", "": "never"}
    assert spoken(text, lexicon=lexicon) == expected


def test_lexicon_tokens_keep_the_span_of_what_was_written() -> None:
    got = tokens_of("请用CosyStream。", lexicon={"CosyStream": "cozy stream"})
    assert [(token.text, token.start, token.end) for token in got[2:4]] == [("cozy", 2, 12), ("stream", 2, 12)]


def _matched_by_pattern(forms: list[str], text: str, at: int) -> str | None:
    """What the rules of a lexicon say, written as a regular expression."""
    alternatives = []
    for form in sorted(forms, key=len, reverse=True):
        start = "(?<![A-Za-z0-9])" if re.match("[A-Za-z0-9]", form) else ""
        end = "(?![A-Za-z0-9])" if re.search(r"[A-Za-z0-9]\Z", form) else ""
        alternatives.append(start + re.escape(form) + end)
    match = re.compile("|".join(alternatives)).match(text, at)
    return match.group() if match else None


@settings(max_examples=300, deadline=None)
@given(
    forms=st.lists(st.text("aB1好的.", min_size=1, max_size=4), min_size=1, max_size=8),
    text=st.text("aB1好的.", min_size=1, max_size=12),
)
def test_the_longest_form_that_fits_is_found(forms: list[str], text: str) -> None:
    lexicon = Lexicon(dict.fromkeys(forms, "x"))
    for at in range(len(text)):
        assert lexicon.find(text, at) == _matched_by_pattern(forms, text, at)


@pytest.mark.parametrize(
    ("forms", "text"),
    [
        ([f"{n:04}{'x' * 196}" for n in range(1000)], "0500xxxx 12, 好" * 150),
        (["我" * (n % 199 + 1) + chr(0x4E00 + n // 199) for n in range(1000)], "我" * 2000),
        (["(" * n for n in range(1, 201)], "((((,)" * 330),
    ],
    ids=["equal ends", "near misses", "one inside the other"],
)
def test_a_large_lexicon_costs_little(forms: list[str], text: str) -> None:
    lexicon = dict.fromkeys(forms, "很" * 200)
    started = time.process_time()
    tokens_of(text, lexicon=lexicon)
    assert time.process_time() - started < 0.12  # about 20 ms; as one regular expression, 150 ms to compile it alone
    started = time.process_time()
    for _ in range(100):
        tokens_of("今天", lexicon=lexicon)
    assert (time.process_time() - started) / 100 < 0.0005  # the index is kept


def test_a_lexicon_cannot_make_hours_of_speech() -> None:
    told = tokens_of("(" * 2000, lexicon={"(": "很" * 200})
    assert len(told) == 2000


def test_two_lexicons_are_not_mixed_up() -> None:
    for reading in ("一", "二", "三"):
        assert spoken("甲", lexicon={"甲": reading}) == reading


MARKS = frozenset({"[breath]", "[h]", "[ǎo]", "[HH]", "[AH0]", "<strong>", "</strong>"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("他[breath]说", ["他", "[breath]", "说"]),
        ("你[h][ǎo]吗", ["你", "[h][ǎo]", "吗"]),
        ("say [HH][AH0] [HH]", ["say", "[HH][AH0]", "[HH]"]),
        ("很<strong>好</strong>", ["很", "<strong>", "好", "</strong>"]),
        ("好[ǎo]", ["好", "[ǎo]"]),  # as some keyboards write it
        ("看[这里](https://a.b/[h])", ["看", "这", "里"]),
        ("[cough]<b>好</b>", ["cough", "好"]),  # not among this engine's
        ("</strong>", []),
        ("<|endofprompt|>", ["endofprompt"]),
        ("﷐[h]﷐ 3", ["[h]", "三"]),
    ],
)
def test_what_an_engine_reads_besides_words_stays_as_it_was_written(text: str, expected: list[str]) -> None:
    tokens = normalise(Cut(5, 5 + len(text), text, Boundary.SENTENCE, CutCause.END, "zh"), markup=MARKS)
    assert [token.text for token in tokens] == expected
    for token in tokens:
        if token.text in MARKS:
            assert unicodedata.normalize("NFC", text[token.start - 5 : token.end - 5]) == token.text


def test_a_lexicon_may_give_marks_of_the_engine() -> None:
    cut = Cut(0, 3, "说好吗", Boundary.SENTENCE, CutCause.END, "zh")
    tokens = normalise(cut, lexicon={"好": "[h][ǎo]"}, markup=MARKS)
    assert [(token.text, token.start, token.end) for token in tokens] == [("说", 0, 1), ("[h][ǎo]", 1, 2), ("吗", 2, 3)]


def test_marks_are_nothing_to_an_engine_that_reads_none() -> None:
    assert spoken("他[breath]说<strong>好</strong>") == "他 breath 说好"


def test_a_pair_of_markup_split_over_two_segments() -> None:
    segmenter = Segmenter()
    segmenter.feed("这是**很重要，请**注意。看[这里，好](https://a.b/c)。")
    segmenter.end()
    words = []
    while (cut := segmenter.next()) is not None:
        words += [token.text for token in normalise(cut) if token.kind == "word"]
    assert "".join(words) == "这是很重要请注意看这里好"


FRAGMENTS = (
    "好 的 一 3 12 2025 1,000 3.14 : - ~ / $ ¥ % °C kg km/h @ # * ** _ ` [ ] ( ) | > < & &amp; &#0; <b> http:// www."
    " .com a.b v1. 年 月 March No. Dr. ½ ² Ⅳ é П こ م ٣ ' ’ “ … — ！ ，"
)
INVISIBLE = ["\ud800", "\u202e", "\u0301", "\ufe0f", "\u200d", "\x00", "\U0001f468", " ", "\n", "\t"]
ANY_TEXT = st.text(max_size=80) | st.lists(st.sampled_from([*FRAGMENTS.split(), *INVISIBLE]), max_size=40).map("".join)


@settings(max_examples=600, deadline=None)
@given(text=ANY_TEXT, language=st.sampled_from(["zh", "en"]))
@example(text="1" * 60 + "kg", language="zh")
@example(text="99/99/99 13/13/2020 2025-99-99 25:00 99:99", language="en")
def test_never_raises_and_spans_stay_inside_and_in_order(text: str, language: Language) -> None:
    previous = 7
    for token in tokens_of(text, language, start=7):
        assert previous <= token.start < token.end <= 7 + len(text)
        assert token.text
        previous = token.start


@settings(max_examples=300, deadline=None)
@given(text=ANY_TEXT, language=st.sampled_from(["zh", "en"]))
def test_tokens_hold_only_what_an_engine_can_say(text: str, language: Language) -> None:
    last: Token | None = None
    for token in tokens_of(text, language):
        assert token.text in ",、;:.?!…—" if token.kind == "mark" else token.text.replace("'", "").replace("-", "")
        if token.kind == "mark":
            assert last is not None
            assert last.kind == "word"  # never at the front, never two in a row
        elif token.language == "zh":
            assert len(token.text) == 1
        else:
            assert token.text.isascii()
        last = token


@settings(max_examples=100, deadline=None)
@given(text=ANY_TEXT)
def test_deterministic(text: str) -> None:
    assert tokens_of(text) == tokens_of(text)


@given(text=st.text(max_size=60))
def test_cleaning_keeps_the_map_to_the_source(text: str) -> None:
    source = clean(text)
    assert len(source.text) == len(source.starts) == len(source.ends)
    assert source.starts == sorted(source.starts)
    assert all(0 <= a < b <= len(text) for a, b in zip(source.starts, source.ends, strict=True))


def test_quick_enough_for_every_clause() -> None:
    warm_up()
    started = time.process_time()
    for _ in range(20):
        for text, _ in CHINESE:
            tokens_of(text)
        for text, _ in ENGLISH:
            tokens_of(text, "en")
    each = (time.process_time() - started) / (20 * (len(CHINESE) + len(ENGLISH)))
    assert each < 0.003  # about 0.1 ms on one core


@pytest.mark.parametrize(
    "unit",
    ["a.", "1,", "1:", "-", "1-", "a-", "[", "*", "<a", "(", "a@", "1 ", "$", "_a", "|a ", "1/", "A&", "1.1.", "[a](",
     "a", "好", "- ", "> ", "#", "9", "1a", "a1_", " ", "\n", "=-*", "Jan 1", "&#", "1.5k", "http://a"],
)  # fmt: skip
@pytest.mark.parametrize("language", ["zh", "en"])
def test_no_text_is_slow(unit: str, language: Language) -> None:
    text = unit * (2000 // len(unit))  # longer than any cut
    started = time.process_time()
    tokens_of(text, language)
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize("unit", ["\t", "_1", "a/", "x=", "[a]("])
def test_cost_grows_with_the_length_alone(unit: str) -> None:
    started = time.process_time()
    tokens_of(unit * (16_000 // len(unit)))
    assert time.process_time() - started < 1.5  # up to 0.4 s; 2 to 4 s when each place looks at all before it


def test_warm_up_needs_no_network() -> None:
    code = """
import socket
def refuse(*args, **kwargs): raise AssertionError("network")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = socket.create_connection = refuse
from server.text.normaliser import normalise, warm_up
from server.text.tokens import Boundary, Cut, CutCause
warm_up()
tokens = normalise(Cut(0, 3, "3kg", Boundary.SENTENCE, CutCause.END, "zh"))
assert "".join(token.text for token in tokens) == "三千克", tokens
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
