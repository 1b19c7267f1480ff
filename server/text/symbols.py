"""Single symbols that are read as words, where they stand between things or before a number."""

import re

from server.text.characters import HANZI, HANZI_CLASS
from server.text.tokens import Language

# symbol: (zh, en), read between two operands ("3 + 4", "a = b")
_BETWEEN: dict[str, tuple[str, str]] = {
    "+": ("加", "plus"),
    "=": ("等于", "equals"),
    "×": ("乘以", "times"),
    "÷": ("除以", "divided by"),
    "<": ("小于", "less than"),
    ">": ("大于", "greater than"),
    "≤": ("小于等于", "less than or equal to"),
    "≥": ("大于等于", "greater than or equal to"),
    "≠": ("不等于", "is not equal to"),
    "≈": ("约等于", "is about"),
    "^": ("的", "to the"),
    "&": ("和", "and"),
}
# read before a number
_BEFORE: dict[str, tuple[str, str]] = {
    "±": ("正负", "plus or minus"),
    "+": ("正", "plus"),
    "-": ("负", "minus"),
    "~": ("约", "about"),
    "≈": ("约", "about"),
    "<": ("小于", "less than"),
    ">": ("大于", "more than"),
    "≤": ("不超过", "at most"),
    "≥": ("不少于", "at least"),
    "§": ("第", "section"),
    "√": ("根号", "square root of"),
    "$": ("", ""),
}
# read wherever they stand
_ALWAYS: dict[str, tuple[str, str]] = {
    "&": ("和", "and"),
    "%": ("百分号", "percent"),
    "‰": ("千分号", "per mille"),
    "°": ("度", "degrees"),
    "²": ("平方", "squared"),
    "³": ("立方", "cubed"),
    "∞": ("无穷大", "infinity"),
    "€": ("欧元", "euros"),
    "£": ("英镑", "pounds"),
    "@": ("艾特", "at"),
    "№": ("编号", "number"),
}
_OPERAND_BEFORE = re.compile(r"(?:[\w)]|[\]%])\s*\Z")
_OPERAND_AFTER = re.compile(r"\s*[\w(√-]")
_NUMBER_AFTER = re.compile(r"\s?[.\d]")
_CLOCK_BEFORE = re.compile(r":\d\d\Z")
_DATE_BEFORE = re.compile(r"\d[年月日号点时周岁元]\Z")
_COUNT_BEFORE = re.compile(rf"\d[万亿多]?[{HANZI_CLASS}]{{1,2}}\Z")
_DIGIT_BEFORE = re.compile(r"\d\s*\Z")


def read_symbol(symbol: str, before: str, after: str, language: Language) -> str:
    """Words for one symbol, "" when it is silent here, or a mark for a pause."""
    which = 0 if language == "zh" else 1
    operand_before = _OPERAND_BEFORE.search(before) is not None
    if symbol in "-–−~" and _CLOCK_BEFORE.search(before) and after[:1].isdecimal():
        return ("到", "to")[which]
    if symbol in "-–−~" and _DATE_BEFORE.search(before) and after[:1].isalnum():
        return "到"
    if symbol == "+" and language == "zh" and _DIGIT_BEFORE.search(before) and HANZI.match(after):
        return "多"
    if symbol == "/" and _COUNT_BEFORE.search(before) and HANZI.match(after):
        return "每"
    if symbol in _BETWEEN and operand_before and _OPERAND_AFTER.match(after):
        return _BETWEEN[symbol][which]
    if symbol == "+" and _DIGIT_BEFORE.search(before):
        return ("加", "plus")[which]
    if symbol in "-−" and _DIGIT_BEFORE.search(before) and _NUMBER_AFTER.match(after.lstrip()):
        return ("减", "minus")[which]
    if symbol in _BEFORE and not operand_before and _NUMBER_AFTER.match(after):
        return _BEFORE[symbol][which]
    if symbol in _ALWAYS:
        return _ALWAYS[symbol][which]
    if symbol in "-–−" and before.endswith(" ") and after.startswith(" "):
        return ","
    if symbol == "/" and operand_before and language == "zh":
        return "、"
    return ""
