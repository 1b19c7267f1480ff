"""A client that sends exactly the bytes it is told to, for what proper clients would never send."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.client import HTTPResponse
from io import BytesIO
from pathlib import Path
from typing import Final, cast

import orjson

TLS: Final = Path(__file__).parent / "tls"
PATIENCE_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer, its body decoded from chunks."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, str | None]:
        """The `error` object of a JSON body."""
        return cast(dict[str, str | None], orjson.loads(self.body)["error"])


class _Socket:
    def __init__(self, data: bytes) -> None:
        self.file = BytesIO(data)

    def makefile(self, *_: object) -> BytesIO:
        return self.file


def parse_answers(data: bytes, method: str = "GET") -> list[Answer]:
    """The answers in `data`, which must hold nothing else."""
    sock = _Socket(data)
    close = sock.file.close
    sock.file.close = lambda: None  # type: ignore[method-assign]  # the next answer is read from it too
    found = []
    while sock.file.tell() < len(data):
        response = HTTPResponse(sock, method=method)  # type: ignore[arg-type]  # needs makefile and no more
        response.begin()
        found.append(
            Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read() if data else b"")
        )
    close()
    return found


def client_tls() -> ssl.SSLContext:
    """Trusts the test certificate."""
    return ssl.create_default_context(cafile=str(TLS / "certificate.pem"))


@asynccontextmanager
async def connect(
    port: int, *, secure: bool = False
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection, aborted in the end."""
    context = client_tls() if secure else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """Everything until the server ends the connection, orderly or not."""
    data = b""
    async with asyncio.timeout(PATIENCE_S):
        try:
            while piece := await reader.read(65_536):
                data += piece
        except ConnectionError:
            pass
    return data


async def talk(port: int, *pieces: bytes, secure: bool = False) -> bytes:
    """Send `pieces` one after the other; everything that comes back until the server ends the connection."""
    async with connect(port, secure=secure) as (reader, writer):
        return await send_and_read(reader, writer, *pieces)


async def send_and_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *pieces: bytes) -> bytes:
    """As `talk`, on a connection that exists. It reads while it sends: a reset destroys what was not read yet."""
    reading = asyncio.ensure_future(read_all(reader))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
    except ConnectionError:
        pass  # cut off while sending; what came back before counts
    return await reading


async def ask(port: int, request: bytes, method: str = "GET", *, secure: bool = False) -> Answer:
    """The one answer to a request that ends its connection."""
    (answer,) = parse_answers(await talk(port, request, secure=secure), method)
    return answer


def get(path: str, *headers: str, method: str = "GET", close: bool = True, body: bytes = b"") -> bytes:
    """A request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers]
    if close:
        lines.append("Connection: close")
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def handshake(path: str = "/v1/stream", *headers: str) -> bytes:
    """A WebSocket handshake."""
    key = base64.b64encode(bytes(16)).decode()
    wanted = ("Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13")
    return get(path, *wanted, *headers, close=False)


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, first_bits: int = 0) -> bytes:
    """A masked frame (with a mask of zeros) of at most 125 bytes."""
    return bytes([(0x80 if fin else 0) | first_bits | opcode, 0x80 | len(payload), 0, 0, 0, 0]) + payload


def close_code(data: bytes) -> int | None:
    """The code of the close frame that `data`, from a server, ends with."""
    at = data.rfind(b"\x88")
    return int.from_bytes(data[at + 2 : at + 4], "big") if at >= 0 and len(data) >= at + 4 else None
