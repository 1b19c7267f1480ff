"""Where messages end in a WebSocket's bytes, however those are cut."""

import random

import pytest

from deploy.faulty_proxy import MessageBoundaries

HEAD = b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"


def frame(size: int, *, opcode: int = 2, final: bool = True, masked: bool = False) -> bytes:
    first = bytes([(0x80 if final else 0) | opcode])
    mask = 0x80 if masked else 0
    if size < 126:
        header = bytes([mask | size])
    elif size < 65_536:
        header = bytes([mask | 126]) + size.to_bytes(2, "big")
    else:
        header = bytes([mask | 127]) + size.to_bytes(8, "big")
    return first + header + (b"mask" if masked else b"") + bytes([0xFF]) * size


def stream(*, masked: bool) -> tuple[bytes, list[int]]:
    """Bytes, and where each boundary is."""
    data, ends = HEAD, [len(HEAD)]
    for size in (0, 1, 125, 126, 700, 65_535, 65_536, 3):
        data += frame(4, opcode=9, masked=masked)
        data += frame(size, opcode=1, final=False, masked=masked)
        data += frame(2, opcode=10, masked=masked)
        data += frame(size // 2, opcode=0, masked=masked)
        ends.append(len(data))
    return data, ends


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_every_boundary_is_found_however_the_bytes_are_cut(masked: bool, seed: int) -> None:
    chance = random.Random(seed)
    data, ends = stream(masked=masked)
    for boundary, end in enumerate(ends):
        found = MessageBoundaries()
        found.want(boundary)
        at = 0
        while at < len(data):
            size = chance.choice((1, 2, 3, 50, 5_000, 100_000)) if seed else 100_000_000
            found.feed(data[at : at + size])
            at += size
        assert found.wanted_end == end
        assert found.passed == len(ends) - 1


def test_an_end_is_known_with_the_frame_s_header() -> None:
    found = MessageBoundaries()
    found.want(1)
    found.feed(HEAD + frame(1_000)[:4])
    assert found.wanted_end == len(HEAD) + 1_004


def test_one_byte_at_a_time() -> None:
    data, ends = stream(masked=True)
    found = MessageBoundaries()
    found.want(2)
    for at in range(ends[2]):
        found.feed(data[at : at + 1])
    assert found.wanted_end == ends[2]


def test_what_has_passed_is_known_no_more() -> None:
    found = MessageBoundaries()
    found.feed(HEAD + frame(3))
    with pytest.raises(ValueError, match="boundary 1"):
        found.want(1)
    found.want(2)
    found.feed(frame(5))
    assert found.wanted_end == len(HEAD) + 5 + 7
