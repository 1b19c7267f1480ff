"""How numbers that a recogniser wrote in digits may have been said: for the scorer, apart from the server's rules.

A recogniser writes "12.5%" for what it heard as "twelve point five percent", and "2025" for any of several ways to say
that. Each function gives every usual reading as a list of words (English) or a text of Hanzi (Chinese).
"""

import itertools
import re

_ZH_DIGITS = "零一二三四五六七八九"
_ZH_UNITS = {
    "kg": ("千克", "公斤"), "g": ("克",), "km": ("千米", "公里"), "m": ("米",), "cm": ("厘米",), "mm": ("毫米",),
    "ml": ("毫升",), "l": ("升",), "℃": ("度", "摄氏度"), "°c": ("度", "摄氏度"), "°": ("度",), "度c": ("度", "摄氏度"),
}  # fmt: skip
_ZH_MONEY = {"￥": "元", "¥": "元", "$": "美元", "€": "欧元"}
ZH_NUMBER = re.compile(
    r"(?P<money>[￥¥$€])?(?P<minus>-(?=\d))?(?P<number>\d+(?:,\d{3})*(?:\.\d+)?)"
    r"(?:(?P<percent>[%％])|(?P<sep>[:：/])(?P<second>\d+)"
    r"|\s?(?P<unit>kg|km|cm|mm|ml|[gml]|℃|°C|度C|°)(?![a-zA-Z]))?",
    re.IGNORECASE,
)


def zh_cardinal(number: int) -> str:
    """一百零五 for 105."""
    if number < 10:
        return _ZH_DIGITS[number]
    for size, name in ((10**8, "亿"), (10**4, "万"), (1000, "千"), (100, "百"), (10, "十")):
        if number >= size:
            head, rest = divmod(number, size)
            gap = "零" if rest and rest < size // 10 else ""
            return zh_cardinal(head) + name + gap + (zh_cardinal(rest) if rest else "")
    raise AssertionError


def zh_digits(digits: str) -> list[str]:
    """One by one; 1 is yi or, in telephone numbers, yao."""
    plain = "".join(_ZH_DIGITS[int(d)] for d in digits)
    return [plain, plain.replace("一", "幺")] if "一" in plain else [plain]


def zh_plain(number: str) -> list[str]:
    """Every reading of digits with commas and a decimal point."""
    whole, _, decimals = number.replace(",", "").partition(".")
    cardinal = zh_cardinal(int(whole))
    readings = {cardinal, cardinal.removeprefix("一") if cardinal.startswith("一十") else cardinal}
    readings |= {re.sub(r"^二(?=[百千万亿]|$)|二(?=[千百万亿])", "两", each) for each in readings}
    if decimals:
        times = [zh_cardinal(int(decimals))] if len(decimals) == 2 and decimals[0] != "0" else []  # 3.45: the time 3:45
        return [f"{each}点{tail}" for each in sorted(readings) for tail in (zh_digits(decimals)[0], *times)]
    return sorted(readings | set(zh_digits(whole)))


def zh_readings(match: re.Match[str]) -> list[str]:
    """Every reading of what `ZH_NUMBER` found."""
    readings = zh_plain(match["number"])
    if match["percent"]:
        readings = ["百分之" + each for each in readings]
    elif match["sep"] == "/":
        readings = [f"{b}分之{a}" for a in readings for b in zh_plain(match["second"])]
    elif match["sep"]:
        minutes = zh_plain(match["second"])
        if match["second"].startswith("0"):
            minutes += ["零" + each for each in minutes if not each.startswith("零")]
        readings = [f"{hour}点{minute}{end}" for hour in readings for minute in minutes for end in ("", "分")]
        if match["second"] == "30":
            readings += [f"{hour}点半" for hour in zh_plain(match["number"])]
        if match["second"] == "00":
            readings += [f"{hour}点{end}" for hour in zh_plain(match["number"]) for end in ("", "整")]
    elif match["unit"]:
        names = _ZH_UNITS[match["unit"].lower()]
        readings = [each + name for each in readings for name in names]
    if match["money"]:
        unit = _ZH_MONEY[match["money"]]
        readings = [each + end for each in readings for end in (unit, "块", "")]
    if match["minus"]:
        readings = [sign + each for each in readings for sign in ("负", "零下")]
    return readings


_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
_ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
_EN_UNITS = {
    "kg": "kilograms", "g": "grams", "lb": "pounds", "km": "kilometers", "m": "meters", "cm": "centimeters",
    "mm": "millimeters", "ml": "milliliters", "mph": "miles per hour", "km/h": "kilometers per hour", "gb": "gigabytes",
    "mb": "megabytes", "°c": "degrees celsius", "°f": "degrees fahrenheit", "°": "degrees", "am": "am", "pm": "pm",
    "s": "s",
}  # fmt: skip
EN_NUMBER = re.compile(
    r"(?P<money>[$£€])?(?P<number>\d+(?:,\d{3})*(?:\.\d+)?)"
    r"(?:(?P<percent>%)|(?P<ordinal>st|nd|rd|th)\b|:(?P<minutes>\d\d)|/(?P<below>\d+)"
    r"|\s?(?P<unit>km/h|kg|km|cm|mm|ml|mph|lb|gb|mb|°c|°f|°|am|pm|[gms])(?![a-z']))?"
    r"(?P<scale> (?:thousand|million|billion))?"
)


def en_cardinal(number: int) -> list[str]:
    """one hundred five, as words."""
    if number < 20:
        return [_ONES[number]]
    if number < 100:
        return [_TENS[number // 10], *([_ONES[number % 10]] if number % 10 else [])]
    for size, name in ((10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred")):
        if number >= size:
            head, rest = divmod(number, size)
            return [*en_cardinal(head), name, *(en_cardinal(rest) if rest else [])]
    raise AssertionError


def en_digits(digits: str) -> list[list[str]]:
    """One by one; 0 is zero or oh."""
    plain = [_ONES[int(d)] for d in digits]
    return [plain, ["oh" if word == "zero" else word for word in plain]] if "0" in digits else [plain]


def en_pairs(digits: str) -> list[list[str]]:
    """Four digits two by two: nineteen ninety nine, twenty oh five, nineteen hundred."""
    if len(digits) != 4 or digits[0] == "0":
        return []
    head, tail = int(digits[:2]), int(digits[2:])
    if tail == 0:
        return [[*en_cardinal(head), "hundred"]]
    if tail < 10:
        return [[*en_cardinal(head), "oh", *en_cardinal(tail)]]
    return [[*en_cardinal(head), *en_cardinal(tail)]]


def en_plain(number: str) -> list[list[str]]:
    """Every reading of digits with commas and a decimal point."""
    whole, _, decimals = number.replace(",", "").partition(".")
    cardinal = en_cardinal(int(whole))
    readings = [cardinal]
    if "hundred" in cardinal[:-1]:  # one hundred and five
        at = len(cardinal) - cardinal[::-1].index("hundred")
        readings.append([*cardinal[:at], "and", *cardinal[at:]])
    if len(cardinal) > 2 and cardinal[-2] == "thousand":
        readings.append([*cardinal[:-1], "and", cardinal[-1]])
    if decimals:
        times = (
            [[*cardinal, *en_cardinal(int(decimals))]] if len(decimals) == 2 and decimals[0] != "0" else []
        )  # 7.45: 7:45
        return [*([*each, "point", *tail] for each in readings for tail in en_digits(decimals)), *times]
    return [*readings, *en_digits(whole), *en_pairs(whole)]


def en_ordinal(words: list[str]) -> list[str]:
    """fifth for five."""
    last = words[-1]
    changed = _ORDINALS.get(last) or (last[:-1] + "ieth" if last.endswith("y") else last.removesuffix("t") + "th")
    return [*words[:-1], changed]


def en_readings(match: re.Match[str]) -> list[list[str]]:
    """Every reading of what `EN_NUMBER` found in lower-case text."""
    number = match["number"]
    readings = en_plain(number)
    if match["percent"]:
        readings = [[*each, "percent"] for each in readings]
    elif match["ordinal"]:
        readings = [en_ordinal(each) for each in readings]
    elif match["minutes"]:
        minutes = int(match["minutes"])
        ends = [["oclock"], []]
        if minutes:
            ends = [en_cardinal(minutes) if minutes > 9 else ["oh", *en_cardinal(minutes)]]
        readings = [[*hour, *end] for hour, end in itertools.product(readings, ends)]
    elif match["below"]:
        readings = [[*a, *en_ordinal(b)] for a in readings for b in en_plain(match["below"])]
        readings += [[*each[:-1], each[-1] + "s"] for each in readings]
    elif match["unit"]:
        readings = [[*each, *_EN_UNITS[match["unit"]].split()] for each in readings]
        if match["unit"] == "s":  # 1990s
            readings = [[*each[:-2], each[-2][:-1] + "ies"] for each in readings if each[-2].endswith("y")] or readings
    if match["scale"]:
        readings = [[*each, match["scale"].strip()] for each in readings]
    if match["money"]:
        readings = _money(match, readings)
    if match.group() == number and len(number) <= 2:  # "March 14" is said "March fourteenth"
        readings = [*readings, en_ordinal(en_cardinal(int(number)))]
    return readings


def _money(match: re.Match[str], amounts: list[list[str]]) -> list[list[str]]:
    """nineteen dollars and ninety nine cents."""
    unit = {"$": "dollar", "£": "pound", "€": "euro"}[match["money"]]
    plain = [[*each, unit + "s"] for each in amounts] + [[*each, unit] for each in amounts if each == ["one"]]
    whole, _, cents = match["number"].replace(",", "").partition(".")
    if not cents or match["scale"]:
        return plain
    said = en_cardinal(int(cents.ljust(2, "0")[:2]))
    head = [*en_cardinal(int(whole)), unit if whole == "1" else unit + "s"]
    return [
        *plain,
        [*head, "and", *said, "cents"],
        [*head, *said, "cents"],
        [*head, *said],
        [*en_cardinal(int(whole)), *said],
    ]
