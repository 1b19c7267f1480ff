"""Texts of any length whose sentences never come twice, unless they are asked to. The same seed gives the same text.

Sentences are made of a few hundred words by a small grammar, so that they read like a dull book: some are short, some
have inner punctuation, some are longer than a segment may be.
"""

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

LOOKED_AT: Final = 3_000  # sentences
LONGEST: Final = 4

_WHO: Final = (
    "the old captain", "her youngest sister", "a tired clerk", "the village doctor", "my neighbor", "the new teacher",
    "an honest farmer", "the quiet boy", "their grandmother", "one of the soldiers", "the night watchman", "a stranger",
    "the judge", "our landlady", "the ferry pilot", "every child", "the baker", "his brother", "the gardener", "nobody",
)  # fmt: skip
_DOES: Final = (
    "remembered", "carried", "forgot", "painted", "looked for", "sold", "described", "found", "mended", "hid", "wanted",
    "borrowed", "watched", "counted", "gave away", "praised", "dropped", "opened", "kept", "wrote about", "laughed at",
)  # fmt: skip
_KIND: Final = (
    "small", "broken", "silver", "heavy", "empty", "yellow", "strange", "narrow", "forgotten", "warm", "wooden", "wet",
    "early", "useless", "golden", "dusty", "round", "cheap", "beautiful", "familiar", "hollow", "plain", "blue", "late",
)  # fmt: skip
_WHAT: Final = (
    "lantern", "letter", "map", "violin", "basket", "winter coat", "garden gate", "clock", "boat", "mirror", "blanket",
    "key", "newspaper", "window", "song", "ladder", "kitchen table", "picture", "bridge", "bell", "suitcase", "story",
    "bottle", "orchard", "hammer", "road", "umbrella", "candle", "harbor", "pair of boots",
)  # fmt: skip
_WHERE: Final = (
    "behind the mill", "near the river", "in the market", "under the stairs", "on the last train", "by the church wall",
    "at the edge of the forest", "in the attic", "across the valley", "beside the well", "at the station", "upstairs",
    "along the beach", "in the front row", "outside the town", "between two fires",
)  # fmt: skip
_WHEN: Final = (
    "in the morning", "after the storm", "long before dinner", "at midnight", "during the war", "every second Sunday",
    "for the first time", "without a word", "when nobody looked", "with great care", "in a hurry", "once again",
)  # fmt: skip
_JOIN: Final = (", and ", ", but ", "; ", ", because ", ", while ", ", although ", " and ", ", so ")

_ZH_WHEN: Final = (
    "昨天晚上", "天还没亮的时候", "下课以后", "去年冬天", "每到星期天", "大雨过后", "吃完早饭", "很多年以前",
    "临走之前", "第二天早上", "就在那时候", "过了半个小时",
)  # fmt: skip
_ZH_WHO: Final = (
    "老船长", "她的妹妹", "村里的医生", "我的邻居", "新来的老师", "那个安静的男孩", "外婆", "一位士兵", "看门的老人",
    "送信的姑娘", "面包店的老板", "他哥哥", "园丁", "几个孩子", "年轻的画家", "厨师",
)  # fmt: skip
_ZH_WHERE: Final = (
    "在河边", "在市场里", "在楼梯下面", "在最后一班火车上", "在教堂的墙边", "在森林旁边", "在阁楼上", "在水井边",
    "在车站门口", "在海滩上", "在城外", "在院子里",
)  # fmt: skip
_ZH_DOES: Final = (
    "找到了", "忘记了", "画了", "卖掉了", "修好了", "藏起了", "看见了", "打开了", "留下了", "想起了", "送走了",
    "谈到了", "捡到了",
)  # fmt: skip
_ZH_KIND: Final = (
    "旧", "银色的", "空空的", "黄色的", "奇怪的", "窄窄的", "暖和的", "沉重的", "普通的", "漂亮的", "没人要的", "小",
)  # fmt: skip
_ZH_WHAT: Final = (
    "灯笼", "地图", "小提琴", "篮子", "大衣", "铁门", "钟", "小船", "镜子", "毯子", "钥匙", "报纸", "窗户", "梯子",
    "照片", "木桥", "箱子", "故事", "瓶子", "雨伞",
)  # fmt: skip
_ZH_JOIN: Final = (
    "，然后", "，可是", "，因为", "，所以", "，同时", "；",
)  # fmt: skip


def english(chance: random.Random) -> str:
    """A sentence with the space behind it."""
    clauses = [_clause(chance) for _ in range(chance.choice((1, 1, 2, 2, 3)))]
    said = clauses[0]
    for clause in clauses[1:]:
        said += chance.choice(_JOIN) + clause
    return said[0].upper() + said[1:] + chance.choice("......?!") + " "


def chinese(chance: random.Random) -> str:
    """A sentence."""
    clauses = [_zh_clause(chance) for _ in range(chance.choice((1, 2, 2, 3)))]
    said = clauses[0]
    for clause in clauses[1:]:
        said += chance.choice(_ZH_JOIN) + clause
    return said + chance.choice("。。。。？！")


def breathless(chance: random.Random) -> str:
    """A sentence that is too long for a segment and has no mark inside."""
    if chance.random() < 0.5:
        return "".join(_zh_clause(chance) + join for join in ("并且", "于是", "并且", "。"))
    return " and ".join(_clause(chance) for _ in range(5)).capitalize() + ". "


def both(chance: random.Random) -> str:
    """A sentence in one or the other language, so that there are about as many characters of each."""
    return english(chance) if chance.random() < 0.25 else chinese(chance)


def sentences(make: Callable[[random.Random], str], seed: int, repeated: float = 0.0) -> Iterator[str]:
    """No two are the same, but for `repeated` of every ten (0.3: three): each of those is one that was said before."""
    chance = random.Random(seed)
    said: dict[str, None] = {}
    while True:
        again = set(chance.sample(range(1, 10), round(10 * repeated)))  # not the very first one
        known = list(said) if again else []
        for number in range(10):
            if number in again:
                yield chance.choice(known)
                continue
            while (sentence := make(chance)) in said:
                pass
            said[sentence] = None
            if again:
                known.append(sentence)
            yield sentence


def text_of(
    characters: int, make: Callable[[random.Random], str] = english, seed: int = 1, repeated: float = 0.0
) -> str:
    """Whole sentences, at least so many characters, and no sentence more."""
    found, length = [], 0
    for sentence in sentences(make, seed, repeated):
        found.append(sentence)
        length += len(sentence)
        if length >= characters:
            break
    return "".join(found)


def longest_sentences(make: Callable[[random.Random], str], seed: int = 1) -> str:
    """A few that are as long as they get: what memory must have room for, however long the text."""
    return "".join(sorted(islice(sentences(make, seed), LOOKED_AT), key=len)[-LONGEST:])


def _clause(chance: random.Random) -> str:
    what = f"the {chance.choice(_KIND)} {chance.choice(_WHAT)}"
    said = f"{chance.choice(_WHO)} {chance.choice(_DOES)} {what}"
    if chance.random() < 0.7:
        said += f" {chance.choice(_WHERE)}"
    if chance.random() < 0.5:
        said += f" {chance.choice(_WHEN)}"
    return said


def _zh_clause(chance: random.Random) -> str:
    when = chance.choice(_ZH_WHEN) if chance.random() < 0.5 else ""
    where = chance.choice(_ZH_WHERE) if chance.random() < 0.6 else ""
    return (
        when
        + chance.choice(_ZH_WHO)
        + where
        + chance.choice(_ZH_DOES)
        + chance.choice(_ZH_KIND)
        + chance.choice(_ZH_WHAT)
    )
