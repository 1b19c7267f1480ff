"""Malformed WebSocket frames, after a good handshake."""

from random import Random
from typing import Final

from bench._fuzz_attack import HANDSHAKE, Attack, Make
from bench._light_socket import masked_frame

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
OPEN: Final = masked_frame(TEXT, b'{"type":"open"}')
_RESERVED: Final = (3, 4, 5, 6, 7, 11, 12, 13, 14, 15)
_BAD_UTF8: Final = (
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b'{"type":"\xe4',
    b"\xe4\xbd",
    b"abc\xfe",
)
_BAD_CODES: Final = (0, 999, 1004, 1005, 1006, 1015, 1016, 2_999, 5_000, 65_535)


def _raw(first: int, size: int, payload: bytes, *, wide: int = 0, masked: bool = True) -> bytes:
    """A frame whose head says what it is told to. `wide`: bytes for the size, against the rule of the shortest form."""
    mask = 0x80 if masked else 0
    wide = wide or (0 if size < 126 else 2 if size < 65_536 else 8)
    told = size if not wide else 126 if wide == 2 else 127
    more = size.to_bytes(wide, "big") if wide else b""
    return bytes((first, mask | told)) + more + (bytes(4) if masked else b"") + payload


def _after(chance: Random, name: str, *frames: bytes, half_close: bool = False) -> Attack:
    """Frames of a session that is open, or of one that is not."""
    before = (OPEN,) if chance.random() < 0.5 else ()
    if chance.random() < 0.1:  # without waiting for the handshake's answer
        return Attack(name, (HANDSHAKE + b"".join((*before, *frames)),), half_close=half_close)
    return Attack(name, (*before, *frames), upgraded=True, half_close=half_close)


def bits(chance: Random) -> Attack:
    """Reserved bits and opcodes."""
    opcode = chance.choice((*_RESERVED, TEXT, BINARY, PING, CLOSE))
    reserved = chance.choice((0x10, 0x20, 0x40, 0x70)) if opcode in (TEXT, BINARY, PING, CLOSE) else 0
    fin = chance.choice((0x80, 0x80, 0))
    return _after(chance, "bits", _raw(fin | reserved | opcode, 4, b'"ab"'))


def masks(chance: Random) -> Attack:
    """Not masked, or masked so that nonsense comes out."""
    if chance.random() < 0.5:
        return _after(chance, "not masked", _raw(0x80 | chance.choice((TEXT, PING, CLOSE)), 2, b"{}", masked=False))
    data = b'{"type":"open"}'
    return _after(chance, "wrong mask", bytes((0x81, 0x80 | len(data))) + chance.randbytes(4) + data)


def sizes(chance: Random) -> Attack:
    """Too big, absurdly big, or in a longer form than allowed."""
    kind = chance.randrange(4)
    if kind == 0:
        size = chance.choice((262_145, 300_000, 2**31, 2**32, 2**40, 2**62, 2**63, 2**64 - 1))
        return _after(chance, "size claimed", _raw(0x81, size, bytes(100)))
    if kind == 1:
        return _after(chance, "size in a long form", _raw(0x81, 2, b"{}", wide=chance.choice((2, 8))))
    if kind == 2:
        return _after(chance, "big control frame", _raw(0x80 | chance.choice((PING, PONG, CLOSE)), 126, bytes(126)))
    return _after(
        chance, "big message", masked_frame(chance.choice((TEXT, BINARY)), b"a" * chance.choice((262_145, 280_000)))
    )


def fragments(chance: Random) -> Attack:
    """Out of order, never ending, or of frames that must be whole."""
    first = _raw(TEXT, 1, b'"')
    more = _raw(CONTINUATION, 0, b"")
    chosen = (
        (masked_frame(CONTINUATION, b"a"),),
        (first, masked_frame(TEXT, b"{}")),
        (first, first),
        (first + more * chance.choice((10, 1_030, 3_000)),),
        (_raw(chance.choice((PING, CLOSE)), 0, b""),),
        (first, masked_frame(PING, b"x"), masked_frame(CONTINUATION, b"\xff")),
    )
    return _after(chance, "fragments", *chance.choice(chosen), half_close=chance.random() < 0.1)


def truncated(chance: Random) -> Attack:
    """A frame that ends too early."""
    whole = masked_frame(chance.choice((TEXT, PING, CLOSE)), bytes(chance.choice((0, 5, 125, 1_000))))
    return _after(chance, "truncated", whole[: chance.randrange(len(whole))], half_close=chance.random() < 0.5)


def closes(chance: Random) -> Attack:
    """Close frames that say nothing valid."""
    payload = chance.choice((b"\x03", chance.choice(_BAD_CODES).to_bytes(2, "big"), b"\x03\xe8\xff\xfe"))
    again = masked_frame(CLOSE, payload) * chance.choice((1, 1, 2, 50))
    return _after(chance, "close", again, chance.choice((b"", OPEN)))


def utf8(chance: Random) -> Attack:
    """Text that is none."""
    return _after(chance, "not UTF-8", masked_frame(TEXT, chance.choice(_BAD_UTF8)))


def control_flood(chance: Random) -> Attack:
    """Pings and pongs faster than they could be meant."""
    return _after(chance, "control flood", masked_frame(chance.choice((PING, PONG)), b"") * chance.choice((110, 400)))


def noise(chance: Random) -> Attack:
    """Bytes without meaning, or a good frame with some of its bytes changed."""
    if chance.random() < 0.5:
        return _after(chance, "noise in frames", chance.randbytes(chance.choice((2, 20, 500, 20_000))))
    changed = bytearray(OPEN + masked_frame(TEXT, b'{"type":"start","seq":1,"utterance":1}'))
    for _ in range(chance.randrange(1, 5)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return _after(chance, "changed bytes", bytes(changed))


MAKERS: Final[tuple[Make, ...]] = (
    bits, masks, sizes, fragments, truncated, closes, utf8, control_flood, noise, noise,
)  # fmt: skip
