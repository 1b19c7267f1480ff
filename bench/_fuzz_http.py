"""Malformed HTTP and malformed WebSocket handshakes, slow and broken off ones among them."""

from collections.abc import Callable
from random import Random
from typing import Final

from bench._fuzz_attack import HANDSHAKE, Attack, Make

METHODS: Final = ("GET", "POST", "PUT", "HEAD", "OPTIONS", "TRACE", "CONNECT", "get", "G" * 300, "GÄT", "", "M-SEARCH")
PATHS: Final = ("/", "/v1/stream", "/v1/speak", "/v1/voices", "/metrics", "/healthz", "/readyz", "/docs", "*")
ODD_PATHS: Final = (
    "//", "/../../etc/passwd", "/%00", "/%ff%fe", "/%zz", "/v1/stream/..", "/v1/stream%2f", "/?" + "a=b&" * 500,
    "/" + "a" * 7_000, "/" + "a" * 9_000, "http://elsewhere/v1/stream", "/v1/stream?x=\u00e4", "v1/stream", "/\t",
    "/ x",
)  # fmt: skip
VERSIONS: Final = ("HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/1.", "HTTP/11", "http/1.1", "", "HTTP/1.1 x")
ODD_HEADERS: Final = (
    "Host: other", "Host:", "X: a\rY: b", "X: \x00", "X: a\r\n folded", "X : a", ": a", "X", "\u00fc: a",
    "X: " + "b" * 7_900, "X: " + "b" * 8_100, "Content-Length: -1", "Content-Length: +3", "Content-Length: 3, 3",
    "Content-Length: 1e3", "Content-Length: 18446744073709551616", "Content-Length: 0x10",
    "Transfer-Encoding: chunked, gzip", "Transfer-Encoding: xchunked",
    "Transfer-Encoding: chunked\r\nContent-Length: 3", "Expect: 100-continue", "Expect: x", "Upgrade: h2c",
    "Connection: close, upgrade, keep-alive", "Authorization: Bearer ", "Authorization: Basic \x7f",
    "Authorization: Bearer " + "k" * 5_000, "Origin: http://elsewhere", "Origin: null", "Cookie: " + "c" * 6_000,
    "Content-Encoding: gzip", "Accept: application/json;q=x", "Range: bytes=0-", "X-Forwarded-For: ::ffff:1.2.3.4",
)  # fmt: skip
KEYS: Final = (
    "",
    "x",
    "AAAA",
    "A" * 24,
    "AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    "\u00e4",
)
BODIES: Final = (
    b"", b"{", b"[]", b"null", b"{}", b"\xff\xfe\x00", b'{"text": 1}', b'{"text": "a", "format": "mp3"}',
    b'{"text": "a", "speed": "fast"}', b'{"text": "a", "speed": 1e999}', b'{"text": "a", "voice": "nobody"}',
    b'{"text": "\\ud800", "voice": 3}', b'{"text":' + b"[" * 30_000, b'{"text": "' + b"a" * 120_000 + b'"}',
    b'{"text": "a", "sample_rate": 1}',
)  # fmt: skip
CHUNKED: Final = (
    b"zz\r\n", b"-1\r\n", b"5\r\nabc", b"ffffffffffffffffff\r\n", b"3;" + b"x" * 9_000, b"3\r\nabcX\r\n0\r\n\r\n",
    b"0\r\nX: \x00",
)  # fmt: skip
TLS_HELLO: Final = bytes.fromhex("16030100c8010000c40303") + bytes(range(189))
HTTP2: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def _head(chance: Random, *headers: str, method: str = "GET", path: str = "/") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    chance.shuffle(lines[1:])
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")


def request_line(chance: Random) -> Attack:
    """Its parts are taken from where they do not belong."""
    path = chance.choice(PATHS + ODD_PATHS)
    parts = [chance.choice(METHODS), path, chance.choice(VERSIONS)]
    line = chance.choice((" ", " ", "  ", "\t", "")).join(parts)
    end = chance.choice(("\r\n", "\r\n", "\n", "\r"))
    return Attack("request line", (f"{line}{end}Host: localhost{end}{end}".encode("utf-8", "replace"),))


def headers(chance: Random) -> Attack:
    """One to three odd ones, or far too many."""
    some = chance.choices(ODD_HEADERS, k=chance.randrange(1, 4))
    if chance.random() < 0.1:
        some = ["X: a"] * chance.choice((99, 101, 5_000))
    method = chance.choice(("GET", "GET", "POST", "HEAD"))
    return Attack("headers", (_head(chance, *some, method=method, path=chance.choice(PATHS)),))


def noise(chance: Random) -> Attack:
    """Bytes without meaning."""
    return Attack("noise", (chance.randbytes(chance.choice((1, 10, 100, 3_000, 40_000))),))


def other_protocol(chance: Random) -> Attack:
    """TLS, HTTP/2, and others who knock at the wrong door."""
    spoken = (
        TLS_HELLO,
        TLS_HELLO[:6],
        HTTP2,
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x05\x01\x00",
        b"EHLO mail\r\n",
        b"*1\r\n$4\r\nPING\r\n",
    )
    return Attack("other protocol", (chance.choice(spoken),), half_close=chance.random() < 0.3)


def body(chance: Random) -> Attack:
    """A request to speak that is none."""
    data = chance.choice(BODIES)
    told = chance.choice((len(data), len(data), max(0, len(data) - 1), len(data) + 10))
    kind = chance.choice(("application/json", "text/plain", "multipart/form-data", "application/json; charset=x", ""))
    head = _head(
        chance, f"Content-Type: {kind}", f"Content-Length: {told}", "Connection: close", method="POST", path="/v1/speak"
    )
    return Attack("body", (head, data), half_close=chance.random() < 0.3)


def chunked_body(chance: Random) -> Attack:
    """Chunks that lie."""
    head = _head(
        chance, "Transfer-Encoding: chunked", "Content-Type: application/json", method="POST", path="/v1/speak"
    )
    return Attack("chunked body", (head, chance.choice(CHUNKED)))


def handshake(chance: Random) -> Attack:
    """A request for a WebSocket with something wrong in it."""
    fields = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    method, path, version = "GET", "/v1/stream", "HTTP/1.1"
    wrongs: tuple[Callable[[], object], ...] = (
        lambda: fields.pop(chance.choice(sorted(fields))),
        lambda: fields.update({"Sec-WebSocket-Key": chance.choice(KEYS)}),
        lambda: fields.update({"Sec-WebSocket-Version": chance.choice(("12", "14", "x", "", "13, 8"))}),
        lambda: fields.update({"Upgrade": chance.choice(("websocket, h2c", "WebSocket/1", "websocke", ""))}),
        lambda: fields.update({"Sec-WebSocket-Protocol": chance.choice(("other", "a, b", "\x01", "x" * 5_000))}),
        lambda: fields.update(
            {"Sec-WebSocket-Extensions": chance.choice(("permessage-deflate; x=", ";;", "x" * 5_000))}
        ),
        lambda: fields.update({"Origin": chance.choice(("http://elsewhere", "null", "\u00e4", ""))}),
        lambda: fields.update({"Content-Length": "3"}),
        lambda: fields.update({"Authorization": chance.choice(("Bearer", "Bearer x y", "Digest a=b", "\x7f"))}),
    )
    for wrong in chance.sample(wrongs, chance.randrange(1, 3)):
        wrong()
    if chance.random() < 0.2:
        method = chance.choice(METHODS)
    if chance.random() < 0.2:
        path = chance.choice(PATHS + ODD_PATHS)
    if chance.random() < 0.1:
        version = chance.choice(VERSIONS)
    lines = [f"{method} {path} {version}", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return Attack(
        "handshake", ("\r\n".join(lines).encode("utf-8", "replace"), chance.choice((b"", b"abc", b"\x81\x80")))
    )


def slow_head(chance: Random) -> Attack:
    """A good head that comes in small pieces and then no more; now and then its sender waits to be cut off."""
    whole = chance.choice((HANDSHAKE, _head(chance, path="/healthz"), b"POST /v1/speak HTTP/1.1\r\nHost: a\r\nX: "))
    cut = chance.randrange(1, len(whole) - 1)
    size = chance.randrange(1, 60)
    pieces = tuple(whole[at : min(at + size, cut)] for at in range(0, cut, size))
    patience = 30.0 if chance.random() < 0.02 else chance.uniform(0.05, 0.5)
    return Attack("slow head", pieces[:20], pause_s=chance.uniform(0.0, 0.02), patience_s=patience)


def half_closed(chance: Random) -> Attack:
    """Part of a head, or none of it, and nothing can follow."""
    whole = chance.choice(
        (HANDSHAKE, _head(chance, path="/healthz"), _head(chance, "Content-Length: 5", method="POST"))
    )
    return Attack("half closed", (whole[: chance.randrange(len(whole) + 1)],), half_close=True)


def pipelined(chance: Random) -> Attack:
    """Requests behind each other, one of them broken."""
    good = _head(chance, path="/healthz")
    bad = chance.choice((b"BAD\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", HANDSHAKE, chance.randbytes(50), TLS_HELLO))
    return Attack("pipelined", (good * chance.randrange(1, 20) + bad + good,))


MAKERS: Final[tuple[Make, ...]] = (
    request_line, headers, noise, other_protocol, body, chunked_body, handshake, handshake, handshake, slow_head,
    half_closed, pipelined,
)  # fmt: skip
