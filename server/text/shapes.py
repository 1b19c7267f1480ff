"""The shapes of written things that are not plain words: one regular expression whose named groups are the shapes.

Shapes are tried in this order at every position of the cleaned text; the first that fits wins.
"""

import re

from server.text.characters import HANZI_CLASS
from server.text.currencies import CODE, SYMBOL

INTEGER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"
NUMBER = rf"{INTEGER}(?:\.\d+)?"
SIGN = r"(?:(?<![A-Za-z0-9_.)\]年月日号点时周岁元])[-−–](?=\d))?"
TILDE = r"\s?[-–—~～]\s?"
SCALE = r"(?:万亿|千万|百万|[万亿]|\s?(?:thousand|million|billion|trillion)\b|(?:[kKMmB]|bn)(?![A-Za-z]))"
MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December"
    r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec)"
)
HALF_DAY = r"(?:[AaPp]\.?[Mm]\.?(?![A-Za-z]))"
SUFFIX = r"(?:st|nd|rd|th|ST|ND|RD|TH)"
_THEN_YEAR = r"(?:,?\s+(?:1\d|20)\d\d(?!\d|,\d|\.\d))?"
EN_UNIT = (
    r"(?:km/h|kmh|mph|m/s|MB/s|kB/s|GB/s|Mbps|Gbps|kbps|kWh|mAh|kHz|MHz|GHz|Hz|km²|cm²|m²|m³|ft²|km|cm|mm|nm|µm|μm|kg|mg|µg"
    r"|g|lbs|lb|oz|ml|mL|dB|TB|GB|MB|KB|kB|kW|MW|kV|mV|ms|min|mins|hrs|hr|sec|secs|ft|yd|mi|gal|px|fps|rpm|psi|cal|kcal"
    r"|L|W|V|A|J|N|Pa|kPa|K(?=\b)|m|s|h)"
)
TLD = (
    r"(?:com|org|net|edu|gov|io|ai|cn|dev|app|me|co|uk|us|de|fr|jp|kr|info|biz|tv|cc|xyz|top|site|online|tech|cloud|hk|tw"
    r"|eu|ca|au|in|ru|gg|ly|fm|so|sh)"
)
_URL_CHAR = rf"[^\s<>\"“”‘’「」『』《》（）【】，。！？；：、`|{HANZI_CLASS}]"
_LETTER = rf"(?:(?![{HANZI_CLASS}²³])[^\W\d_])"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

SHAPES: dict[str, str] = {
    "hanzi": f"[{HANZI_CLASS}]+",
    "space": r"\s+",
    "url": rf"(?:(?:https?|ftp|wss?|file)://|www\.){_URL_CHAR}*(?![.,;:!?'\")\]}}*_~]){_URL_CHAR}",
    "email": rf"[A-Za-z0-9][A-Za-z0-9._%+-]{{0,63}}@{_HOST}(?:\.{_HOST})+",
    "host": rf"(?:{_HOST}\.)+{TLD}(?::\d{{2,5}})?(?:/{_URL_CHAR}*[A-Za-z0-9/_-])?(?![A-Za-z0-9_-]|\.[A-Za-z0-9_])",
    "date_ymd": r"(?<![\d.])(?:1\d|20)\d\d(?:-\d{1,2}-\d{1,2}|/\d{1,2}/\d{1,2}|\.\d{1,2}\.\d{1,2})(?![\d./-]\d|\d)",
    "date_mdy": r"(?<![\d./])\d{1,2}/\d{1,2}/(?:(?:1\d|20)\d\d|\d\d)(?![\d/])",
    "version": r"[vV](?:ersion\s?|\.)?\d+(?:\.\d+)+|(?<![A-Za-z0-9_.])\d+(?:\.\d+){2,}",
    "clock": rf"(?<![\d:])\d{{1,2}}[:：][0-5]\d(?:[:：][0-5]\d(?:\.\d+)?)?(?:\s?{HALF_DAY})?(?![\d:]|：\d)",
    "hour": rf"(?<![A-Za-z0-9_.])\d{{1,2}}\s?{HALF_DAY}",
    "phone": (
        r"(?<![A-Za-z0-9_.])(?:"
        r"(?:\+?86[- ]?)?1[3-9]\d(?:\d{8}|[- ]\d{4}[- ]\d{4})"  # Chinese mobile
        r"|0\d{2,3}-\d{7,8}|[48]00-\d{3,4}-\d{3,4}"  # Chinese landline and service numbers
        r"|(?:\+?1[-. ])?(?:\(\d{3}\)\s?|\d{3}[-. ])\d{3}[-. ]\d{4}|\d{3}-\d{4}"  # North American
        r"|\+\d{1,3}[- ]\d[\d -]{5,13}\d|\+\d{8,15}"  # international
        r")(?![A-Za-z0-9_]|-\d)"
    ),
    "money": rf"(?:{SIGN}|[-−–])?{SYMBOL}\s?{NUMBER}(?:{TILDE}{SYMBOL}?{NUMBER})?{SCALE}?",
    "coded_money": (
        rf"{SIGN}{NUMBER}{SCALE}?\s?(?:{CODE}(?![A-Za-z])|[€£](?!\d))"
        rf"|(?<![A-Za-z]){CODE}\s?{NUMBER}"
    ),
    "percent": rf"{SIGN}{NUMBER}(?:\s?[%‰]?{TILDE}{NUMBER})?\s?[%‰]",
    "degrees": rf"{SIGN}{NUMBER}(?:{TILDE}{NUMBER})?\s?°\s?[CF]?(?![A-Za-z])",
    "month_day": rf"(?<![A-Za-z]){MONTH}\.?\s+\d{{1,2}}{SUFFIX}?(?!\d|:\d|[.,]\d|%){_THEN_YEAR}",
    "day_month": rf"(?<![A-Za-z0-9_.])\d{{1,2}}{SUFFIX}?\s+(?:of\s+)?{MONTH}(?![A-Za-z])\.?{_THEN_YEAR}",
    "ratio": r"(?<![\d:.])\d+[:：]\d+(?![\d:]|：\d)",
    "fraction": r"(?<![A-Za-z0-9_./])(?:\d{1,3} )?\d{1,4}/\d{1,4}(?![A-Za-z0-9_/]|\.\d)",
    "ordinal": rf"(?<![A-Za-z0-9_.]){INTEGER}{SUFFIX}(?![A-Za-z])",
    "decade": r"(?<![A-Za-z0-9_.])['’]?(?:\d\d)?\d0['’]?s(?![A-Za-z])",
    "measure": rf"{SIGN}{NUMBER}(?:{TILDE}{NUMBER})?\s?{EN_UNIT}(?![A-Za-z0-9²³/])",
    "range": rf"(?<![A-Za-z0-9_.-]){NUMBER}{TILDE}{NUMBER}(?![A-Za-z0-9_-]|\.\d)",
    "hash_number": r"[#№]\s?\d+(?![A-Za-z0-9_])",
    "initials": (
        r"[A-Z]{1,3}&[A-Z]{1,3}(?![A-Za-z])|Ph\.D\.?"  # AT&T
        r"|(?:[A-Za-z]\.){2,}(?:[A-Za-z](?![A-Za-z]))?|[A-Za-z](?:\.[A-Za-z])+(?![A-Za-z])"  # U.S., e.g, a.m
    ),
    "numero": r"(?<![A-Za-z])(?:No|Nos|Fig|Vol|Ch|Sec|Ver)\.\s?\d+(?![A-Za-z0-9_])",
    "code": (
        r"(?:[A-Za-z]+(?:[-_.][A-Za-z]+)*[-_]?\d+|\d+(?:\.\d+)?[A-Za-z])(?:[-_.]?[A-Za-z0-9])*(?:\+|(?=[^A-Za-z0-9]|\Z))"
        r"|(?=[0-9_.]{0,32}[A-Za-z])[A-Za-z0-9]+(?:[_.][A-Za-z0-9]+)+\+?"
    ),
    "number": rf"{SIGN}(?:{NUMBER}|(?<![A-Za-z0-9_.])\.\d+)",
    "abbreviation": r"(?<![A-Za-z])[A-Za-z]{1,7}\.(?![A-Za-z0-9_.])",
    "language_name": r"(?:[CF]#|C\+\+|\.NET)(?![A-Za-z0-9_])",
    "word": rf"{_LETTER}+(?:['’-]{_LETTER}+)*",
    "mark": r"\.{2,}|…+|—+|--+|[，,、､；;：:。｡．.？?！!‼⁇⁈⁉‽،؛؟।]",
    "symbol": r"\S",
}

_NUMBERS = re.compile(NUMBER)
_SIGNED = re.compile(r"\s*[-−–]")


def numbers_in(text: str) -> list[str]:
    """The numbers written in `text`, without signs."""
    return _NUMBERS.findall(text)


def is_negative(text: str) -> bool:
    """Whether `text` begins with a minus sign."""
    return _SIGNED.match(text) is not None


SHAPE = re.compile("|".join(f"(?P<{name}>{pattern})" for name, pattern in SHAPES.items()))
