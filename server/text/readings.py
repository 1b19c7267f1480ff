"""Chooses the rule that reads a shape in a language."""

import re

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
    if language == "zh":
        return _read_zh(shape, text, before, after)
    return _read_en(shape, text, before, after)


def _read_zh(shape: str, text: str, before: str, after: str) -> str:
    match shape:
        case "number":
            return read_zh.plain_number(text, before, after)
        case "money" | "coded_money":
            return read_zh.money(text, after)
        case "range":
            return read_zh.number_range(text, after)
        case "clock":
            return read_zh.clock(text)
        case "hour":
            return read_zh.hour(text)
        case "phone":
            return read_zh.phone(text)
        case "percent":
            return read_zh.percent(text)
        case "degrees":
            return read_zh.degrees(text)
        case "measure":
            return read_zh.measure(text)
        case "ratio":
            return read_zh.ratio(text)
        case "fraction":
            return read_zh.fraction(text)
        case _:
            return text


def _read_en(shape: str, text: str, before: str, after: str) -> str:
    match shape:
        case "number":
            return read_en.plain_number(text, before, after)
        case "money" | "coded_money":
            return read_en.money(text)
        case "range":
            return read_en.number_range(text, after)
        case "clock":
            return read_en.clock(text)
        case "hour":
            return read_en.hour(text)
        case "phone":
            return read_en.phone(text)
        case "percent":
            return read_en.percent(text)
        case "degrees":
            return read_en.degrees(text)
        case "measure":
            return read_en.measure(text)
        case "ratio":
            return read_en.ratio(text)
        case "fraction":
            return read_en.fraction(text)
        case _:
            return text


def _read_initials(text: str) -> str:
    if "&" in text:
        left, _, right = text.partition("&")
        return f"{web.letters(left) if len(left) > 1 else left} and {web.letters(right) if len(right) > 1 else right}"
    lower = text.lower().rstrip(".")
    known = {"e.g": "for example", "i.e": "that is"}
    return known.get(lower) or web.letters(text.replace(".", ""))
