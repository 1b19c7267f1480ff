"""Bytes, cut anywhere, to text. Pure."""

import codecs
import re
from typing import Final

from client.cli.encodings import DAMAGED_FROM, HEAD_BYTES, binary_kind, guess, look_at, may_be_binary
from client.errors import UsageError

SAMPLE_BYTES: Final = 4_096  # what is not UTF-8 waits for so many bytes before its encoding is guessed
_MARK: Final = "\ufeff"  # the byte order mark
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SURROGATES: Final = ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be", "utf-16", "utf-32")


class TextReader:
    """`encoding` None: found out by what comes; UTF-8 unless it cannot be. `name` is how errors call the text.

    Every error is a UsageError that names the byte. Surrogates without their other half, which some programs write
    where they cut an emoji in two, become U+FFFD.
    """

    def __init__(self, name: str, encoding: str | None = None) -> None:
        self._name = name
        self._decoder: codecs.IncrementalDecoder | None = None
        self.encoding: str | None = encoding
        """Python's name of it; None while nothing came that tells."""
        self.is_guess = False
        """Whether neither the user nor a byte order mark said so, and it is not UTF-8."""
        self._held = b""  # bytes that do not tell yet what they are
        self._read = 0  # bytes decoded, or held by the decoder
        self._beyond = 0  # characters given out that are not ASCII, up to DAMAGED_FROM
        self._started = False
        self._high = ""  # half a pair

    def decode(self, data: bytes, *, final: bool = False) -> str:
        """The text that is complete now."""
        data, self._held = self._held + data, b""
        if self._decoder is None and not self._begin(data, final):
            self._held = data
            return ""
        assert self._decoder is not None
        held = self._decoder.getstate()[0]
        at = self._read - len(held)
        try:
            text = self._decoder.decode(data, final)
        except UnicodeDecodeError as error:
            return self._other(held + data, at, error, final)
        self._read += len(data)
        return self._given(text, final)

    def _begin(self, data: bytes, final: bool) -> bool:
        """Chooses a decoder, if the first bytes allow it."""
        if self.encoding is None:
            if not final and (not data or may_be_binary(data)):
                return False
            begun = look_at(self._name, data[:HEAD_BYTES])
            self.encoding = begun.encoding
            self.is_guess = begun.encoding is not None and not begun.is_marked
        elif (kind := binary_kind(data)) is not None:
            raise UsageError(f"{self._name} is {kind}, not plain text: save it as text first")
        self._decode_as(self.encoding or "utf-8")
        return True

    def _decode_as(self, encoding: str) -> None:
        errors = "surrogatepass" if encoding in _SURROGATES else "strict"
        self._decoder = codecs.getincrementaldecoder(encoding)(errors)

    def _other(self, data: bytes, at: int, error: UnicodeDecodeError, final: bool) -> str:
        """`data`, which begins at byte `at`, is not what it was taken for."""
        wrong = at + error.start
        valid = data[: error.start].decode("utf-8", "ignore") if self.encoding is None else ""
        beyond = self._beyond + sum(c > "\x7f" for c in valid)
        if self.encoding is not None or self._beyond or beyond >= DAMAGED_FROM:
            raise self._failed(data, error, wrong)
        first = next(i for i, byte in enumerate(data) if byte > 0x7F)
        sample = data[first : first + HEAD_BYTES]
        if len(sample) < SAMPLE_BYTES and not final:
            self._decode_as("utf-8")
            self._read, self._held = at, data
            return ""
        encoding = guess(sample)
        if encoding is None:
            raise self._failed(data, error, wrong)
        self.encoding, self.is_guess = encoding, True
        self._decode_as(encoding)
        self._read = at
        return self.decode(data, final=final)

    def _given(self, text: str, final: bool) -> str:
        if self.encoding is None and self._beyond < DAMAGED_FROM and not text.isascii():
            self._beyond = min(DAMAGED_FROM, self._beyond + sum(c > "\x7f" for c in text))
            if self._beyond >= DAMAGED_FROM:
                self.encoding = "utf-8"
        if final and self.encoding is None:
            self.encoding = "utf-8"
        text, self._high = self._high + text, ""
        if not final and text and "\ud800" <= text[-1] <= "\udbff":
            text, self._high = text[:-1], text[-1]
        text = whole_surrogates(text)
        if text and not self._started:
            self._started = True
            text = text.removeprefix(_MARK)
        return text

    def _failed(self, data: bytes, error: UnicodeDecodeError, wrong: int) -> UsageError:
        byte = f"byte {wrong} is 0x{data[error.start]:02x}"
        name = "UTF-8" if self.encoding in (None, "utf-8") else self.encoding
        what = f"looks like {name}, but" if self.is_guess else f"is not {name}:"
        return UsageError(f"{self._name} {what} {byte}; repair it there, or say with --encoding what it is")


def text_of_argument(text: str) -> str:
    """What was meant by an argument in which Python left bytes that are no UTF-8 (as U+DC80 to U+DCFF).

    Raises UsageError.
    """
    try:
        return whole_surrogates(text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogatepass"))
    except UnicodeEncodeError:
        return whole_surrogates(text)  # no bytes of a shell, but a program's own surrogates
    except UnicodeDecodeError as error:
        at = len(error.object[: error.start].decode("utf-8", "replace"))
        raise UsageError(f"the text is not UTF-8: character {at} cannot be read; check the terminal") from None


def whole_surrogates(text: str) -> str:
    """Halves that belong together as the character they are, others as U+FFFD."""
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
