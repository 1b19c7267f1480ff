"""Classes of characters that the segmenter and the normaliser share.

Character-class strings (`..._CLASS`) are the inside of a regular expression's square brackets.
"""

import re
import unicodedata

HANZI_CLASS = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
# Kana, hangul, bopomofo.
SYLLABLE_CLASS = "\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f\uac00-\ud7af\u1100-\u11ff\u3100-\u312f"

SENTENCE_MARKS = frozenset("。！？!?｡‼⁇⁈⁉‽।؟．")
CLAUSE_MARKS = frozenset("，,；;：:﹐﹔﹕،؛—…")
WEAK_MARKS = frozenset("、､")
NEWLINES = frozenset("\n\r\x0b\x0c\x85\u2028\u2029")
CLOSERS = frozenset("\"'”’)]}）】」』》〉〕］｝»›＂＇")

HANZI = re.compile(f"[{HANZI_CLASS}]")
"""One Chinese ideograph: unified, extensions, compatibility, the zero 〇 and the repetition mark 々."""

_ZWJ = "\u200d"


def _mark_class() -> str:
    """All combining marks (category M) of the basic plane, as ranges; about 10 ms, once."""
    ranges: list[str] = []
    start: int | None = None
    for code in range(0x300, 0x10000):
        if unicodedata.category(chr(code))[0] == "M":
            start = code if start is None else start
        elif start is not None:
            ranges.append(f"{chr(start)}-{chr(code - 1)}" if code - 1 > start else chr(start))
            start = None
    return "".join(ranges)


COMBINING_CLASS = _mark_class() + "\u200c\u200d\U000e0100-\U000e01ef"
WORD_CHAR = f"(?:(?![{HANZI_CLASS}{SYLLABLE_CLASS}])[\\w{COMBINING_CLASS}])"
"""One character of a word that is not written in Hanzi, kana or hangul: letter, digit, underscore, combining mark."""


def is_hanzi(char: str) -> bool:
    """Whether a character is one of `HANZI`."""
    return HANZI.match(char) is not None


def is_extender(char: str) -> bool:
    """Whether `char` belongs to the character before it: combining mark, joiner, variation selector, skin tone, tag."""
    return (
        char in "\u200c\u200d"
        or "\U0001f3fb" <= char <= "\U0001f3ff"
        or "\U000e0020" <= char <= "\U000e007f"
        or (char >= "\u0300" and unicodedata.category(char)[0] == "M")
    )


def splits_character(before: str, after: str) -> bool:
    """Whether a cut between these two code points would tear one visible character (é, 👨‍👩‍👧, 🇨🇳) apart."""
    if is_extender(after) or before == _ZWJ:
        return True
    return "\U0001f1e6" <= before <= "\U0001f1ff" and "\U0001f1e6" <= after <= "\U0001f1ff"
