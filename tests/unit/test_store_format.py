"""What is in a journal's file: everything that is good is read, and nothing else."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.store import FIRST_EPOCH
from server.store import journal_format as form

SESSION = "s-1"
LINES = [b'{"open":{}}', b"", b"\x00\xff\r", b"cosystream-journal 1", "你好".encode()]
a_line = st.binary(max_size=40).filter(lambda line: b"\n" not in line)


def file_of(lines: list[bytes], session: str = SESSION) -> bytes:
    return form.HEADER + form.line_records(lines, form.first_chain(session))[0]


@given(st.lists(a_line, max_size=20), st.lists(a_line, max_size=20), st.text(max_size=10))
def test_what_was_written_is_read(before: list[bytes], after: list[bytes], session: str) -> None:
    first, chain = form.line_records(before, form.first_chain(session))
    claim, chain = form.epoch_record(7, chain)
    second, chain = form.line_records(after, chain)
    data = form.HEADER + first + claim + second
    found = form.read(data, session)
    assert found.lines == before + after
    assert (found.epoch, found.chain, found.end, found.damaged) == (7, chain, len(data), False)


def test_a_cut_at_every_byte_loses_the_cut_line_only() -> None:
    data = file_of(LINES)
    ends = [len(file_of(LINES[:count])) for count in range(len(LINES) + 1)]
    for cut in range(len(data) + 1):
        found = form.read(data[:cut], SESSION)
        whole = sum(end <= cut for end in ends[1:])
        assert found.lines == LINES[:whole]
        assert found.end == (ends[whole] if cut >= len(form.HEADER) else 0)
        assert not found.damaged
        assert found.epoch == FIRST_EPOCH


def test_a_change_of_any_byte_ends_what_is_read_before_it() -> None:
    data = file_of(LINES)
    ends = [len(file_of(LINES[:count])) for count in range(len(LINES) + 1)]
    for place in range(len(form.HEADER), len(data)):
        for flip in (0x01, 0x20, 0x80, data[place] ^ ord("\n")):
            if not flip:
                continue
            changed = data[:place] + bytes([data[place] ^ flip]) + data[place + 1 :]
            found = form.read(changed, SESSION)
            good = sum(end <= place for end in ends[1:])
            assert found.lines == LINES[:good]
            assert found.end == ends[good]
            assert found.damaged or place == len(data) - 1  # without its newline the last line is a cut one


@given(st.lists(a_line, min_size=3, max_size=8, unique=True), st.data())
def test_records_left_out_repeated_or_moved_do_not_fit(lines: list[bytes], data: st.DataObject) -> None:
    whole = file_of(lines)
    cut = whole[len(form.HEADER) :].split(b"\n")[:-1]
    place = data.draw(st.integers(0, len(cut) - 2))
    for wrong in (
        cut[:place] + cut[place + 1 :],
        cut[: place + 1] + cut[place:],
        [*cut[:place], cut[place + 1], cut[place], *cut[place + 2 :]],
    ):
        found = form.read(form.HEADER + b"\n".join(wrong) + b"\n", SESSION)
        assert found.lines == lines[: len(found.lines)]
        assert len(found.lines) <= place + 1
        assert found.damaged


def test_the_file_of_another_session_does_not_fit() -> None:
    found = form.read(file_of(LINES, "s-2"), SESSION)
    assert found.lines == []
    assert found.damaged


def test_the_epoch_is_the_greatest_there_is() -> None:
    chain = form.first_chain(SESSION)
    data = form.HEADER
    for epoch in (2, 9, 3):
        record, chain = form.epoch_record(epoch, chain)
        data += record
    assert form.read(data, SESSION).epoch == 9


@pytest.mark.parametrize("content", [b"+", b"+-1", b"+1.5", b"+ 2", b"+1234567890123456", b"?x", b"", "+²".encode()])
def test_a_record_that_fits_but_says_nothing_is_damage(content: bytes) -> None:
    record = b"%08x%b\n" % (zlib.crc32(content, form.first_chain(SESSION)), content)
    assert form.read(form.HEADER + record, SESSION).damaged


def test_another_version_is_told_from_something_else() -> None:
    with pytest.raises(form.OtherVersionError, match="another version"):
        form.read(file_of(LINES).replace(b"journal 1", b"journal 2", 1), SESSION)
    with pytest.raises(form.UnreadableError, match="no journal"):
        form.read(b"#!/bin/sh\n", SESSION)


@given(st.binary(max_size=200), st.booleans())
def test_no_content_is_a_fault_of_the_reader(data: bytes, with_header: bool) -> None:
    try:
        found = form.read(form.HEADER + data if with_header else data, SESSION)
    except form.UnreadableError:
        assert not with_header
    else:
        assert found.end <= len(data) + len(form.HEADER)
