"""Money: how the currencies that `shapes` knows are written and named, in one table for both languages."""

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Currency:
    """A currency's Chinese name; its English one for one and for several; its hundredth part, "" where none is said."""

    chinese: str
    one: str
    many: str
    cent: str = ""
    cents: str = ""


def _with_cents(chinese: str, one: str) -> Currency:
    return Currency(chinese, one, one + "s", "cent", "cents")


_SYMBOLS: Final = {
    "$": _with_cents("美元", "dollar"),
    "US$": _with_cents("美元", "US dollar"),
    "HK$": _with_cents("港元", "Hong Kong dollar"),
    "NT$": _with_cents("新台币", "Taiwan dollar"),
    "A$": _with_cents("澳元", "Australian dollar"),
    "C$": _with_cents("加元", "Canadian dollar"),
    "€": _with_cents("欧元", "euro"),
    "£": Currency("英镑", "pound", "pounds", "penny", "pence"),
    "¥": Currency("元", "yuan", "yuan"),
    "￥": Currency("元", "yuan", "yuan"),
    "₩": Currency("韩元", "won", "won"),
    "₹": Currency("卢比", "rupee", "rupees"),
}
_CODES: Final = {
    "USD": Currency("美元", "U.S. dollar", "U.S. dollars"),
    "CNY": Currency("元", "yuan", "yuan"),
    "RMB": Currency("元", "yuan", "yuan"),
    "EUR": Currency("欧元", "euro", "euros"),
    "GBP": Currency("英镑", "pound", "pounds"),
    "JPY": Currency("日元", "yen", "yen"),
    "HKD": Currency("港元", "Hong Kong dollar", "Hong Kong dollars"),
    "TWD": Currency("新台币", "Taiwan dollar", "Taiwan dollars"),
    "KRW": Currency("韩元", "won", "won"),
}
CURRENCIES: Final = {**_SYMBOLS, **_CODES}


def _any_of(written: dict[str, Currency]) -> str:
    return "(?:" + "|".join(re.escape(name) for name in sorted(written, key=len, reverse=True)) + ")"


SYMBOL: Final = _any_of(_SYMBOLS)
CODE: Final = _any_of(_CODES)
_WRITTEN = re.compile(f"{SYMBOL}|{CODE}")


def take_currency(text: str) -> tuple[Currency, str]:
    """The currency written in `text`, and the rest of it. A text without one counts as dollars."""
    match = _WRITTEN.search(text)
    return (CURRENCIES[match.group()] if match else CURRENCIES["$"]), _WRITTEN.sub("", text)
