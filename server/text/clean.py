"""Takes out of a segment what is written but not spoken: Markdown, HTML, emoji, control and zero-width characters.

Works on one segment at a time, so the two ends of a pair (`**bold, text**`) may be in different segments.
"""

import html
import re
import unicodedata
from dataclasses import dataclass

from server.text.characters import HANZI_CLASS


@dataclass(frozen=True, slots=True)
class CleanText:
    """Text to be spoken; character `i` was written at `[starts[i], ends[i])` of the segment."""

    text: str
    starts: list[int]
    ends: list[int]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where `text[start:end]` (not empty) was written."""
        return self.starts[start], self.ends[end - 1]


_PLAIN = re.compile(rf"[A-Za-z0-9 ,.?!'，。？！、：；{HANZI_CLASS}]*")

# Whole lines and their beginnings. `^` is also the start of a segment, which need not start a line: harmless for these.
_FENCE = re.compile(r"^[ \t]*(?:```|~~~).*$", re.MULTILINE)
_RULE = re.compile(r"^[ \t]*+(?:(?:[-*_=][ \t]*+){3,}+|\|?[ \t]*+:?-{2,}+:?[ \t]*+(?:\|[ \t:|-]*+)?)$", re.MULTILINE)
_LINE_START = re.compile(
    r"^[ \t]*(?:>[ \t]?)*[ \t]*(?:#{1,6}(?=[ \t])|[-*+•◦▪‣●○■□](?=[ \t]))?[ \t]*(?:\[[ xX]\](?=[ \t]))?", re.MULTILINE
)
_TRAILING_HASHES = re.compile(r"[ \t]#+[ \t]*$", re.MULTILINE)
_TABLE_ROW = re.compile(r"^[ \t]*\|.*$|^.*[ \t]\|[ \t].*[ \t]\|[ \t].*$", re.MULTILINE)

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_TAG = re.compile(r"</?([a-zA-Z][a-zA-Z0-9]*)(?=[\s/>])[^<>\n]{0,200}>")
_BREAKING_TAGS = frozenset("br p div li tr td th h1 h2 h3 h4 h5 h6 ul ol table hr".split())
_AUTOLINK = re.compile(r"<((?:https?://|mailto:)[^<>\s]+|[^<>\s@]+@[^<>\s@]+)>")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});")
_TARGET = r"[^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?:[ \t]+\"[^\"\n]*\")?\)"  # (url "title"), after its bracket
_IMAGE_OR_LINK = re.compile(rf"!?\[([^\[\]\n]*)\](\({_TARGET}|\[[^\]\n]*\])")
_LINK_END = re.compile(rf"\](\((?=https?://|www\.|mailto:|/|\#|\.){_TARGET})")
_FOOTNOTE = re.compile(r"\[\^[^\]\s]{1,20}\]:?")
_STARS = re.compile(r"\*+")
_TIMES = re.compile(r"(?<=[\w)])[ \t]*\*[ \t]*(?=[\w(])")
_STRIKE = re.compile(r"~~+|`+")
_UNDERSCORES = re.compile(r"(?<![^\W_])_+|_+(?![^\W_])")
_ESCAPE = re.compile(r"\\(?=[\\`*_{}\[\]()#+.!|<>~-])")

_KEPT_SYMBOLS = frozenset("$+<=>^|~¢£¤¥±×÷€₩₹°№℃℉∞≈≠≤≥−–¬©®™§µΩ√∑π‰`")
_SUPERSCRIPTS = frozenset("²³")
_SPECIAL = {"㎡": "m²", "㎥": "m³", "℃": "°C", "℉": "°F", "⁄": "/", "−": "-", "‐": "-", "‑": "-", "　": " "}
_ASCII_CONTROLS = {"\n": "\n", "\r": "\n", "\x0b": "\n", "\x0c": "\n", "\t": " "}
_VULGAR = re.compile(r"[¼-¾⅐-⅞]")


def clean(text: str, kept: str = "") -> CleanText:
    """What of `text` is to be spoken. `kept`: characters that stay as they are. Never raises, whatever it holds."""
    if _PLAIN.fullmatch(text):
        return CleanText(text, list(range(len(text))), list(range(1, len(text) + 1)))
    replaced: dict[int, tuple[int, str]] = {}  # start -> end, what to read instead
    _mark_html(text, replaced)
    _mark_lines(text, replaced)
    _mark_inline(text, replaced)
    characters: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    while at < len(text):
        end, new = replaced.get(at) or (at + 1, text[at] if text[at] in kept else fold(text[at]))
        for char in new:
            characters.append(char)
            starts.append(at)
            ends.append(end)
        at = max(end, at + 1)
    return _compose(characters, starts, ends)


def fold(char: str) -> str:
    """One character as it is spoken: full width to ASCII, emoji to a space, invisible ones to nothing."""
    if char.isascii():
        return _ASCII_CONTROLS.get(char, "" if char < " " or char == "\x7f" else char)
    if char in _SPECIAL:
        return _SPECIAL[char]
    if char in _SUPERSCRIPTS or "\u4e00" <= char <= "\u9fff" or "\u3000" < char < "\u3020":
        return char
    if char in "\x85\u2028\u2029":
        return "\n"
    if _VULGAR.match(char):
        return " " + unicodedata.normalize("NFKC", char).replace("⁄", "/") + " "
    if "\uff01" <= char <= "\uffe6" and char not in "｡､":
        return unicodedata.normalize("NFKC", char)
    category = unicodedata.category(char)
    if category == "Nd":
        return str(unicodedata.decimal(char))
    if category in ("Cf", "Cc", "Cs", "Co", "Cn") or (category == "Mn" and char >= "\ufe00"):
        return " " if category in ("Co", "Cn", "Cs") else ""
    if category in ("So", "Sk", "Sm", "Sc", "Me") and char not in _KEPT_SYMBOLS and not _has_plain_form(char):
        return " "
    if category in ("No", "Nl") and char.isnumeric():
        value = unicodedata.numeric(char)
        return str(int(value)) if value == int(value) else " "
    folded = unicodedata.normalize("NFKC", char) if category[0] != "M" else char
    return folded if len(folded) <= 8 else " "


def _has_plain_form(char: str) -> bool:
    """Squared units (㎏) and circled digits fold to plain letters."""
    folded = unicodedata.normalize("NFKC", char)
    return folded != char and all(c.isalnum() or c in "/°" for c in folded)


def _compose(characters: list[str], starts: list[int], ends: list[int]) -> CleanText:
    """Join letters with the combining marks after them where Unicode has one character for both."""
    if any(char >= "\u0300" and unicodedata.combining(char) for char in characters):
        out: list[str] = []
        new_starts: list[int] = []
        new_ends: list[int] = []
        for char, start, end in zip(characters, starts, ends, strict=True):
            if out and unicodedata.combining(char):
                joined = unicodedata.normalize("NFC", out[-1] + char)
                out[-1] = joined if len(joined) == 1 else out[-1]
                new_ends[-1] = end
            elif not unicodedata.combining(char):
                out.append(char)
                new_starts.append(start)
                new_ends.append(end)
        characters, starts, ends = out, new_starts, new_ends
    return CleanText("".join(characters), starts, ends)


def _replace(replaced: dict[int, tuple[int, str]], start: int, end: int, new: str = "") -> None:
    if start < end:
        replaced.setdefault(start, (end, new))


def _mark_html(text: str, replaced: dict[int, tuple[int, str]]) -> None:
    if "<" in text:
        for match in _COMMENT.finditer(text):
            _replace(replaced, *match.span(), " ")
        for match in _AUTOLINK.finditer(text):
            _replace(replaced, match.start(), match.start() + 1, " ")
            _replace(replaced, match.end() - 1, match.end(), " ")
        for match in _TAG.finditer(text):
            _replace(replaced, *match.span(), ", " if match.group(1).lower() in _BREAKING_TAGS else " ")
    if "&" in text:
        for match in _ENTITY.finditer(text):
            character = html.unescape(match.group())
            if character != match.group():
                _replace(replaced, *match.span(), "".join(fold(c) for c in character))


def _mark_lines(text: str, replaced: dict[int, tuple[int, str]]) -> None:
    for pattern in (_FENCE, _RULE, _LINE_START, _TRAILING_HASHES):
        for match in pattern.finditer(text):
            _replace(replaced, *match.span())
    if "|" in text:
        for row in _TABLE_ROW.finditer(text):
            for at in range(*row.span()):
                if text[at] == "|":
                    _replace(replaced, at, at + 1, " , ")


def _mark_inline(text: str, replaced: dict[int, tuple[int, str]]) -> None:
    if "[" in text or "](" in text:
        for match in _FOOTNOTE.finditer(text):
            _replace(replaced, *match.span())
        for match in _IMAGE_OR_LINK.finditer(text):
            _replace(replaced, match.start(), match.start(1))
            _replace(replaced, match.end(1), match.end())
        for match in _LINK_END.finditer(text):
            _replace(replaced, *match.span())
    if "*" in text:
        times = {match.start() + match.group().index("*") for match in _TIMES.finditer(text)}
        for match in _STARS.finditer(text):
            if not (len(match.group()) == 1 and match.start() in times and _is_product(text, match.start())):
                _replace(replaced, *match.span())
            else:
                _replace(replaced, *match.span(), "×")
    for pattern in (_STRIKE, _UNDERSCORES, _ESCAPE):
        for match in pattern.finditer(text):
            _replace(replaced, *match.span())


def _is_product(text: str, at: int) -> bool:
    """3*4, 2 * 3, a * b; not *emphasis*."""
    before, after = text[at - 1 : at], text[at + 1 : at + 2]
    return before == after == " " or (before.isdecimal() and after.isdecimal())
