"""Chooses the rule that reads a shape in a language."""

import re
from collections.abc import Callable

from server.text import read_en, read_zh, web
from server.text.abbreviations import read_numero
from server.text.tokens import Language


def read_shape(shape: str, text: str, before: str, after: str, language: Language) -> str:
    """What a number-like or web-like shape says."""
    if shape in ("url", "host"):
        return web.read_url(text, language)
    if shape == "email":
        return web.read_email(text, language)
    if shape == "code":
        return web.read_name(text, language)
    if shape == "version":
        return web.read_version(text, language)
    if shape == "initials":
        return _read_initials(text)
    if shape == "language_name":
        return {"C#": "C sharp", "F#": "F sharp", "C++": "C plus plus", ".NET": "dot net"}[text]
    if shape == "ordinal":
        return read_en.ordinal(text)
    if shape == "decade":
        return read_en.decade(text)
    if shape == "numero":
        word, digits = read_numero(text)
        return f"{word} {read_en.number(digits)}"
    if shape == "hash_number":
        digits = re.sub(r"\D", "", text)
        return f"{read_zh.number(digits)}号" if language == "zh" else f"number {read_en.number(digits)}"
    if shape == "date_ymd":
        year, month, day = re.findall(r"\d+", text)
        reader = read_zh if language == "zh" else read_en
        return reader.date(year, int(month), int(day)) or web.read_version(re.sub(r"\D", ".", text), language)
    if shape == "date_mdy":
        reader = read_zh if language == "zh" else read_en
        return reader.date_mdy(text) or web.read_version(re.sub(r"\D", ".", text), language)
    reader_of = _CHINESE if language == "zh" else _ENGLISH
    return reader_of[shape](text, before, after) if shape in reader_of else text


_Reader = Callable[[str, str, str], str]
"""What a shape says: its text, what is before it, what is after it -> words."""


def _alone(read: Callable[[str], str]) -> _Reader:
    """A reader that needs nothing but the text itself."""
    return lambda text, before, after: read(text)


def _with_after(read: Callable[[str, str], str]) -> _Reader:
    return lambda text, before, after: read(text, after)


_CHINESE: dict[str, _Reader] = {
    "number": read_zh.plain_number,
    "money": _with_after(read_zh.money),
    "coded_money": _with_after(read_zh.money),
    "range": _with_after(read_zh.number_range),
    "clock": _alone(read_zh.clock),
    "hour": _alone(read_zh.hour),
    "phone": _alone(read_zh.phone),
    "percent": _alone(read_zh.percent),
    "degrees": _alone(read_zh.degrees),
    "measure": _alone(read_zh.measure),
    "ratio": _alone(read_zh.ratio),
    "fraction": _alone(read_zh.fraction),
}
_ENGLISH: dict[str, _Reader] = {
    "number": read_en.plain_number,
    "money": _alone(read_en.money),
    "coded_money": _alone(read_en.money),
    "range": _with_after(read_en.number_range),
    "clock": _alone(read_en.clock),
    "hour": _alone(read_en.hour),
    "phone": _alone(read_en.phone),
    "percent": _alone(read_en.percent),
    "degrees": _alone(read_en.degrees),
    "measure": _alone(read_en.measure),
    "ratio": _alone(read_en.ratio),
    "fraction": _alone(read_en.fraction),
}


def _read_initials(text: str) -> str:
    if "&" in text:
        left, _, right = text.partition("&")
        return f"{web.letters(left) if len(left) > 1 else left} and {web.letters(right) if len(right) > 1 else right}"
    lower = text.lower().rstrip(".")
    known = {"e.g": "for example", "i.e": "that is"}
    return known.get(lower) or web.letters(text.replace(".", ""))
