"""Forms with files, whole, in pieces, and broken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.gateway.form import MAX_FIELDS, FormError, FormReader, Part, boundary_of
from tests.support.voices import BOUNDARY, form

FIELDS: dict[str, str | bytes] = {"audio": bytes(range(256)) + b"\r\n--a-boundar\r\n--", "text": "你好", "empty": ""}
BODY = form(FIELDS)


def read(body: bytes, piece: int = 0) -> dict[str, Part]:
    reader = FormReader(BOUNDARY.encode())
    for at in range(0, len(body), piece or len(body) or 1):
        reader.feed(body[at : at + (piece or len(body))])
    return reader.fields()


@pytest.mark.parametrize("piece", [0, 1, 7, 12])
def test_fields_come_out_as_they_went_in(piece: int) -> None:
    assert read(BODY, piece) == {
        "audio": Part(bytes(FIELDS["audio"]), True),  # type: ignore[arg-type]  # it is bytes
        "text": Part("你好".encode(), False),
        "empty": Part(b"", False),
    }


@given(st.binary(max_size=200), st.integers(1, 30))
def test_any_bytes_any_pieces(data: bytes, piece: int) -> None:
    assert read(form({"audio": data}), piece)["audio"].data == data


def test_what_stands_before_and_after_is_nothing() -> None:
    assert read(b"preamble\r\n" + BODY + b"epilogue") == read(BODY)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "cut short"),
        (b"hello", "cut short"),
        (BODY[:-4], "cut short"),
        (BODY[:60], "cut short"),
        (f"--{BOUNDARY}--".encode(), None),
        (f"--{BOUNDARY}x\r\nContent-Disposition: form-data; name=a\r\n\r\n1\r\n--{BOUNDARY}--".encode(), "proper head"),
        (f"--{BOUNDARY}\r\nContent-Disposition: form-data; name=a\r\n--{BOUNDARY}--".encode(), "proper head"),
        (f"--{BOUNDARY}\r\nX: {'y' * 5_000}\r\n\r\n1\r\n--{BOUNDARY}--".encode(), "proper head"),
        (f"--{BOUNDARY}\r\nX: y\r\n\r\n1\r\n--{BOUNDARY}--".encode(), "has no name"),
        (f"--{BOUNDARY}\r\nContent-Disposition: form-data\r\n\r\n1\r\n--{BOUNDARY}--".encode(), "has no name"),
        (form({"a": "1"})[:-16] + form({"a": "2"}), "more than once"),
        (form({str(number): "" for number in range(MAX_FIELDS + 1)}), "more than 16 fields"),
    ],
)
def test_what_is_broken_is_told_in_a_line(body: bytes, message: str | None) -> None:
    if message is None:
        assert read(body) == {}
        return
    with pytest.raises(FormError, match=message):
        read(body)


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("multipart/form-data; boundary=abc", b"abc"),
        ('Multipart/Form-Data; charset=utf-8; BOUNDARY="a b:c"', b"a b:c"),
        ("application/json", None),
        ("", None),
        ("multipart/mixed; boundary=abc", None),
    ],
)
def test_boundaries(header: str, found: bytes | None) -> None:
    assert boundary_of(header) == found


@pytest.mark.parametrize("header", ["", "; boundary=", "; boundary=" + "x" * 71, "; boundary=ä", '; boundary="a "'])
def test_no_boundary_to_speak_of(header: str) -> None:
    with pytest.raises(FormError, match="boundary"):
        boundary_of("multipart/form-data" + header)
