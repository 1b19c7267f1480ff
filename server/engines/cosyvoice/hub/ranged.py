"""One file over HTTP, going on where an earlier try broke off: also one of an earlier process."""

import http.client
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final, Protocol
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from server.engines.cosyvoice.hub.remote import TIMEOUT_S, HubError, Interrupted, RemoteFile
from server.engines.cosyvoice.sections import one_line

_PIECE: Final = 1 << 20


class Refusal(Protocol):
    """What a status says that no further try would change; None for others."""

    def __call__(self, status: int) -> HubError | None:
        """Of an answer's HTTP status."""
        ...


def fetch_ranged(
    url: str, headers: Mapping[str, str], file: RemoteFile, into: Path, refusal: Refusal, *, afresh: bool
) -> None:
    """Bring `url` to `into / file.path`; until it is whole it is named `.part`. Raises what `Remote.fetch` does."""
    target = into / file.path
    part = target.with_name(f"{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    with part.open("wb" if afresh else "ab") as written:
        if written.tell() > file.bytes:
            written.truncate(0)
        if written.seek(0, 2) < file.bytes:
            _go_on(url, headers, written, refusal)
    if part.stat().st_size < file.bytes:
        raise Interrupted("the connection was closed")
    part.replace(target)


def open_url(url: str, headers: Mapping[str, str], first: int = 0) -> http.client.HTTPResponse:
    """The answer, from byte `first` on where the server can. Raises what `urlopen` does."""
    request = Request(url)
    for name, value in headers.items():
        if name.lower() == "authorization":
            request.add_unredirected_header(name, value)  # files may lie with others, whom no token concerns
        else:
            request.add_header(name, value)
    if first:
        request.add_header("Range", f"bytes={first}-")
    response: http.client.HTTPResponse = urlopen(request, timeout=TIMEOUT_S)
    return response


def reason_of(error: BaseException) -> str:
    """Why a request failed, short."""
    return one_line(error.reason if isinstance(error, URLError) else error) or type(error).__name__


def _go_on(url: str, headers: Mapping[str, str], written: IO[bytes], refusal: Refusal) -> None:
    try:
        response = open_url(url, headers, written.tell())
    except HTTPError as error:
        with error:
            if told := refusal(error.code):
                raise told from error
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                written.truncate(0)
            raise Interrupted(f"HTTP status {error.code}") from error
    except (OSError, http.client.HTTPException) as error:
        raise Interrupted(reason_of(error)) from error
    with response:
        if response.status != http.client.PARTIAL_CONTENT:
            written.truncate(0)  # the whole file comes
        while piece := _read(response):
            written.write(piece)


def _read(response: http.client.HTTPResponse) -> bytes:
    """What is there by now, so that little is lost if it breaks off."""
    try:
        return response.read1(_PIECE)
    except (OSError, http.client.HTTPException) as error:
        raise Interrupted(reason_of(error)) from error
