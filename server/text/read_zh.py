"""Chinese readings of the shapes in `shapes`: each function takes the written text and gives Hanzi."""

import re
from decimal import Decimal

from server.text import numbers_zh as words_of
from server.text.currencies import take_currency
from server.text.measures import read_measure
from server.text.shapes import NUMBER, TILDE, is_negative, numbers_in

_SCALES = {
    "k": 1000,
    "K": 1000,
    "m": 10**6,
    "M": 10**6,
    "b": 10**9,
    "B": 10**9,
    "bn": 10**9,
    "thousand": 1000,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
# What wetext's grammar leaves in Latin letters.
_UNITS = {
    "W": "瓦",
    "kW": "千瓦",
    "MW": "兆瓦",
    "kWh": "千瓦时",
    "V": "伏",
    "kV": "千伏",
    "mV": "毫伏",
    "A": "安",
    "mAh": "毫安时",
    "Hz": "赫兹",
    "kHz": "千赫",
    "MHz": "兆赫",
    "GHz": "吉赫",
    "dB": "分贝",
    "t": "吨",
    "px": "像素",
    "Pa": "帕",
    "kPa": "千帕",
    "J": "焦",
    "N": "牛",
    "cal": "卡",
    "kcal": "千卡",
    "mph": "英里每小时",
    "lb": "磅",
    "lbs": "磅",
    "oz": "盎司",
    "ft": "英尺",
    "fps": "帧每秒",
    "rpm": "转每分钟",
    "ms": "毫秒",
    "s": "秒",
    "h": "小时",
    "km/h": "公里每小时",
    "m/s": "米每秒",
}
_LONG = 7  # digits without commas or a unit from which a number is an id
_ID_CUES = re.compile(r"(?:电话|手机|号码|热线|拨打|致电|拨|打|呼叫|客服|证|卡号|账号|编号|验证码|房间|QQ)[^\d]{0,4}\Z")
_YEAR = re.compile(r"(?:19|20)\d\d")
_YEAR_CUES = re.compile(r"[在于自从至到]\s?\Z")
_COUNTS = re.compile(r"\s?[万亿千百元个人块只条次年岁天米吨克斤公里平票股字美欧英日港韩]")


def number(text: str) -> str:
    """ "1,234.5" -> "一千二百三十四点五"."""
    return words_of.number(text)


def plain_number(text: str, before: str, after: str) -> str:
    """A number by itself: a year before 年, an id digit by digit, or a quantity."""
    bare = text.lstrip("-−–")
    if not bare.isdecimal():
        return number(text)
    cued = bare == text and bool(_ID_CUES.search(before))
    if len(bare) >= 3 and cued and not _COUNTS.match(after):
        return words_of.digits(bare, phone=True)
    if (bare[0] == "0" and len(bare) > 1) or (len(bare) >= _LONG and not _COUNTS.match(after)):
        return ("负" if bare != text else "") + words_of.digits(bare)
    if _reads_as_year(bare, after.lstrip(" ")) or (
        _YEAR_CUES.search(before) and _YEAR.fullmatch(bare) and not _COUNTS.match(after)
    ):
        return words_of.digits(bare)
    if before.endswith("第"):
        return number(text)
    return words_of.quantity(text, after.lstrip(" "))


def _reads_as_year(text: str, after: str) -> bool:
    if len(text) == 4 and after.startswith("年"):
        return not text.endswith("000") or text == "2000"
    if len(text) == 2:
        return (after.startswith("年") and int(text) >= 50 and after[1:2] not in ("前", "后", "来", "的", "间")) or (
            text[1] in "05" and after.startswith("后") and after[1:2] not in ("面", "来", "退", "方")
        )
    return False


def date(year: str, month: int, day: int) -> str:
    """ "二零二五年三月十四日"; "" when there is no such day."""
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return ""
    return f"{words_of.digits(year)}年{number(str(month))}月{number(str(day))}日"


def date_mdy(text: str) -> str:
    """10/12/2019, month first unless that is impossible."""
    first, second, year = text.split("/")
    if len(year) == 2:
        return ""
    month, day = int(first), int(second)
    if month > 12:
        month, day = day, month
    return date(year, month, day)


def clock(text: str) -> str:
    """ "9:30" -> "九点三十分", "9:05 pm" -> "下午九点零五分"."""
    numbers = re.findall(r"\d+", text)
    half = re.search(r"[AaPp]", text)
    told = ("上午" if half.group().lower() == "a" else "下午") if half else ""
    told += words_of.quantity(str(int(numbers[0])), "点") + "点"
    if int(numbers[1]) or len(numbers) > 2:
        told += ("零" if int(numbers[1]) < 10 and int(numbers[1]) else "") + number(numbers[1]) + "分"
    if len(numbers) > 2:
        told += number(numbers[2]) + "秒"
    return told


def hour(text: str) -> str:
    """ "9pm" -> "下午九点"."""
    half = "上午" if "a" in text.lower() else "下午"
    return half + words_of.quantity(str(int(re.findall(r"\d+", text)[0])), "点") + "点"


def phone(text: str) -> str:
    """Digit by digit with 幺 for 1."""
    groups = [words_of.digits(group, phone=True) for group in re.findall(r"\d+", text)]
    return ("加" if text.startswith("+") else "") + " , ".join(groups)


def money(text: str, after: str) -> str:
    """ "￥99.5" -> "九十九点五元"; the unit is not said twice when it is also written."""
    currency, other = take_currency(text)
    unit = currency.chinese
    amounts = [re.sub(r"(\.\d*?)0+\Z", r"\1", part.replace(",", "")).rstrip(".") for part in numbers_in(text)]
    rest = re.sub(rf"{NUMBER}|[\s\-−–—~～]", "", other)
    sign = "负" if is_negative(text) else ""
    if rest in _SCALES:
        amounts = [_plain(Decimal(part) * _SCALES[rest]) for part in amounts]
        rest = ""
    if not rest:
        follows = re.match(r"[万亿千百]{1,2}", after)
        rest = follows.group() if follows else ""
        unit = "" if rest else unit
    if after[:2].startswith(("元", "块", "圆")) or (unit and after.startswith(unit)):
        unit = ""
    if rest and after.startswith(rest):
        rest = ""
    told = [words_of.quantity(part, rest or unit) for part in amounts]
    return sign + "到".join(told) + rest + unit


def _plain(value: Decimal) -> str:
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(text: str) -> str:
    """ "12.5%" -> "百分之十二点五", "3%-5%" -> "百分之三到百分之五"."""
    base = "千分之" if "‰" in text else "百分之"
    told = [number(part) for part in numbers_in(text)]
    both = text.count("%") + text.count("‰") > 1
    return ("负" if is_negative(text) else "") + base + ("到" + (base if both else "")).join(told)


def degrees(text: str) -> str:
    """ "-5°C" -> "零下五摄氏度"."""
    sign = "零下" if is_negative(text) and text[-1] in "CF" else "负" if is_negative(text) else ""
    told = "到".join(number(part) for part in numbers_in(text))
    if text.endswith("F"):
        return f"华氏{sign}{told}度"
    return sign + told + ("摄氏度" if text.endswith("C") else "度")


def number_range(text: str, after: str) -> str:
    """ "3-5" -> "三到五"; a falling pair is a score: "3-2" -> "三比二"."""
    parts = numbers_in(text)
    years = all(_YEAR.fullmatch(part) for part in parts) and not _COUNTS.match(after)
    if years or (after.lstrip().startswith("年") and all(len(part) == 4 for part in parts)):
        return "到".join(words_of.digits(part) for part in parts)
    values = [Decimal(part.replace(",", "")) for part in parts]
    if values[0] > values[-1] and "-" in text:
        return ("减" if after.lstrip().startswith("=") else "比").join(number(part) for part in parts)
    return "到".join(number(part) for part in parts)


def measure(text: str) -> str:
    """ "3kg" -> "三千克"; units nobody knows stay in letters."""
    match = re.match(rf"([-−–]?)({NUMBER})(?:{TILDE}({NUMBER}))?\s?(.+)", text)
    if match is None:
        return text
    amount, upper, unit = match.group(2).replace(",", ""), match.group(3), match.group(4)
    told = "" if unit in _UNITS or upper else read_measure(amount + unit)
    if not told or re.search(r"[A-Za-z\d]", told):
        name = _UNITS.get(unit) or read_measure("1" + unit).removeprefix("一")
        name = f" {unit} " if not name or re.search(r"[A-Za-z\d]", name) else name
        told = number(amount) + (f"到{number(upper)}" if upper else "") + name
    return ("负" if match.group(1) else "") + told


def ratio(text: str) -> str:
    """ "2:1" -> "二比一"."""
    return "比".join(number(part) for part in re.findall(r"\d+", text))


def fraction(text: str) -> str:
    """ "3/4" -> "四分之三", "2 1/2" -> "二又二分之一"."""
    *whole, top, bottom = re.findall(r"\d+", text)
    if text == "24/7":
        return "二十四七"
    told = f"{number(bottom)}分之{number(top)}"
    return f"{number(whole[0])}又{told}" if whole else told
