"""In which encoding a text is, if in any: UTF-8, or what Chinese novels, Windows and Notepad used before it. Pure."""

import codecs
import re
from dataclasses import dataclass
from typing import Final

from client.errors import UsageError

HEAD_BYTES: Final = 65_536  # of a text, looked at to tell what it is
DAMAGED_FROM: Final = 3  # so many characters beyond ASCII before the first wrong byte: that is UTF-8, but damaged
RIGHT_BYTES: Final = 1_024
MIN_CHARACTERS: Final = 4  # beyond ASCII, to tell an encoding by
# In running text the marks and the hundred most frequent characters make up 35 to 60 % of what is not ASCII; read in a
# wrong encoding, text is spread over thousands of rare characters, and these make up 0 to 4 %.
MIN_COMMON: Final = 0.12
MIN_COMMON_WIDE: Final = (
    0.25  # the same with ASCII, of all characters of UTF-16; bytes of another kind reach a few percent
)

_BYTE_ORDER_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CHINESE: Final = ("gb18030", "big5hkscs")  # each with all that GBK, GB 2312 and Big5 have
_WESTERN: Final = "cp1252"
_COMMON: Final = frozenset(
    "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里"
    "用道行所然家种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实"
    "這個們來為國說時會對於著過發後裡種經麼學現當沒動還進樣開從實頭點話見長間聲聽問門幾身手又與很老知道無"
    "，。、；：？！“”‘’「」『』（）《》…—　·"
)
# What Windows-1252 has and English or European text uses: quotes, dashes, the ellipsis, letters with marks, signs.
_WESTERN_USUAL: Final = frozenset("‘’“”–—…•€£©®°½éèêëáàâäåãæçíìîïñóòôöõøœúùûüßÉÈÀÁÂÄÖÜÇÑÓÚÍØÆ\u00a0«»¡¿")
_WESTERN_SHARE: Final = 0.15  # no such text has more of them

_SIGNATURES: Final = (
    (b"%PDF-", "a PDF document"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Microsoft Office document"),
    (b"{\\rtf", "an RTF document"),
    (b"\x1f\x8b\x08", "a gzip archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"BZh", "a bzip2 archive"),
    (b"\xfd7zXZ\x00", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive"),
    (b"\x89PNG\r\n\x1a\n", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"GIF8", "a GIF picture"),
    (b"RIFF", "a sound or video file"),
    (b"OggS", "a sound file"),
    (b"fLaC", "a sound file"),
    (b"ID3", "a sound file"),
    (b"\x7fELF", "a program"),
    (b"AT&TFORM", "a DjVu document"),
)
_OF_TEXT: Final = (b"%PDF-", b"{\\rtf")  # these may go on in plain characters
_NOT_TEXT: Final = re.compile(b"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_MOBI_OFFSET: Final = 60  # of the type in a Palm database
_ZIP: Final = b"PK\x03\x04"
_ZIP_KINDS: Final = (
    (b"application/epub+zip", "an EPUB book"),
    (b"word/", "a Word document"),
    (b"application/vnd.oasis.opendocument", "an OpenDocument file"),
)
_CONTROLS: Final = re.compile("[\x01-\x08\x0e-\x1a\x1c-\x1f]")  # all but tab, line and page ends, and escape
_MAX_CONTROLS: Final = 0.02  # of the characters; an end-of-file mark of old DOS, or a bell, is no reason


@dataclass(frozen=True, slots=True)
class Begun:
    """What a text's first bytes tell. `encoding` None: they leave it open; UTF-8, if it can be read so."""

    encoding: str | None
    is_marked: bool = False  # by a byte order mark


def look_at(name: str, head: bytes) -> Begun:
    """Tells by byte order marks and zero bytes. Raises UsageError where that is no text, and says what it is."""
    if (kind := binary_kind(head)) is not None:
        raise UsageError(f"{name} is {kind}, not plain text: save it as text first")
    for mark, encoding in _BYTE_ORDER_MARKS:
        if head.startswith(mark):
            return Begun(encoding, is_marked=True)
    if 0 in head:
        wide = wide_encoding(head)
        if wide is None:
            raise UsageError(
                f"{name} is no text: byte {head.index(0)} is zero, as in a program, a picture or an archive"
            )
        return Begun(wide)
    controls = len(_CONTROLS.findall(head.decode("latin-1")))
    if controls > max(2, _MAX_CONTROLS * len(head)):
        raise UsageError(f"{name} is no text: it is full of control characters")
    return Begun(None)


def binary_kind(head: bytes) -> str | None:
    """What a file is by its first bytes, if it is of a kind that people take for text."""
    if head.startswith(_ZIP):
        return next((kind for mark, kind in _ZIP_KINDS if mark in head[:4_096]), "a ZIP archive")
    if head[_MOBI_OFFSET : _MOBI_OFFSET + 8] in (b"BOOKMOBI", b"TEXtREAd"):
        return "a Kindle book"
    kind = next((kind for mark, kind in _SIGNATURES if head.startswith(mark)), None)
    has_more = _NOT_TEXT.search(head[:512]) is not None
    return kind if has_more or head.startswith(_OF_TEXT) else None  # a text may begin with the word RIFF


def may_be_binary(head: bytes) -> bool:
    """Whether more bytes might make it one of the kinds that `binary_kind` knows."""
    marks = (_ZIP, *(mark for mark, _ in _SIGNATURES), *(mark for mark, _ in _BYTE_ORDER_MARKS))
    return any(len(head) < len(mark) and mark.startswith(head) for mark in marks)


def wide_encoding(head: bytes) -> str | None:
    """UTF-16 without a byte order mark: what of its two forms reads as a text of which something is common."""
    even = head[: len(head) // 2 * 2]
    best: tuple[float, str | None] = (MIN_COMMON_WIDE, None)
    for encoding in ("utf-16-le", "utf-16-be"):
        text = even.decode(encoding, "replace")
        usual = sum(1 for c in text if " " <= c <= "~" or c in "\r\n\t" or c in _COMMON)
        if "\0" not in text and text and usual / len(text) > best[0]:
            best = usual / len(text), encoding
    return best[1]


def guess(sample: bytes) -> str | None:
    """The encoding of a text that is not UTF-8, from bytes that begin where it is more than ASCII. None: unknown."""
    best: tuple[float, str | None] = (MIN_COMMON, None)
    for encoding in _CHINESE:
        beyond = _beyond_ascii(sample, encoding)
        if beyond is None or len(beyond) < MIN_CHARACTERS:
            continue
        share = sum(c in _COMMON for c in beyond) / len(beyond)
        if share > best[0]:
            best = share, encoding
    if best[1] is not None:
        return best[1]
    beyond = _beyond_ascii(sample, _WESTERN)
    if beyond is None or len(beyond) > _WESTERN_SHARE * len(sample):
        return None
    return _WESTERN if sum(c in _WESTERN_USUAL for c in beyond) > 0.9 * len(beyond) else None


def _beyond_ascii(sample: bytes, encoding: str) -> str | None:
    """The characters that are; None: these bytes are not in that encoding. The last character may be cut short.

    After enough that is right, a wrong byte is a damage, to be told as such.
    """
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(sample)
    except UnicodeDecodeError as error:
        if error.start < RIGHT_BYTES:
            return None
        text = sample[: error.start].decode(encoding)
    return "".join(c for c in text if c > "\x7f")


def known_encoding(name: str) -> str:
    """The name of an encoding for text, as Python has it. Raises UsageError."""
    try:
        info = codecs.lookup(name)
        info.incrementaldecoder("strict")
        "".encode(info.name)
    except (LookupError, TypeError, ValueError):
        raise UsageError(
            f"there is no encoding {name}: utf-8, gb18030, big5, utf-16 and cp1252 are common ones"
        ) from None
    return info.name
