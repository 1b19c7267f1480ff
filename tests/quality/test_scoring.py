"""The scorer itself: what it must count as wrong, and what it must not."""

import pytest

from tests.quality.scoring import Kind, Score, score, total
from tests.quality.sentences import ALL, CHINESE, ENGLISH, MIXED

MISTAKES: list[tuple[Kind, str, str, int]] = [
    ("zh", "今天天气很好", "今天天气很好", 0),
    ("zh", "今天天气很好", "金天天汽狠好。", 0),  # the same syllables
    ("zh", "今天天气很好", "今天天气好", 1),
    ("zh", "今天天气很好", "今天的天气很好", 1),
    ("zh", "今天天气很好", "今天天气很坏", 1),
    ("zh", "今天天气很好", "", 6),
    ("zh", "今天天气很好", "谢谢观看请订阅", 7),
    ("zh", "三十个人", "13个人", 2),
    ("zh", "一百二十三元", "￥132", 2),
    ("zh", "两百零五", "205", 0),
    ("zh", "二零二四年十月一日", "2024年10月1日", 0),
    ("zh", "百分之八点五", "8.5%", 0),
    ("zh", "百分之八点五", "8.6%", 1),
    ("zh", "下午三点四十五分", "下午3:45", 0),
    ("zh", "下午三点四十五分", "下午3.45", 1),  # "fen" was said and not written
    ("zh", "下午三点四十五分", "下午3:15", 1),
    ("zh", "八点半", "8:30", 0),
    ("zh", "三分之二", "2/3", 0),
    ("zh", "零下五度", "-5℃", 0),
    ("zh", "幺三八零零幺", "138001", 0),
    ("zh", "一千三百五十米", "1350米", 0),
    ("zh", "一万零二十", "10,020", 0),
    ("en", "the cat sat on the mat", "The cat sat on the mat.", 0),
    ("en", "the cat sat on the mat", "The cat sat on a mat.", 1),
    ("en", "the cat sat on the mat", "The cat sat on mat.", 1),
    ("en", "the cat sat on the mat", "The fat cat sat on the mat.", 1),
    ("en", "the cat sat on the mat", "", 6),
    ("en", "thirteen dollars", "$30", 1),
    ("en", "thirteen dollars", "$13", 0),
    ("en", "nineteen dollars and ninety nine cents", "$19.99", 0),
    ("en", "nineteen dollars and ninety nine cents", "$19.95", 1),
    ("en", "march fourteenth twenty twenty five", "March 14, 2025", 0),
    ("en", "march fourteenth twenty twenty five", "March 15th, 2026", 2),
    ("en", "seven forty five", "7:45", 0),
    ("en", "five five five oh one nine nine", "555-0199", 0),
    ("en", "one point two million dollars", "$1.2 million", 0),
    ("en", "do not go", "Don't go", 0),
    ("en", "do not go", "Do go", 1),
    ("en", "fifteen degrees celsius", "15°C", 0),
    ("en", "two and a half", "2 and a half", 0),
    ("mixed", "我用 python 写程序", "我用Python写程序", 0),
    ("mixed", "我用 python 写程序", "我用派森写程序", 2),
    ("mixed", "花了五千元", "花了5000元", 0),
    ("mixed", "version five is ready", "version 5 is ready", 0),
]


@pytest.mark.parametrize(("kind", "said", "heard", "errors"), MISTAKES)
def test_errors_are_counted(kind: Kind, said: str, heard: str, errors: int) -> None:
    assert score(kind, [said], heard).errors == errors


def test_the_best_reading_counts() -> None:
    assert score("en", ["two hundred five", "two oh five"], "two oh five") == Score(0, 3)


def test_long_sentences_weigh_more() -> None:
    assert total([Score(1, 1), Score(0, 9)]).rate == 0.1


def test_a_wrong_language_fails_every_threshold() -> None:
    """Were the recogniser deaf or the audio swapped, no limit would hold."""
    for sentences, limit in ((CHINESE, 0.12), (ENGLISH, 0.08), (MIXED, 0.25)):
        swapped = zip(sentences, [*sentences[1:], sentences[0]], strict=True)
        assert total(score(a.kind, a.said, b.text) for a, b in swapped).rate > 3 * limit


def test_the_sentences_are_enough() -> None:
    assert len(CHINESE) >= 20
    assert len(ENGLISH) >= 20
    assert len(MIXED) >= 8
    assert sum(sentence.ci for sentence in ALL) == 8
    for sentences in (CHINESE, ENGLISH):
        assert sum(any(c.isdigit() for c in sentence.text) for sentence in sentences) >= 12
    unread = [s.text for s in ALL for said in s.said if any(c.isdigit() for c in said)]
    assert not unread, f"a reference must be written out: {unread}"
