"""Forms with files, as browsers and curl send them: multipart/form-data (RFC 7578). No I/O."""

import re
from dataclasses import dataclass
from email.message import Message
from email.utils import collapse_rfc2231_value
from itertools import pairwise
from typing import Final

MAX_FIELDS: Final = 16
MAX_PART_HEAD: Final = 4_096
_BOUNDARY: Final = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{1,70}")


class FormError(ValueError):
    """The body is no such form; the text says why, in a line."""


@dataclass(frozen=True, slots=True)
class Part:
    """One field's value."""

    data: bytes
    is_file: bool


def boundary_of(content_type: str) -> bytes | None:
    """What stands between the parts of a body with this `Content-Type`; None where that is no form with files. Raises
    FormError.
    """
    kind, parameters = _parameters("content-type", content_type)
    if kind != "multipart/form-data":
        return None
    boundary = parameters.get("boundary", "")
    if not _BOUNDARY.fullmatch(boundary) or boundary.endswith(" "):
        raise FormError("Content-Type has no valid boundary")
    return boundary.encode("ascii")


class FormReader:
    """Takes a body as it comes, so that looking for its boundaries never holds up the event loop for long."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        self._body = bytearray(b"\r\n")  # as if a line had ended before the first boundary
        self._boundaries: list[int] = []  # where they begin
        self._looked = 0

    def feed(self, data: bytes) -> None:
        """The next bytes. Raises FormError where there are too many fields."""
        self._body += data
        while (found := self._body.find(self._delimiter, self._looked)) >= 0:
            self._boundaries.append(found)
            self._looked = found + len(self._delimiter)
            if len(self._boundaries) > MAX_FIELDS + 1:
                raise FormError(f"the form has more than {MAX_FIELDS} fields")
        self._looked = max(self._looked, len(self._body) - len(self._delimiter) + 1)

    def fields(self) -> dict[str, Part]:
        """The whole form's fields by name. Raises FormError where it is broken, cut short, or has a field twice."""
        view, ends = memoryview(self._body), [*self._boundaries, len(self._body)]
        pieces = [view[at + len(self._delimiter) : end] for at, end in pairwise(ends)]
        if not pieces or bytes(pieces[-1][:2]) != b"--":
            raise FormError("the form is cut short: its last boundary is missing")
        fields: dict[str, Part] = {}
        for piece in pieces[:-1]:  # what stands before the first and after the last boundary is nothing
            head, blank, _ = bytes(piece[:MAX_PART_HEAD]).partition(b"\r\n\r\n")
            padding, line, headers = head.partition(b"\r\n")
            if padding.strip(b" \t") or not line or not blank:
                raise FormError("a part of the form has no proper head")
            name, is_file = _name_of(headers.decode("utf-8", "replace"))
            if name in fields:
                raise FormError(f"the form has the field {name!r} more than once")
            fields[name] = Part(bytes(piece[len(head) + len(blank) :]), is_file)
        return fields


def _name_of(head: str) -> tuple[str, bool]:
    """Of a part's head: which field it is, and whether its value is a file."""
    for line in head.split("\r\n"):
        header, _, value = line.partition(":")
        if header.strip().lower() == "content-disposition":
            kind, parameters = _parameters("content-disposition", value.strip())
            if kind == "form-data" and parameters.get("name"):
                return parameters["name"], "filename" in parameters
    raise FormError("a part of the form has no name")


def _parameters(header: str, value: str) -> tuple[str, dict[str, str]]:
    """A header's value and what it says after `;`, names in lower case."""
    message = Message()
    message[header] = " ".join(value.split())
    kind, *rest = message.get_params([("", "")], header)
    return kind[0].strip().lower(), {name.lower(): collapse_rfc2231_value(text) for name, text in rest}
