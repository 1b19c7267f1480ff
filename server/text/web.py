"""URLs, e-mail addresses, file names, versions and product codes, read the way people say them."""

import re

from server.text import numbers_en, numbers_zh
from server.text.tokens import Language

_DOT = {"zh": "点", "en": " dot "}
_SLASH = {"zh": "斜杠", "en": " slash "}
_AT = {"zh": "艾特", "en": " at "}
_COLON = {"zh": "冒号", "en": " colon "}
_SCHEME = re.compile(r"[a-z]+://", re.IGNORECASE)
_PIECE = re.compile(r"\d+|[A-Za-z]+|.", re.DOTALL)
_SPELLED = frozenset(
    "cn io ai uk us de fr jp kr tv cc hk tw eu ca ru gg ly fm"  # top-level domains
    " py js ts md cpp csv pdf html css php sql xml".split()  # file endings
)
_MAX_SEGMENTS = 2  # of a URL's path
_MAX_SEGMENT = 24  # a longer one is an identifier nobody wants to hear
_MAX_HOST_PARTS = 5


def letters(word: str) -> str:
    """A word to be spelled: "py" -> "P.Y."."""
    return "".join(char + "." for char in word.upper())


def read_digits(text: str, language: Language) -> str:
    """A number inside a name: short ones as a number, others digit by digit (zh) or in pairs (en)."""
    if language == "zh":
        return numbers_zh.digits(text) if len(text) > 2 or text[0] == "0" else numbers_zh.cardinal(text)
    return " ".join(numbers_en.short_code(text))


def read_name(text: str, language: Language) -> str:
    """Letters and digits mixed: "GPT-4" -> "GPT four", "snake_case" -> "snake case", "main.py" -> "main dot P.Y."."""
    words = []
    pieces = _PIECE.findall(text)
    for at, piece in enumerate(pieces):
        if piece.isdecimal():
            words.append(read_digits(piece, language))
        elif piece.isalpha():
            spelled = at and pieces[at - 1] == "." and piece.lower() in _SPELLED
            words.append(letters(piece) if spelled else piece)
        elif piece == "." and 0 < at < len(pieces) - 1:
            words.append(_read_dot(pieces[at - 1], pieces[at + 1], language))
        elif piece == "+" and at == len(pieces) - 1:
            words.append("加" if language == "zh" else "plus")
        elif piece == "@":
            words.append(_AT[language])
    return " ".join(words)


def _read_dot(before: str, after: str, language: Language) -> str:
    """ "3.11" point, "main.py" dot, "done.Next" (a missing space) a full stop."""
    if before.isdecimal() and after.isdecimal():
        return "点" if language == "zh" else "point"
    joined = before.islower() and len(after) > 1 and after[0].isupper() and after[1:].islower()
    return "." if joined else _DOT[language]


def read_email(text: str, language: Language) -> str:
    """ "a@b.co" -> "a at b dot co"."""
    name, _, host = text.partition("@")
    return read_name(name, language) + " " + _AT[language] + " " + _read_host(host, language)


def read_url(text: str, language: Language) -> str:
    """Host and the first parts of the path; scheme, query and fragment are left out."""
    rest = _SCHEME.sub("", text, count=1)
    rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    host, *path = rest.split("/")
    words = _read_host(host.rpartition("@")[2], language)
    told = [part for part in path if part and len(part) <= _MAX_SEGMENT and not _is_random(part)]
    for part in told[:_MAX_SEGMENTS]:
        words += " " + _SLASH[language] + " " + read_name(part.replace("-", " "), language)
    return words


def _is_random(part: str) -> bool:
    """An id rather than a word: "dp3kx92", "%E4%BD"."""
    return "%" in part or (len(part) > 6 and len(re.findall(r"[A-Za-z]\d|\d[A-Za-z]", part)) > 1)


def _read_host(host: str, language: Language) -> str:
    name, _, port = host.partition(":")
    parts = [part for part in name.split(".") if part]
    words = []
    for at, part in enumerate(parts[-_MAX_HOST_PARTS:]):
        if part.lower() == "www":
            words.append("W.W.W.")
        elif at and part.lower() in _SPELLED:
            words.append(letters(part))
        else:
            words.append(read_name(part, language))
    told = f" {_DOT[language]} ".join(words)
    return told + (f" {_COLON[language]} {read_digits(port, language)}" if port.isdecimal() else "")


def read_version(text: str, language: Language) -> str:
    """ "v1.2.3" -> "version one point two point three" / "V一点二点三"."""
    match = re.search(r"\d", text)
    start = match.start() if match else 0
    parts = text[start:].split(".")
    if language == "zh":
        prefix = "V " if start else ""
        return prefix + "点".join(numbers_zh.digits(p) if len(p) > 2 else numbers_zh.cardinal(p) for p in parts)
    prefix = "version " if start else ""
    return prefix + " point ".join(" ".join(numbers_en.cardinal(p)) for p in parts)
