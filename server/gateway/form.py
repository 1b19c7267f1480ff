"""Forms with files, as browsers and curl send them: multipart/form-data (RFC 7578), a whole body at a time. No I/O."""

import re
from dataclasses import dataclass
from email.message import Message
from email.utils import collapse_rfc2231_value
from typing import Final

MAX_PARTS: Final = 16
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


def parse_form(body: bytes, boundary: bytes) -> dict[str, Part]:
    """The fields of a form by name. Raises FormError where it is broken, cut short, or has a field twice."""
    delimiter = b"\r\n--" + boundary
    pieces = (b"\r\n" + body).split(delimiter, MAX_PARTS + 1)
    if len(pieces) > MAX_PARTS + 1:
        raise FormError(f"the form has more than {MAX_PARTS - 1} fields")
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise FormError("the form is cut short: its last boundary is missing")
    fields: dict[str, Part] = {}
    for piece in pieces[1:-1]:  # what stands before the first and after the last boundary is nothing
        padding, line, rest = piece.partition(b"\r\n")
        head, blank, data = (b"\r\n" + rest).partition(b"\r\n\r\n")
        if padding.strip(b" \t") or not line or not blank or len(head) > MAX_PART_HEAD:
            raise FormError("a part of the form has no proper head")
        name, is_file = _name_of(head.decode("utf-8", "replace"))
        if name in fields:
            raise FormError(f"the form has the field {name!r} more than once")
        fields[name] = Part(data, is_file)
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
