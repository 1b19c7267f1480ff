"""English readings of the shapes in `shapes`. Each function takes the written text and gives words parted by spaces."""

import re

from server.text import numbers_en as words_of
from server.text.currencies import take_currency
from server.text.shapes import INTEGER, MONTH, NUMBER, is_negative, numbers_in

_MONTHS = "January February March April May June July August September October November December".split()
_SCALES = {
    "k": "thousand",
    "m": "million",
    "b": "billion",
    "bn": "billion",
    "万": "ten thousand",
    "百万": "million",
    "千万": "ten million",
    "亿": "hundred million",
    "万亿": "trillion",
}
_UNITS = {
    "km": ("kilometer", "kilometers"),
    "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"),
    "nm": ("nanometer", "nanometers"),
    "µm": ("micrometer", "micrometers"),
    "μm": ("micrometer", "micrometers"),
    "m": ("meter", "meters"),
    "kg": ("kilogram", "kilograms"),
    "mg": ("milligram", "milligrams"),
    "µg": ("microgram", "micrograms"),
    "g": ("gram", "grams"),
    "lb": ("pound", "pounds"),
    "lbs": ("pound", "pounds"),
    "oz": ("ounce", "ounces"),
    "ml": ("milliliter", "milliliters"),
    "mL": ("milliliter", "milliliters"),
    "L": ("liter", "liters"),
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "kmh": ("kilometer per hour", "kilometers per hour"),
    "mph": ("mile per hour", "miles per hour"),
    "m/s": ("meter per second", "meters per second"),
    "kB/s": ("kilobyte per second", "kilobytes per second"),
    "MB/s": ("megabyte per second", "megabytes per second"),
    "GB/s": ("gigabyte per second", "gigabytes per second"),
    "kbps": ("kilobit per second", "kilobits per second"),
    "Mbps": ("megabit per second", "megabits per second"),
    "Gbps": ("gigabit per second", "gigabits per second"),
    "km²": ("square kilometer", "square kilometers"),
    "cm²": ("square centimeter", "square centimeters"),
    "m²": ("square meter", "square meters"),
    "ft²": ("square foot", "square feet"),
    "m³": ("cubic meter", "cubic meters"),
    "dB": ("decibel", "decibels"),
    "KB": ("kilobyte", "kilobytes"),
    "kB": ("kilobyte", "kilobytes"),
    "MB": ("megabyte", "megabytes"),
    "GB": ("gigabyte", "gigabytes"),
    "TB": ("terabyte", "terabytes"),
    "Hz": ("hertz", "hertz"),
    "kHz": ("kilohertz", "kilohertz"),
    "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"),
    "W": ("watt", "watts"),
    "kW": ("kilowatt", "kilowatts"),
    "MW": ("megawatt", "megawatts"),
    "kWh": ("kilowatt hour", "kilowatt hours"),
    "mAh": ("milliamp hour", "milliamp hours"),
    "V": ("volt", "volts"),
    "kV": ("kilovolt", "kilovolts"),
    "mV": ("millivolt", "millivolts"),
    "A": ("amp", "amps"),
    "J": ("joule", "joules"),
    "N": ("newton", "newtons"),
    "Pa": ("pascal", "pascals"),
    "kPa": ("kilopascal", "kilopascals"),
    "K": ("K", "K"),
    "ms": ("millisecond", "milliseconds"),
    "s": ("second", "seconds"),
    "sec": ("second", "seconds"),
    "secs": ("second", "seconds"),
    "min": ("minute", "minutes"),
    "mins": ("minute", "minutes"),
    "h": ("hour", "hours"),
    "hr": ("hour", "hours"),
    "hrs": ("hour", "hours"),
    "ft": ("foot", "feet"),
    "yd": ("yard", "yards"),
    "mi": ("mile", "miles"),
    "gal": ("gallon", "gallons"),
    "px": ("pixel", "pixels"),
    "fps": ("frame per second", "frames per second"),
    "rpm": ("R.P.M.", "R.P.M."),
    "psi": ("P.S.I.", "P.S.I."),
    "cal": ("calorie", "calories"),
    "kcal": ("kilocalorie", "kilocalories"),
}
_FRACTIONS = {2: "half", 4: "quarter"}
_YEAR_CUES = frozenset(
    "in since from by until till before after during circa year around of late early mid to and between spring summer"
    " autumn fall winter".split()
)
_COUNTED = frozenset("people men women children feet percent points".split())
_FUNCTION_S = frozenset("was is has as this its his".split())
_ROOM_CUES = re.compile(r"\b(?:room|flight|route|highway|bus|gate|suite|channel|interstate)\s+\Z", re.IGNORECASE)


def number(text: str) -> str:
    """ "1,234.5" -> "one thousand two hundred thirty four point five"."""
    return " ".join(words_of.number(text))


def plain_number(text: str, before: str, after: str) -> str:
    """A number by itself; four digits may be a year, many digits are told one by one."""
    bare = text.lstrip("-−–")
    if not bare.isdecimal():
        return number(text)
    if (bare[0] == "0" and len(bare) > 1) or len(bare) > 6:
        return " ".join([*(["minus"] if bare != text else []), *words_of.digits(bare)])
    if bare == text and len(bare) in (3, 4) and _ROOM_CUES.search(before):
        return " ".join(words_of.short_code(bare))
    if bare == text and len(bare) == 4 and _is_year(bare, before, after):
        return " ".join(words_of.year(bare))
    return number(text)


def _is_year(text: str, before: str, after: str) -> bool:
    previous = re.search(r"([A-Za-z]+)[\s,(]*\Z", before)
    following = re.match(r"\s+([a-z]+)", after)
    word = following.group(1) if following else ""
    if word in _COUNTED or (word.endswith("s") and len(word) > 3 and word not in _FUNCTION_S):
        return False
    cue = previous.group(1) if previous else ""
    cued = cue.lower() in _YEAR_CUES or cue in _MONTHS
    return 1900 <= int(text) <= 2099 or (cued and 1100 <= int(text) <= 1899)


def date(year: str, month: int, day: int) -> str:
    """ "March fourteenth twenty twenty five"; "" when there is no such day."""
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return ""
    return f"{_MONTHS[month - 1]} {' '.join(words_of.ordinal(str(day)))} {' '.join(words_of.year(year))}"


def date_mdy(text: str) -> str:
    """10/12/2019, month first unless that is impossible."""
    first, second, year = text.split("/")
    if len(year) == 2:
        year = ("19" if int(year) > 50 else "20") + year
    month, day = int(first), int(second)
    if month > 12:
        month, day = day, month
    return date(year, month, day)


_MONTH_DAY = re.compile(rf"({MONTH})\.?(\s+)(\d{{1,2}})[a-zA-Z]*(?:(,?)\s+(\d{{4}}))?")
_DAY_MONTH = re.compile(rf"(\d{{1,2}})[a-zA-Z]*\s+(?:of\s+)?({MONTH})\.?(?:(,?)\s+(\d{{4}}))?")


def month_day(text: str) -> list[tuple[str, int, int]]:
    """ "March 14th, 2025" in parts, each with its own place."""
    match = _MONTH_DAY.match(text)
    if match is None or not 1 <= int(match.group(3)) <= 31:
        return [(text, 0, len(text))]
    parts = [
        (_month(match.group(1)), match.start(1), match.start(3)),
        (" ".join(words_of.ordinal(match.group(3))), match.start(3), match.start(5) if match.group(5) else match.end()),
    ]
    if match.group(5):
        parts.append((" ".join(words_of.year(match.group(5))), match.start(5), match.end(5)))
    return parts


def day_month(text: str, *, article: bool) -> list[tuple[str, int, int]]:
    """ "14 March 2025" -> "the fourteenth of March", "twenty twenty five"."""
    match = _DAY_MONTH.match(text)
    if match is None or not 1 <= int(match.group(1)) <= 31:
        return [(text, 0, len(text))]
    the = "the " if article else ""
    parts = [
        (the + " ".join(words_of.ordinal(match.group(1))) + " of", 0, match.start(2)),
        (_month(match.group(2)), match.start(2), match.end(2)),
    ]
    if match.group(4):
        parts.append((" ".join(words_of.year(match.group(4))), match.start(4), match.end(4)))
    return parts


def _month(name: str) -> str:
    return next(month for month in _MONTHS if month.startswith(name[:3]))


def clock(text: str) -> str:
    """ "9:30 am" -> "nine thirty A.M."."""
    numbers = re.findall(r"\d+", text)
    hour, minute = numbers[0], numbers[1]
    half = re.search(r"([AaPp])\.?[Mm]", text)
    words = words_of.cardinal(hour)
    if minute == "00":
        if not half and len(numbers) == 2 and 0 < int(hour) <= 12:
            words.append("o'clock")
        elif not half and len(numbers) == 2:
            words += ["hundred"] if int(hour) else ["hundred", "hours"]
    else:
        words += (["oh"] if minute[0] == "0" else []) + words_of.cardinal(minute)
    if len(numbers) > 2:
        words += ["and", *words_of.cardinal(numbers[2]), "second" if int(numbers[2]) == 1 else "seconds"]
    return " ".join(words) + (f" {half.group(1).upper()}.M." if half else "")


def hour(text: str) -> str:
    """ "9pm" -> "nine P.M."."""
    half = "A.M." if "a" in text.lower() else "P.M."
    return " ".join([*words_of.cardinal(re.findall(r"\d+", text)[0]), half])


def phone(text: str) -> str:
    """Digit by digit, with a pause at every dash or space."""
    groups = [" ".join(words_of.digits(group)) for group in re.findall(r"\d+", text)]
    return ("plus " if text.startswith("+") else "") + " , ".join(groups)


def money(text: str) -> str:
    """ "$19.99" -> "nineteen dollars and ninety nine cents", "$3.5 million" -> "three point five million dollars"."""
    currency, other = take_currency(text)
    one, many = currency.one, currency.many
    amounts = numbers_in(text)
    rest = re.sub(rf"{NUMBER}|[\s\-−–—~～]", "", other)
    scale = _SCALES.get(rest, _SCALES.get(rest.lower(), rest))
    sign = "minus " if is_negative(text) else ""
    if len(amounts) > 1:
        return f"{sign}{number(amounts[0])} to {number(amounts[1])} {scale} {many}"
    whole, _, fraction = amounts[0].replace(",", "").partition(".")
    if scale or len(fraction) not in (0, 2) or not currency.cents:
        single = amounts[0] == "1" and not scale
        return f"{sign}{number(amounts[0])} {scale} {one if single else many}"
    told = []
    if int(whole) or not int(fraction or 0):
        told.append(f"{number(whole)} {one if int(whole) == 1 else many}")
    if int(fraction or 0):
        told.append(f"{number(fraction)} {currency.cent if int(fraction) == 1 else currency.cents}")
    return sign + " and ".join(told)


def percent(text: str) -> str:
    """ "12.5%" -> "twelve point five percent"."""
    name = "per mille" if "‰" in text else "percent"
    return f"{_told_range(text)} {name}"


def degrees(text: str) -> str:
    """ "-5°C" -> "minus five degrees Celsius"."""
    scale = " Celsius" if text.endswith("C") else " Fahrenheit" if text.endswith("F") else ""
    single = numbers_in(text) == ["1"]
    return f"{_told_range(text)} {'degree' if single else 'degrees'}{scale}"


def _told_range(text: str) -> str:
    sign = "minus " if is_negative(text) else ""
    return sign + " to ".join(number(part) for part in numbers_in(text))


def number_range(text: str, after: str) -> str:
    """ "3-5" -> "three to five"; two years are read as years, "10 - 5 =" as a sum."""
    parts = numbers_in(text)
    if after.lstrip().startswith("="):
        return " minus ".join(number(part) for part in parts)
    if all(len(part) == 4 and part.isdecimal() and 1100 <= int(part) <= 2099 for part in parts):
        return " to ".join(" ".join(words_of.year(part)) for part in parts)
    return " to ".join(number(part) for part in parts)


def measure(text: str) -> str:
    """ "3 kg" -> "three kilograms"."""
    match = re.search(rf"{NUMBER}\s?([^\d\s]+)\Z", text)
    if match is None:
        return text
    unit = match.group(1)
    one, many = _UNITS.get(unit, (unit, unit))
    amount = text[: match.start(1)]
    return f"{_told_range(amount)} {one if amount.strip() == '1' else many}"


def ratio(text: str) -> str:
    """ "2:1" -> "two to one"."""
    return " to ".join(number(part) for part in re.findall(r"\d+", text))


def fraction(text: str) -> str:
    """ "3/4" -> "three quarters", "2 1/2" -> "two and one half", "24/7" -> "twenty four seven"."""
    *whole, top, bottom = re.findall(r"\d+", text)
    over, under = int(top), int(bottom)
    if over >= under or under > 20:
        return f"{number(top)} {number(bottom)}" if text == "24/7" else f"{number(top)} over {number(bottom)}"
    name = _FRACTIONS.get(under) or " ".join(words_of.ordinal(bottom))
    if over != 1:
        name = "halves" if name == "half" else name + "s"
    told = f"{number(top)} {name}"
    return f"{number(whole[0])} and {told}" if whole else told


def ordinal(text: str) -> str:
    """ "23rd" -> "twenty third"."""
    digits = re.match(INTEGER, text)
    return " ".join(words_of.ordinal(digits.group().replace(",", ""))) if digits else text


def decade(text: str) -> str:
    """ "1990s" -> "nineteen nineties"."""
    return " ".join(words_of.decade("".join(char for char in text if char.isdecimal())))
