"""The browser demo over HTTP: what is served, how it is kept, and who may have it."""

import gzip
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from server.app import Server
from server.gateway.auth import hash_key
from server.gateway.binding import Address
from server.gateway.pages import KINDS, takes_gzip, web_files
from tests.support.raw_http import Answer, ask, get
from tests.support.server import running

FOLDER = Path(__file__).parents[2] / "demo_web"
STYLE = (FOLDER / "style.css").read_bytes()


async def fetch(server: Server, path: str, *headers: str, method: str = "GET") -> Answer:
    assert server.listener is not None
    return await ask(server.listener.port, get(path, *headers, method=method), method)


async def test_every_file_is_served_as_what_it_is() -> None:
    async with running() as server:
        for name, file in web_files().items():
            answer = await fetch(server, f"/web/{name}")
            assert (answer.status, answer.body) == (200, (FOLDER / name).read_bytes())
            assert answer.headers["content-type"] == KINDS[Path(name).suffix] == file.kind
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert "content-encoding" not in answer.headers
    assert {path.name for path in FOLDER.iterdir() if path.suffix in KINDS} == set(web_files())


async def test_the_page_needs_no_key_and_no_engine(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"alice {hash_key('secret')}\n")
    async with running(keys=keys) as server:
        server.ready.clear()
        answer = await fetch(server, "/")
        head = await fetch(server, "/", method="HEAD")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert answer.body == (FOLDER / "index.html").read_bytes()
    assert (head.status, head.body) == (200, b"")
    volatile = {"date"}
    assert {name: head.headers[name] for name in head.headers.keys() - volatile} == {
        name: answer.headers[name] for name in answer.headers.keys() - volatile
    }


@pytest.mark.parametrize(
    "path", ["/web", "/web/", "/web/__init__.py", "/web/none.js", "/web/../pyproject.toml", "/web/%2e%2e%2fLICENSE"]
)
async def test_nothing_else_is(path: str) -> None:
    async with running() as server:
        answer = await fetch(server, path)
    assert (answer.status, answer.error["code"]) == (404, "not_found")


async def test_a_page_only_is_read() -> None:
    async with running() as server:
        answer = await fetch(server, "/", method="POST")
    assert (answer.status, set(answer.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})
    assert answer.error["code"] == "method_not_allowed"


async def test_what_a_browser_has_is_not_sent_again() -> None:
    async with running() as server:
        plain = await fetch(server, "/web/style.css")
        small = await fetch(server, "/web/style.css", "Accept-Encoding: br, gzip")
        tags = [plain.headers["etag"], small.headers["etag"]]
        assert tags[0] != tags[1]
        assert gzip.decompress(small.body) == plain.body == STYLE
        assert small.headers["content-encoding"] == "gzip"
        assert "Accept-Encoding" in plain.headers["vary"]
        assert plain.headers["cache-control"] == small.headers["cache-control"] == "no-cache"
        for known in (tags[0], f"W/{tags[0]}", f'"other", {tags[0]}', "*"):
            answer = await fetch(server, "/web/style.css", f"If-None-Match: {known}")
            assert (answer.status, answer.body, answer.headers["etag"]) == (304, b"", tags[0])
            assert "content-type" not in answer.headers
        again = await fetch(server, "/web/style.css", "Accept-Encoding: gzip", f"If-None-Match: {tags[1]}")
        assert (again.status, again.headers["etag"]) == (304, tags[1])
        assert "content-encoding" not in again.headers
        for other in ('"other"', tags[1], tags[0].strip('"')):
            assert (await fetch(server, "/web/style.css", f"If-None-Match: {other}")).status == 200


@pytest.mark.parametrize(
    ("accepted", "takes"),
    [
        ([], False),
        (["gzip"], True),
        (["br;q=1.0, GZIP;q=0.5, *;q=0"], True),
        (["br", "gzip"], True),
        (["gzip;q=0"], False),
        (["gzip; q=0.000, br"], False),
        (["gzip;q=0.01"], True),
        (["gzip;q=0;x=1"], False),
        (["gzip;q = 0"], False),
        (["gzip;x=0;q=1"], True),
        (["identity, x-gzipped"], False),
    ],
)
def test_who_takes_gzip(accepted: list[str], takes: bool) -> None:
    assert takes_gzip(accepted) is takes


async def test_the_policy_lets_nothing_in_and_nothing_out() -> None:
    async with running(allow_origins="*") as server:
        assert server.listener is not None
        request = get("/").replace(b"Host: ", b"Host: a; script-src *", 1)
        for answer in (await fetch(server, "/"), await ask(server.listener.port, request)):
            policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
            assert policy["connect-src"] == "'self'"
            assert (policy["default-src"], policy["script-src"], policy["worker-src"]) == ("'none'", "'self'", "'self'")
            assert "unsafe" not in " ".join(policy.values())
            assert policy["frame-ancestors"] == "'none'"


async def test_pages_that_may_use_the_server_may_import_the_player() -> None:
    """Modules, worklets and workers' imports are CORS requests."""
    page = "https://app.example"
    async with running(allow_origins=page) as server:
        allowed = await fetch(server, "/web/style.css", f"Origin: {page}")
        again = await fetch(server, "/web/style.css", f"Origin: {page}", f"If-None-Match: {allowed.headers['etag']}")
        other = await fetch(server, "/web/style.css", "Origin: https://other.example")
    for answer, status in ((allowed, 200), (again, 304)):
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, page)
        assert {"Accept-Encoding", "Origin"} == set(answer.headers["vary"].split(", "))
    assert (other.status, "access-control-allow-origin" in other.headers) == (200, False)
    async with running(allow_origins="*") as server:
        answer = await fetch(server, "/web/style.css", f"Origin: {page}")
    assert answer.headers["access-control-allow-origin"] == "*"


class _References(HTMLParser):
    """What a page asks for, and what its policy forbids."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.icons: list[str] = []
        self.forbidden: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.forbidden += [f"{tag} {name}" for name in given if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.forbidden.append(tag)
        if tag in ("link", "script", "img"):
            self.asked.append(given.get("href") or given.get("src", ""))
        if tag == "link" and "icon" in given.get("rel", "").split():
            self.icons.append(given["href"])


def test_the_page_asks_for_its_own_files_alone_and_relatively() -> None:
    found = _References()
    found.feed(web_files()["index.html"].plain.decode())
    assert found.forbidden == []
    assert found.icons, "browsers would ask for /favicon.ico"
    own = [name for name in found.asked if not name.startswith("data:")]
    assert {name.removeprefix("web/") for name in own} <= set(web_files())
    assert all(name.startswith("web/") for name in own), "else it would not work behind a proxy that adds a path"


def test_no_module_asks_anybody_else() -> None:
    for name, file in web_files().items():
        text = file.plain.decode()
        for module in re.findall(r"""\b(?:from|import)\s*\(?\s*["']([^"']+)["']""", text) if name[-3:] == ".js" else []:
            assert module.startswith("./"), f"{name} imports {module}"
            assert module.removeprefix("./") in web_files(), f"{name} imports {module}"


def test_the_whole_page_is_small_on_its_way() -> None:
    """As every browser takes it, compressed; and all files, though no page loads them all."""
    assert sum(len(file.gzipped or file.plain) for file in web_files().values()) <= 120_000


@pytest.mark.parametrize(
    ("address", "page"),
    [
        (Address("127.0.0.1", 8765), "http://127.0.0.1:8765/"),
        (Address("0.0.0.0", 80), "http://localhost:80/"),
        (Address("::", 8765), "http://localhost:8765/"),
        (Address("::1", 8765), "http://[::1]:8765/"),
        (Address("192.0.2.7", 8765), "http://192.0.2.7:8765/"),
    ],
)
def test_the_log_names_a_page_that_can_be_opened(address: Address, page: str) -> None:
    assert address.page(secure=False) == page
    assert address.page(secure=True) == page.replace("http:", "https:")
