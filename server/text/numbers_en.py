"""Numbers in English words (American: no "and" after hundred)."""

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen"
).split()
_TENS = ["", "", *"twenty thirty forty fifty sixty seventy eighty ninety".split()]
_SCALES = ["", "thousand", "million", "billion", "trillion", "quadrillion"]
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
MAX_DIGITS = 18  # longer integers are read digit by digit


def digits(text: str) -> list[str]:
    """Digit by digit."""
    return [_ONES[int(char)] for char in text if char.isdecimal()]


def cardinal(text: str) -> list[str]:
    """An integer in decimal digits: "1250" -> one thousand two hundred fifty."""
    text = text.lstrip("0")
    if not text:
        return ["zero"]
    if len(text) > MAX_DIGITS:
        return digits(text)
    words: list[str] = []
    power = (len(text) - 1) // 3
    for at in range(power, -1, -1):
        group = int(text[max(0, len(text) - 3 * at - 3) : len(text) - 3 * at])
        if group:
            words += _below_thousand(group) + ([_SCALES[at]] if at else [])
    return words


def _below_thousand(value: int) -> list[str]:
    words = []
    if value >= 100:
        words += [_ONES[value // 100], "hundred"]
        value %= 100
    if value >= 20:
        words.append(_TENS[value // 10])
        value %= 10
    if value or not words:
        words.append(_ONES[value])
    return words if words[-1] != "zero" or len(words) == 1 else words[:-1]


def number(text: str) -> list[str]:
    """A decimal number, also with a sign and thousands commas: "-12.50" -> minus twelve point five zero."""
    sign = ["minus"] if text[:1] in "-−–" else []
    whole, _, fraction = text.lstrip("-−–+").replace(",", "").partition(".")
    return sign + cardinal(whole or "0") + (["point", *digits(fraction)] if fraction else [])


def ordinal(text: str) -> list[str]:
    """ "23" -> twenty third."""
    words = cardinal(text)
    last = words[-1]
    if last in _ORDINALS:
        words[-1] = _ORDINALS[last]
    else:
        words[-1] = last[:-1] + "ieth" if last.endswith("y") else last + "th"
    return words


def year(text: str) -> list[str]:
    """Four digits as a year: "1987" nineteen eighty seven, "2005" two thousand five, "1905" nineteen oh five."""
    high, low = int(text[:2]), int(text[2:])
    if high % 10 == 0 and low < 10:
        return cardinal(text)
    if low == 0:
        return [*cardinal(text[:2]), "hundred"]
    return [*cardinal(text[:2]), *(["oh"] if low < 10 else []), *cardinal(text[2:])]


def decade(text: str) -> list[str]:
    """ "1990" -> nineteen nineties, "80" -> eighties."""
    words = year(text) if len(text) == 4 else cardinal(text)
    words[-1] = words[-1][:-1] + "ies" if words[-1].endswith("y") else words[-1] + "s"
    return words


def short_code(text: str) -> list[str]:
    """A number inside a name: "4" four, "380" three eighty, "4090" forty ninety, longer ones digit by digit."""
    if text[0] == "0" or len(text) > 4:
        return digits(text)
    if len(text) < 3 or text.endswith("00"):
        return cardinal(text)
    head, tail = text[:-2], text[-2:]
    return [*cardinal(head), *(["oh"] if tail[0] == "0" else []), *cardinal(tail)]
