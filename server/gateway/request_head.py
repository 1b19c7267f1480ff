"""Reads the head of a connection's first HTTP request and tells WebSocket handshakes from other requests.

Pure: bytes in, a `RequestHead` or a `HeadError` out. Strict where tolerance is known to let two readers of one stream
disagree about it: no folded lines, no bare CR or LF, no control characters (RFC 9112, sections 2.2, 5.1 and 5.2).
"""

import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

MAX_HEAD_BYTES: Final = 16_384
MAX_LINE_BYTES: Final = 8_000  # below the 8,192 that websockets takes, which refuses longer lines in its own words
MAX_HEADERS: Final = 100

_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP/([0-9])\.([0-9])")
_HEADER_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_METHOD_START: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]")
_BARE_LINE_END: Final = re.compile(rb"(?<!\r)\n|\r(?=[^\n])")


class HeadError(Exception):
    """The bytes are no acceptable request head; `status` is what to answer."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request line and its headers; names in lower case, values without the white space around them."""

    method: bytes
    target: bytes
    minor: int  # of HTTP/1.minor
    headers: tuple[tuple[bytes, bytes], ...]

    def values(self, name: bytes) -> list[bytes]:
        """Every value of the header `name` (lower case), in order."""
        return [value for each, value in self.headers if each == name]

    def tokens(self, name: bytes) -> set[bytes]:
        """The comma-separated tokens of the header `name`, in lower case."""
        return {token.strip(b" \t").lower() for value in self.values(name) for token in value.split(b",")} - {b""}

    @property
    def is_websocket(self) -> bool:
        """Whether this asks for a WebSocket (RFC 6455, section 4.2.1). The handshake itself is judged later."""
        return (
            self.method == b"GET"
            and self.minor >= 1
            and b"websocket" in self.tokens(b"upgrade")
            and b"upgrade" in self.tokens(b"connection")
        )

    @property
    def has_body(self) -> bool:
        """Whether a request body follows."""
        return bool(self.values(b"transfer-encoding")) or any(each != b"0" for each in self.values(b"content-length"))


class HeadReader:
    """Collects bytes until a request head is complete."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._checked = 0
        self._end = 0

    @property
    def data(self) -> bytes:
        """Everything received, less empty lines before the request."""
        return bytes(self._data)

    @property
    def head(self) -> bytes:
        """The complete head with the empty line that ends it."""
        return bytes(self._data[: self._end])

    @property
    def rest(self) -> bytes:
        """What came after the head."""
        return bytes(self._data[self._end :])

    def feed(self, data: bytes) -> RequestHead | None:
        """Take the next bytes; the head once it is complete. Raises HeadError."""
        self._data += data
        while self._data.startswith(b"\r\n"):  # RFC 9112, section 2.2: ignore an empty line before the request
            del self._data[:2]
            self._checked = 0
        if self._data and self._data != b"\r" and not _METHOD_START.match(self._data):
            raise HeadError(HTTPStatus.BAD_REQUEST, "this is not HTTP; is it TLS to a port without TLS?")
        start = max(0, self._checked - 3)
        end = self._data.find(b"\r\n\r\n", start, MAX_HEAD_BYTES)
        if _BARE_LINE_END.search(self._data, start, len(self._data) if end < 0 else end + 4):
            raise HeadError(HTTPStatus.BAD_REQUEST, "lines of the request head end with CR LF")
        if end < 0:
            if len(self._data) >= MAX_HEAD_BYTES:
                raise HeadError(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                    f"the request head is longer than {MAX_HEAD_BYTES} bytes",
                )
            self._checked = len(self._data)
            return None
        self._end = end + 4
        return parse_head(bytes(self._data[:end]))


def parse_head(head: bytes) -> RequestHead:
    """The request head `head`, given without the empty line that ends it. Raises HeadError."""
    first, *lines = head.split(b"\r\n")
    if len(first) > MAX_LINE_BYTES:
        raise HeadError(HTTPStatus.REQUEST_URI_TOO_LONG, f"the request line is longer than {MAX_LINE_BYTES} bytes")
    request = _REQUEST_LINE.fullmatch(first)
    if request is None:
        raise HeadError(HTTPStatus.BAD_REQUEST, "the request line is malformed")
    method, target, major, minor = request.groups()
    if major != b"1":
        raise HeadError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "this server speaks HTTP/1.1")
    if len(lines) > MAX_HEADERS or any(len(line) > MAX_LINE_BYTES for line in lines):
        raise HeadError(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"at most {MAX_HEADERS} headers of {MAX_LINE_BYTES} bytes each are taken",
        )
    headers = []
    for line in lines:
        header = _HEADER_LINE.fullmatch(line)
        if header is None:  # covers folded lines too: they start with white space
            raise HeadError(HTTPStatus.BAD_REQUEST, "a header line is malformed")
        headers.append((header[1].lower(), header[2].rstrip(b" \t")))
    found = RequestHead(method, target, int(minor), tuple(headers))
    if found.minor >= 1 and len(found.values(b"host")) != 1:
        raise HeadError(HTTPStatus.BAD_REQUEST, "exactly one Host header is required")
    return found
