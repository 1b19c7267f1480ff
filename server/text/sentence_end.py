"""Whether an ASCII full stop ends a sentence: abbreviations, initials, list numbers."""

import re
from enum import Enum

from server.text.characters import NEWLINES

# Never end a sentence: something always follows.
_TITLES = frozenset(
    "mr mrs ms mx dr prof st gen sen rep gov capt cpt lt col sgt maj rev hon pres messrs mt ft"
    " e.g eg i.e ie vs cf viz al approx dept est esp ca".split()
)
# Only before a number: "No. 5", "Fig. 2", "p. 12".
_BEFORE_NUMBER = frozenset("no nos nr fig figs vol vols ch chap sec art eq pp p pg ver tel ext".split())
# May or may not: the next letter tells ("etc. and", "etc. The").
_MAYBE = frozenset(
    "etc inc ltd co corp jr sr bros assn univ a.m p.m ph.d b.a m.a b.s m.s d.c a.d b.c b.c.e c.e ave blvd rd"
    " jan feb mar apr jun jul aug sep sept oct nov dec mon tue tues wed thu thur thurs fri".split()
)
_MONTHS = frozenset("jan feb mar apr jun jul aug sep sept oct nov dec".split())
_ACRONYM = re.compile(r"[A-Za-z](?:\.[A-Za-z])+")  # U.S, U.N, J.K
_NUMBER = re.compile(r"\d{1,3}")
_LAST_WORD = re.compile(r"[^\s\"“”‘’()（）\[\]]+\Z")
_COMPLETE = frozenset("。！？!?｡‼⁇⁈⁉…；;—吗呢吧啊呀啦嘛")
_INITIALS_END = frozenset("I")


class Stop(Enum):
    """What a full stop is."""

    ENDS = "ends"
    GOES_ON = "goes on"
    UNKNOWN = "unknown"  # more text is needed


def judge_full_stop(word: str, opens_segment: bool, text: str, after: int, end: int, *, final: bool) -> Stop:
    """Judge the stop just before `after`, which follows `word`; `text[after:end]` is what comes next.

    `opens_segment`: the word is the first of its segment, so that "1." or "a." is a list marker.
    """
    lower = word.lower()
    if opens_segment and ((word.isdecimal() and len(word) <= 3) or (len(word) == 1 and "a" <= word <= "z")):
        return Stop.GOES_ON
    if lower in _TITLES or (len(word) == 1 and word.isupper() and word not in _INITIALS_END):
        return Stop.GOES_ON
    if lower not in _BEFORE_NUMBER and lower not in _MAYBE and not _ACRONYM.fullmatch(word):
        return Stop.ENDS
    following = _next_visible(text, after, end)
    if following == "":
        return Stop.ENDS if final else Stop.UNKNOWN
    if following in NEWLINES:
        return Stop.ENDS
    if lower in _BEFORE_NUMBER:
        return Stop.GOES_ON if following.isdecimal() else Stop.ENDS
    if lower in _MONTHS:
        return Stop.GOES_ON if following.isdecimal() or following.islower() or following in ",-–" else Stop.ENDS
    if lower in _MAYBE:
        return Stop.ENDS if following.isupper() or following in '"“‘(「' or following >= "\u2e80" else Stop.GOES_ON
    return Stop.GOES_ON


def _next_visible(text: str, after: int, end: int) -> str:
    """The first character that is no plain space; "" when there is none yet. At most 64 spaces are passed over."""
    for char in text[after : min(end, after + 64)]:
        if not char.isspace() or char in NEWLINES:
            return char
    return "" if end - after < 64 else " "


def looks_complete(tail: str) -> bool:
    """Whether text ending in `tail` (its last 200 characters or so) looks like a finished clause or sentence.

    "May 1987." yes, "3." no (3.14 may come), "Dr." no, "你好" no, "好吗" yes.
    """
    text = tail.rstrip()
    stripped = text.rstrip("\"'”’)]}）】」』》*_`~")
    if not stripped:
        return False
    last = stripped[-1]
    match = _LAST_WORD.search(stripped[:-1])
    word = match.group() if match else ""
    if "://" in word or word.startswith("www."):
        return last == "。"
    if last in ",，:：":
        return not stripped[-2:-1].isdecimal()
    if last != ".":
        return last in _COMPLETE
    if stripped.endswith(".."):
        return True
    lower = word.lower()
    unfinished = lower in _TITLES or lower in _BEFORE_NUMBER - {"no"} or lower in _MONTHS
    return bool(word) and not unfinished and not _NUMBER.fullmatch(word)
