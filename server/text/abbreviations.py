"""English abbreviations that are said in full."""

import re

_ALWAYS = {
    "mr": "Mister",
    "mrs": "Missus",
    "ms": "Miss",
    "dr": "Doctor",
    "prof": "Professor",
    "gen": "General",
    "sen": "Senator",
    "rep": "Representative",
    "gov": "Governor",
    "capt": "Captain",
    "lt": "Lieutenant",
    "col": "Colonel",
    "sgt": "Sergeant",
    "rev": "Reverend",
    "hon": "Honorable",
    "jr": "Junior",
    "sr": "Senior",
    "vs": "versus",
    "etc": "et cetera",
    "inc": "Incorporated",
    "ltd": "Limited",
    "corp": "Corporation",
    "approx": "approximately",
    "dept": "department",
    "est": "estimated",
    "mt": "Mount",
    "ave": "Avenue",
    "blvd": "Boulevard",
    "jan": "January",
    "feb": "February",
    "mar": "March",
    "apr": "April",
    "aug": "August",
    "sept": "September",
    "sep": "September",
    "oct": "October",
    "nov": "November",
    "dec": "December",
}
_BEFORE_NUMBER = {
    "no": "number",
    "nos": "numbers",
    "fig": "figure",
    "figs": "figures",
    "vol": "volume",
    "ch": "chapter",
    "sec": "section",
    "p": "page",
    "pp": "pages",
    "eq": "equation",
    "ver": "version",
    "ext": "extension",
    "art": "article",
}
_CAPITALISED = frozenset("gen sen rep gov col rev hon mar mt est jan dec sec inc corp".split())
_NAME_FOLLOWS = re.compile(r"\s*[A-Z]")
_NUMBER_FOLLOWS = re.compile(r"\s*\d")


def read_numero(text: str) -> tuple[str, str]:
    """ "No.1" -> ("number", "1")."""
    word, _, number = text.partition(".")
    return _BEFORE_NUMBER[word.lower()], number.strip()


def expand_abbreviation(text: str, before: str, after: str) -> list[tuple[str, int, int]]:
    """A word with its full stop: in full, or the word and the stop. Spans count from the word's start."""
    word = text[:-1]
    lower = word.lower()
    full = ""
    if len(word) == 1 and word.isupper() and _NAME_FOLLOWS.match(after):
        return [(text, 0, len(text))]  # an initial: "J. K. Rowling"
    if lower in _BEFORE_NUMBER and _NUMBER_FOLLOWS.match(after):
        full = _BEFORE_NUMBER[lower]
    elif lower == "st":
        full = "Saint" if _NAME_FOLLOWS.match(after) and not re.search(r"[A-Za-z]\s+\Z", before) else "Street"
    elif lower in _ALWAYS and not (lower in _CAPITALISED and not word[0].isupper()):
        full = _ALWAYS[lower]
    if not full:
        return [(word, 0, len(word)), (".", len(word), len(text))]
    if after.strip() or lower in ("mr", "mrs", "ms", "dr", "prof"):
        return [(full, 0, len(text))]
    return [(full, 0, len(word)), (".", len(word), len(text))]
