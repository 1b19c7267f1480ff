"""What is said under load: answers of about ten seconds as a language model writes them, half Chinese, half English."""

import random
import re
from collections.abc import Iterator, Sequence
from typing import Final

from bench._load_talker import Script
from bench._session import deciding_positions

CHARACTERS_PER_SECOND: Final = 30.0
CHINESE: Final = (
    "当然可以。这道菜其实很简单，先把土豆切成细丝，用清水泡十分钟，再用大火快炒，最后加一点醋就好了。",
    "好的，我来帮你看一下。明天上午有小雨，下午转多云，气温在十五到二十二度之间，出门记得带一把伞。",
    "这个问题问得很好！月亮本身并不发光，我们看到的其实是它反射的太阳光，所以它的样子每天都在变化。",
    "没问题。从火车站出来以后往右走，过两个路口就能看到地铁站，坐三号线到中山公园，大约需要半个小时。",
    "我明白你的意思。学习一门语言最重要的是坚持，每天花二十分钟听和说，比周末一次学三个小时更有效果。",
    "首先，请检查一下电源是不是已经接好。如果指示灯还是不亮，可以换一个插座试试，或者联系我们的客服人员。",
    "是的，图书馆今天开门。开放时间是早上九点到晚上八点，借书需要带上身份证，每个人一次最多可以借五本书。",
    "很遗憾，那趟航班已经取消了。不过今天晚上七点还有一班，票价差不多，您需要我现在帮您改签过去吗？",
    "别担心，这种情况很常见。先深呼吸几次，把要说的三件事写在纸上，上台以后一件一件地讲，就不会紧张了。",
    "春天来了，公园里的花都开了。老人们在湖边打太极拳，孩子们在草地上放风筝，到处都能听见笑声和鸟叫。",
)
ENGLISH: Final = (
    "Sure, I can help with that. Peel the potatoes, cut them into thin slices, and let them soak in cold water for "
    "ten minutes before you fry them until golden.",
    "Good morning! It will rain a little before noon, and then the clouds should clear, so take an umbrella with you "
    "but leave the heavy coat at home.",
    "That's a great question. The moon does not shine by itself; what we see is the light of the sun that it sends "
    "back, and so its shape seems to change.",
    "Of course. Leave the station on the right side, cross two streets, and you will see the subway. Take line three "
    "to the park, which takes about half an hour.",
    "I see what you mean. To learn a language, a little practice every day is worth more than a long lesson on the "
    "weekend, so try twenty minutes of talking.",
    "First, please check the power cord. If the light stays off, try another outlet, or hold the button for ten "
    "seconds, and then wait until the screen comes on.",
    "Yes, the library is open today. You may come between nine in the morning and eight in the evening, and you can "
    "borrow up to five books at a time.",
    "I'm sorry, that flight was canceled. There is another one at seven this evening for about the same price. Would "
    "you like me to change your ticket now?",
    "Don't worry, it happens to everyone. Take a few deep breaths, write down the three things you want to say, and "
    "then talk about one after the other.",
    "Spring has come, and the park is full of flowers. Old people walk along the lake, children fly their kites on "
    "the grass, and birds sing in every tree.",
)
SHORT: Final = (
    "好的，马上就来。", "Sure, no problem.", "请稍等一下。", "One moment, please.", "今天天气不错。",
    "That sounds good to me.", "我已经帮您订好了。", "Your order is ready.", "没关系，慢慢来。",
    "Let me think about it.",
)  # fmt: skip
THREE_SENTENCES: Final = (
    "今天早上下了一场大雨，路上的车都开得很慢。我到公司的时候已经快十点了。还好会议推迟到了下午。",
    "The train to the coast leaves at nine, and it takes about two hours. You can buy the ticket on board. Don't "
    "forget to bring something warm.",
    "这本书讲的是一个年轻医生在山村里的故事。他一个人走了很多路，看了很多病人。最后大家都舍不得他离开。",
    "We looked at three houses last week, but none of them had a garden. My sister liked the second one best. We "
    "will see another one on Sunday.",
)
_TOKEN: Final = re.compile(r"[\u4e00-\u9fff]{1,2}|[^\u4e00-\u9fff]?[A-Za-z']{1,6}|.", re.DOTALL)
_JITTER: Final = 0.5  # a token comes so much earlier or later than evenly spaced ones, in its own length


def written(text: str, seed: int, characters_per_second: float = CHARACTERS_PER_SECOND) -> Script:
    """As a language model writes: a token at a time, of a word, a part of one or two Hanzi, unevenly in time."""
    chance = random.Random(seed)
    tokens = tuple(_TOKEN.findall(text))
    ends, at, position = [], [], 0
    for token in tokens:
        at.append(max(0.0, position + chance.uniform(-_JITTER, _JITTER) * len(token)) / characters_per_second)
        position += len(token)
        ends.append(position)
    at[0] = 0.0
    return Script(text, tokens, tuple(sorted(at)), _cuts(text, ends))


def at_once(text: str, piece: int = 4_000) -> Script:
    """Everything in the first moment, in messages of at most so many characters."""
    tokens = tuple(text[start : start + piece] for start in range(0, len(text), piece))
    ends = [min(len(text), start + piece) for start in range(0, len(text), piece)]
    return Script(text, tokens, (0.0,) * len(tokens), _cuts(text, ends))


def _cuts(text: str, ends: Sequence[int]) -> tuple[tuple[int, int], ...]:
    token, found = 0, []
    for end, position in deciding_positions(text):
        while ends[token] < position:
            token += 1
        found.append((end, token))
    return tuple(found)


def conversation() -> list[Script]:
    """Answers in both languages by turns."""
    return [written(text, seed) for seed, text in enumerate(_by_turns(CHINESE, ENGLISH))]


def long_text(characters: int) -> str:
    """So many characters of both languages."""
    once = "".join(_by_turns(CHINESE, ENGLISH))
    return (once * (characters // len(once) + 1))[:characters]


def _by_turns(first: Sequence[str], second: Sequence[str]) -> Iterator[str]:
    for pair in zip(first, second, strict=True):
        yield from pair
