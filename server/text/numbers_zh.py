"""Numbers in Chinese words."""

_DIGITS = "零一二三四五六七八九"
_PHONE_DIGITS = "零幺二三四五六七八九"  # 1 is said "yao" where digits are told one by one
_GROUPS = ("", "万", "亿", "万亿")
MAX_DIGITS = 16  # longer integers are read digit by digit

# Measure words and units before which 2 is 两. 月 日 号 楼 级 等 班 keep 二.
_PAIR_WORDS = frozenset(
    "个只条张本位名次天年周岁人倍步遍点项组句段支把杯瓶碗顿双对套份颗座所间门亩升吨克米元块斤公千厘毫台辆件层种类家届场篇首部栋棵匹"
    "头口根片朵幅枚粒滴堆批队群代世秒分小刻角毛袋箱盒包桶串"
)


def digits(text: str, *, phone: bool = False) -> str:
    """Digit by digit: "2025" -> "二零二五"; `phone` says 幺 for 1."""
    names = _PHONE_DIGITS if phone else _DIGITS
    return "".join(names[int(char)] for char in text if char.isdecimal())


def cardinal(text: str) -> str:
    """An integer in decimal digits: "105" -> "一百零五", "20000" -> "两万"."""
    text = text.lstrip("0")
    if not text:
        return "零"
    if len(text) > MAX_DIGITS:
        return digits(text)
    groups = []
    while text:
        groups.append(int(text[-4:]))
        text = text[:-4]
    words = ""
    for power in reversed(range(len(groups))):
        group = groups[power]
        if group == 0:
            continue
        gap = bool(words) and (group < 1000 or groups[power + 1] == 0)
        name = "两" if group == 2 and power and not words else _below_ten_thousand(group, leading=not words)
        words += ("零" if gap else "") + name + _GROUPS[power]
    return words


def _below_ten_thousand(value: int, *, leading: bool) -> str:
    words, gap = "", False
    whole = value
    for unit, name in ((1000, "千"), (100, "百"), (10, "十"), (1, "")):
        digit, value = divmod(value, unit)
        if digit == 0:
            gap = bool(words)
            continue
        two = "两" if digit == 2 and unit >= 1000 else _DIGITS[digit]
        if unit == 10 and digit == 1 and leading and whole < 20:
            two = ""  # 十二, not 一十二
        words += ("零" if gap else "") + two + name
        gap = False
    return words


def number(text: str) -> str:
    """A decimal number, also with a sign and thousands commas: "-1,234.50" -> "负一千二百三十四点五零"."""
    sign = "负" if text[:1] in "-−–" else ""
    whole, _, fraction = text.lstrip("-−–+").replace(",", "").partition(".")
    return sign + cardinal(whole or "0") + ("点" + digits(fraction) if fraction else "")


def quantity(text: str, following: str) -> str:
    """A number before what it counts: "2" before 个 is 两."""
    if text == "2" and following and (following[0] in _PAIR_WORDS or following[0] in "万亿千百"):
        return "两"
    return number(text)
