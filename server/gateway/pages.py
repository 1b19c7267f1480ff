"""The browser demo: `GET /`, and the files of the package `demo_web` at `/web/NAME`, which pages elsewhere may import.

The page names its files relatively, so that it also works behind a proxy that puts a path before ours.
"""

import gzip
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files
from pathlib import PurePath
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PACKAGE: Final = "demo_web"
INDEX: Final = "index.html"
KINDS: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_TAG: Final = re.compile(r'"[^"]*"|\*')
_NO_GZIP: Final = re.compile(r";\s*q\s*=\s*0(\.0*)?\s*(;|$)")
# Only our own files, and connections to where the page came from: `'self'` is its WebSocket, too, in every browser that
# has what the page needs (Safari: from 16 on). Workers obey the policy that their own file came with.
CONTENT_SECURITY_POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "worker-src 'self'",
        "media-src 'self' blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)


@dataclass(frozen=True, slots=True)
class WebFile:
    """A file as it is sent. `gzipped` is None where that would not be shorter; `tag` is the digest of `plain`."""

    plain: bytes
    gzipped: bytes | None
    kind: str
    tag: str


@cache
def web_files() -> dict[str, WebFile]:
    """What a browser may have of the package, by name. Read once, for all servers of this process."""
    found = {}
    for item in files(PACKAGE).iterdir():
        kind = KINDS.get(PurePath(item.name).suffix)
        if kind is not None and item.is_file():
            found[item.name] = _web_file(item.read_bytes(), kind)
    return found


def _web_file(plain: bytes, kind: str) -> WebFile:
    gzipped = gzip.compress(plain, mtime=0)
    return WebFile(plain, gzipped if len(gzipped) < len(plain) else None, kind, sha256(plain).hexdigest()[:32])


def page_routes() -> list[Route]:
    """The page, and what it is made of."""
    known = web_files()

    def answer(request: Request, name: str) -> Response:
        if name not in known:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        return _answer(request, known[name])

    async def page(request: Request) -> Response:
        return answer(request, INDEX)

    async def file(request: Request) -> Response:
        return answer(request, request.path_params["name"])

    return [Route("/", page), Route("/web/{name}", file)]


def _answer(request: Request, file: WebFile) -> Response:
    body, tag = file.plain, f'"{file.tag}"'
    headers = {
        "Vary": "Accept-Encoding",
        "Cache-Control": "no-cache",  # kept, and asked for again: after an update all files are of one version
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
    if file.gzipped is not None and takes_gzip(request.headers.getlist("accept-encoding")):
        body, tag = file.gzipped, f'"{file.tag}-gzip"'
        headers["Content-Encoding"] = "gzip"
    headers["ETag"] = tag
    if not {tag, "*"}.isdisjoint(_TAG.findall(", ".join(request.headers.getlist("if-none-match")))):
        headers.pop("Content-Encoding", None)
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    return Response(body, headers=headers, media_type=file.kind)


def takes_gzip(accepted: Sequence[str]) -> bool:
    """Whether the headers `Accept-Encoding` name it, and not as the one that is refused."""
    ways = [way.strip().lower() for way in ",".join(accepted).split(",")]
    return any(way.partition(";")[0].strip() == "gzip" and not _NO_GZIP.search(way) for way in ways)
