"""A question to another gateway over its unix socket: one HTTP request, one answer, within a bound of time and size."""

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Final

MAX_ANSWER_BYTES: Final = 4 * 1024 * 1024


class NoAnswer(Exception):
    """It could not be asked, or what came is no answer. `absent`: there is no such socket (yet)."""

    def __init__(self, message: str, *, absent: bool = False) -> None:
        super().__init__(message)
        self.absent = absent


async def ask(path: Path, target: str, timeout_s: float) -> bytes:
    """The body of what the server on this socket answers to GET `target`. Raises NoAnswer, also where it is not a
    200.
    """
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_unix_connection(path, limit=MAX_ANSWER_BYTES)
            try:
                # HTTP/1.0: the answer is never chunked and ends with the connection.
                writer.write(f"GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode("ascii"))
                answer = await _read(reader)
            finally:
                writer.transport.abort()
    except FileNotFoundError as error:
        raise NoAnswer(f"{path.name}: nobody is there", absent=True) from error
    except TimeoutError as error:
        raise NoAnswer(f"{path.name}: no answer within {timeout_s:g} s") from error
    except OSError as error:
        raise NoAnswer(f"{path.name}: {error.strerror or error}") from error
    head, separator, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if not separator or status != [str(HTTPStatus.OK.value).encode()]:
        raise NoAnswer(f"{path.name}: not the expected answer to {target}")
    return body


async def _read(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := await reader.read(65_536):
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise NoAnswer("the answer is too long")
    return b"".join(parts)
