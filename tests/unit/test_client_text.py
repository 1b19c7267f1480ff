"""Text sources: any encoding people have, read as it comes; what is no text is refused in one line."""

import asyncio
import codecs
import os
import stat
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.cli.text_reader import TextReader, text_of_argument
from client.cli.text_source import TextSource, open_text, read_text
from client.errors import UsageError

SIMPLIFIED = "第一回　话说天下大势，分久必合，合久必分。\r\n“你来了？”他问道。“我来了。”她说，声音很小。\r\n"
TRADITIONAL = "第一回　話說天下大勢，分久必合，合久必分。\r\n「你來了？」他問道。「我來了。」她說，聲音很小。\r\n"
ENGLISH = "“Don’t go,” she said. It wasn’t the first time — far from it. The café was closed.\n"
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
RUSSIAN = "Все счастливые семьи похожи друг на друга, каждая несчастливая семья несчастлива по-своему."
WIDE = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")


def read_bytes(data: bytes, *, step: int | None = None, encoding: str | None = None) -> tuple[str, TextReader]:
    reader = TextReader("book.txt", encoding)
    edges = range(0, len(data), step or max(1, len(data)))
    text = "".join([reader.decode(data[at : at + (step or len(data))]) for at in edges])
    return text + reader.decode(b"", final=True), reader


async def read_file(path: Path, encoding: str | None = None) -> tuple[str, str | None]:
    source = open_text(str(path), encoding)
    try:
        return "".join([piece async for piece in read_text(source)]), source.note
    finally:
        os.close(source.descriptor)


# ---- bytes to text ----


@given(st.text(st.characters(exclude_categories=["Cs"])), st.lists(st.integers(0, 40)))
def test_bytes_cut_anywhere_are_the_same_text(text: str, cuts: list[int]) -> None:
    data = text.encode()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reader = TextReader("x", "utf-8")
    out = "".join([reader.decode(data[a:b]) for a, b in pairwise(edges)]) + reader.decode(b"", final=True)
    assert out == text.removeprefix("\ufeff")


@pytest.mark.parametrize("step", [1, 2, 3, 7, 5_000])
@pytest.mark.parametrize(
    ("text", "encoding", "found"),
    [
        (SIMPLIFIED, "gb18030", "gb18030"),
        (SIMPLIFIED, "gbk", "gb18030"),
        ("Chapter 1\n\n" * 30 + SIMPLIFIED, "gb2312", "gb18030"),
        (TRADITIONAL, "big5", "big5hkscs"),
        (ENGLISH, "cp1252", "cp1252"),
        ("He didn’t know what to do about it at all, and went home.", "cp1252", "cp1252"),
    ],
)
def test_other_encodings_are_found_out(text: str, encoding: str, found: str, step: int) -> None:
    for times in (1, 300):
        out, reader = read_bytes(text.encode(encoding) * times, step=step if times == 1 else max(step, 64))
        assert out == text * times
        assert (reader.encoding, reader.is_guess) == (found, True)


@pytest.mark.parametrize("text", [SIMPLIFIED, TRADITIONAL, ENGLISH, "plain ASCII\n", "😀", ""])
@pytest.mark.parametrize("step", [1, 3, 5_000])
def test_byte_order_marks_are_followed_and_not_spoken(text: str, step: int) -> None:
    for encoding in ("utf-8", *WIDE):
        out, reader = read_bytes(("\ufeff" + text).encode(encoding), step=step)
        assert out == text
        assert (reader.encoding, reader.is_guess) == (encoding, False)


@pytest.mark.parametrize("text", [SIMPLIFIED, TRADITIONAL, ENGLISH, "plain ASCII\n"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark(text: str, encoding: str) -> None:
    out, reader = read_bytes(text.encode(encoding))
    assert (out, reader.encoding, reader.is_guess) == (text, encoding, True)


@pytest.mark.parametrize("text", [SIMPLIFIED, TRADITIONAL, ENGLISH, "plain ASCII\n", "é", ""])
def test_utf_8_is_no_guess(text: str) -> None:
    out, reader = read_bytes(text.encode())
    assert (out, reader.encoding, reader.is_guess) == (text, "utf-8", False)


@pytest.mark.parametrize(
    "data",
    [
        b"\xfe\xfd\xfc plain",
        JAPANESE.encode("shift-jis"),
        RUSSIAN.encode("cp1251"),
        RUSSIAN.encode("koi8-r"),
        bytes(range(0x80, 0x100)) * 3,
        "你好".encode("gbk"),  # too little to tell
    ],
)
def test_what_cannot_be_told_is_not_guessed(data: bytes) -> None:
    with pytest.raises(UsageError, match=r"book\.txt is not UTF-8: byte 0 is 0x..; .* --encoding") as error:
        read_bytes(data)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("step", [1, 4, 5_000])
def test_damaged_utf_8_is_not_taken_for_something_else(step: int) -> None:
    good = SIMPLIFIED.encode()
    with pytest.raises(UsageError, match=rf"book\.txt is not UTF-8: byte {len(good)} is 0xff; repair it there"):
        read_bytes(good + b"\xff" + good, step=step)
    with pytest.raises(UsageError, match=r"byte 0 is 0xff"):
        read_bytes(b"\xff" + good * 3, step=step)
    with pytest.raises(UsageError, match=rf"byte {len(good) - 5} is 0xe3"):
        read_bytes(good[:-5] + "。".encode()[:2], step=step)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50), st.integers(1, 7))
def test_the_first_bad_byte_is_named(text: str, step: int) -> None:
    good = text.encode()
    with pytest.raises(UsageError, match=rf"book\.txt is not UTF-8: byte {len(good)} is 0xff"):
        read_bytes(good + b"\xffabc", step=step, encoding="utf-8")


@pytest.mark.parametrize("step", [1, 3, 70_000])
def test_a_wrong_byte_in_the_middle_of_another_encoding(step: int) -> None:
    good = SIMPLIFIED.encode("gb18030") * 100
    with pytest.raises(UsageError, match=rf"book\.txt looks like gb18030, but byte {len(good)} is 0xff; repair it"):
        read_bytes(good + b"\xff\xff" + good, step=step)
    with pytest.raises(UsageError, match=rf"book\.txt is not big5: byte {len(good)} is 0xff; repair it"):
        read_bytes(b"a" * len(good) + b"\xff", step=step, encoding="big5")


def test_line_ends_and_pages_stay() -> None:
    text = "one\r\ntwo\rthree\n\f- 12 -\n\v\ttab\x1b"
    assert read_bytes(text.encode())[0] == text


# ---- surrogates ----


@pytest.mark.parametrize("step", [1, 2, 5_000])
@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("a\ud83d\ude00b".encode("utf-8", "surrogatepass"), "a😀b"),  # CESU-8: Java, old MySQL
        ("a\ud83d b\ude00".encode("utf-8", "surrogatepass"), "a\ufffd b\ufffd"),  # WTF-8
        ("你好\ud83d".encode("utf-8", "surrogatepass"), "你好\ufffd"),
        (codecs.BOM_UTF16_LE + "a\ud83d b\ude00".encode("utf-16-le", "surrogatepass"), "a\ufffd b\ufffd"),
        (codecs.BOM_UTF16_BE + "\ud83d".encode("utf-16-be", "surrogatepass"), "\ufffd"),
        (codecs.BOM_UTF16_LE + "a😀b".encode("utf-16-le"), "a😀b"),
    ],
)
def test_halves_of_a_pair(data: bytes, text: str, step: int) -> None:
    assert read_bytes(data, step=step)[0] == text


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("plain 你好 😀", "plain 你好 😀"),
        (b"a\xed\xa0\xbdb".decode("utf-8", "surrogateescape"), "a\ufffdb"),
        (b"\xed\xa0\xbd\xed\xb8\x80".decode("utf-8", "surrogateescape"), "😀"),
        ("a\ud83d", "a\ufffd"),
        ("\ud83d\ude00", "😀"),
    ],
)
def test_arguments_of_say(argument: str, text: str) -> None:
    assert text_of_argument(argument) == text


def test_an_argument_that_is_no_text() -> None:
    with pytest.raises(UsageError, match="character 2 cannot be read"):
        text_of_argument("你好".encode().decode() + "世".encode("gbk").decode("utf-8", "surrogateescape"))


# ---- what is no text ----


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "a PDF document"),
        (b"PK\x03\x04\x14\0\0\0\0\0" + bytes(20) + b"mimetypeapplication/epub+zip", "an EPUB book"),
        (
            b"PK\x03\x04\x14\0\x06\0" + bytes(22) + b"[Content_Types].xml" + bytes(99) + b"word/document.xml",
            "a Word doc",
        ),
        (b"PK\x03\x04\x14\0\0\0", "a ZIP archive"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(50), "an old Microsoft Office document"),
        (b"{\\rtf1\\ansi Hello}", "an RTF document"),
        (b"\x1f\x8b\x08\0\0\0\0\0", "a gzip archive"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a PNG picture"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "a JPEG picture"),
        (b"RIFF\x24\0\0\0WAVEfmt ", "a sound or video file"),
        (b"\x7fELF\x02\x01\x01" + bytes(9), "a program"),
        (b"A Book".ljust(60, b"\0") + b"BOOKMOBI", "a Kindle book"),
        (b"MZ\x90\0\x03\0\0\0\x04\0\0\0\xff\xff", "no text: byte 3 is zero"),
        (b"abc\0def" + b"x" * 100, "no text: byte 3 is zero"),
        (bytes(range(1, 32)) * 10, "no text: it is full of control characters"),
    ],
)
def test_binary_files_are_refused_by_what_they_are(data: bytes, kind: str) -> None:
    is_told_at_once = data[:2] in (b"%P", b"\xd0\xcf", b"{\\", b"\x1f\x8b", b"\x89P", b"\x7fE")
    for step in (5_000, 1) if is_told_at_once else (5_000,):
        with pytest.raises(UsageError, match=f"^book.txt is {kind}") as error:
            read_bytes(data, step=step)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["RIFF is a format", "%", "PK", "P", "BZh", "ID3 tags", "I", "{", "FF\x1a", "a\x07b\x1a"]
)
@pytest.mark.parametrize("step", [1, 100])
def test_texts_that_only_begin_alike(text: str, step: int) -> None:
    assert read_bytes(text.encode(), step=step)[0] == text


def test_encodings_that_are_said(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(JAPANESE.encode("shift-jis"))
    source = open_text(str(path), "Shift_JIS")
    os.close(source.descriptor)
    assert (source.encoding, source.note) == ("shift_jis", None)
    for wrong in ("none-such", "base64", "rot13", "a\0b"):
        with pytest.raises(UsageError, match="there is no encoding"):
            open_text(str(path), wrong)


# ---- files ----


async def test_a_file_and_what_is_said_of_it(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(SIMPLIFIED.encode("gbk"))
    assert await read_file(path) == (SIMPLIFIED, f"reading {path} as gb18030")
    assert await read_file(path, "gbk") == (SIMPLIFIED, None)
    path.write_bytes(SIMPLIFIED.encode())
    assert await read_file(path) == (SIMPLIFIED, None)


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        open_text(str(tmp_path / "none.txt"))
    with pytest.raises(UsageError, match="is a directory"):
        open_text(str(tmp_path))
    with pytest.raises(UsageError, match="cannot read"):
        open_text("a\0b")
    path = tmp_path / "book.txt"
    path.write_text("x")

    def refused(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    def fails(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    for name, function, message in (("open", refused, "Permission denied"), ("read", fails, "Input/output error")):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, function)
            with pytest.raises(UsageError, match=rf"cannot read .*book\.txt: {message}"):
                open_text(str(path))


async def test_a_file_that_goes_shrinks_or_grows_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("一二三四五" * 20_000)
    source = open_text(str(path))
    pieces = read_text(source)
    first = await anext(pieces)
    with path.open("a") as file:
        file.write("more")
    path.unlink()
    assert first + "".join([piece async for piece in pieces]) == "一二三四五" * 20_000 + "more"
    os.close(source.descriptor)
    path.write_text("一二三四五" * 20_000)
    source = open_text(str(path))
    pieces = read_text(source)
    first = await anext(pieces)
    os.truncate(path, 65_536)
    with pytest.raises(UsageError, match="is not UTF-8: byte 65535 "):
        await anext(pieces)
    os.close(source.descriptor)


async def test_a_big_file_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(("没有标点的文字" * 1_000).encode("gb18030") * 700)  # 10 MB
    tracemalloc.start()
    try:
        source = open_text(str(path), "gb18030")
        count = 0
        async for piece in read_text(source):
            count += len(piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        os.close(source.descriptor)
    assert count == 4_900_000
    assert peak < 1_000_000


# ---- pipes ----


async def test_a_pipe_is_read_as_it_fills() -> None:
    read, write = os.pipe()
    pieces = read_text(TextSource(read, "standard input", None, is_guess=False))
    got: list[str] = []
    for piece in (b"\xe4\xbd", b"\xa0", b"\xe5\xa5\xbd!"):
        os.write(write, piece)
        if piece != b"\xe4\xbd":
            got.append(await anext(pieces))
    os.close(write)
    assert got == ["你", "好!"]
    assert [piece async for piece in pieces] == []
    os.close(read)


async def test_the_encoding_of_a_pipe_is_told_when_it_is_known() -> None:
    read, write = os.pipe()
    notes: list[str] = []
    pieces = read_text(TextSource(read, "standard input", None, is_guess=False), notes.append)
    os.write(write, b"Chapter 1\n")
    assert await anext(pieces) == "Chapter 1\n"
    assert notes == []
    os.write(write, SIMPLIFIED.encode("gbk"))
    os.close(write)
    assert "".join([piece async for piece in pieces]) == SIMPLIFIED
    assert notes == ["reading standard input as gb18030"]
    os.close(read)


async def test_a_named_pipe_waits_for_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    async with asyncio.timeout(5):
        source = open_text(str(path))
        assert stat.S_ISFIFO(os.fstat(source.descriptor).st_mode)
        pieces = read_text(source)
        first = asyncio.ensure_future(anext(pieces))
        done, _ = await asyncio.wait({first}, timeout=0.05)
        assert not done
        write = os.open(path, os.O_WRONLY)
        os.write(write, b"hello")
        assert await first == "hello"
        os.close(write)
        assert [piece async for piece in pieces] == []
    os.close(source.descriptor)
