"""docs/embedding.md: its page and its server work as they stand, from another origin and under the policy it names."""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from server.app import Server
from server.gateway.auth import add_key
from tests.support.embedding import DOCUMENT, block
from tests.support.processes import ROOT
from tests.support.server import http_of, running, url_of
from tests.support.web_player import reference
from tests.web.conftest import OpenPage, free_port

LOCAL_SPEECH, LOCAL_APP = "http://127.0.0.1:8765", "http://127.0.0.1:8000"
SPEECH = "https://speech.example"
TEXT = "One two three. 四五六。"
LONG = TEXT * 4  # more than is sent ahead
SAID = """() => {
  window.said = [];
  const element = document.getElementById("said");
  new MutationObserver(() => window.said.push(element.textContent)).observe(element, {childList: true});
}"""
ICON = '<link rel="icon" href="data:,">'


def policies() -> list[str]:
    """The policy for files of the speech server, and that for copies of them."""
    return [block("text").strip(), *re.findall(r"policy is shorter then: `([^`]+)`", DOCUMENT)]


@contextmanager
def site(folder: Path, server: Server, key: str, port: int, *, policy: str = "", copied: bool = False) -> Iterator[str]:
    """The document's server with its page; gives its origin. With a `policy` the script is in a file of its own."""
    origin = f"http://127.0.0.1:{port}"

    def here(text: str) -> str:
        http = http_of(server)
        text = text.replace(SPEECH.replace("https", "wss"), http.replace("http", "ws")).replace(SPEECH, http)
        return text.replace(LOCAL_SPEECH, http).replace(LOCAL_APP, origin)

    page = here(block("html embedding"))
    code = here(block("python embedding"))
    assert code.count(", 8000)") == 1
    (folder / "backend.py").write_text(code.replace(", 8000)", f", {port})"))
    public = folder / "public"
    public.mkdir()
    if copied:
        (public / "cosystream").mkdir()
        for name in block("text files").split():
            (public / "cosystream" / name).write_bytes((ROOT / "demo_web" / name).read_bytes())
        page = page.replace(f"{http_of(server)}/web/player.js", "./cosystream/player.js")
    head = ICON
    if policy:
        head += (
            f'<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; {here(policy)}">'
        )
        (script,) = re.findall(r'<script type="module">\n(.*?)</script>', page, re.DOTALL)
        (public / "page.js").write_text(script)
        page = re.sub(
            r'<script type="module">.*</script>', '<script type="module" src="page.js"></script>', page, flags=re.DOTALL
        )
    (public / "index.html").write_text(page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">{head}'))
    environment = {**os.environ, "COSYSTREAM_API_KEY": key}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "backend.py"], cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        _wait_for(port, process)
        yield origin
    finally:
        process.kill()
        process.wait(10)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + 10
    while process.poll() is None and time.monotonic() < limit:
        try:
            connection = HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("HEAD", "/")
            connection.getresponse()
            connection.close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("the document's server does not answer")


@contextmanager
def embedded(folder: Path, server: Server, port: int, **options: Any) -> Iterator[str]:
    """As `site`, with the key that the server's file has."""
    (folder / "site").mkdir()
    with site(folder / "site", server, (folder / "key").read_text(), port, **options) as origin:
        yield origin


def keys(folder: Path) -> Path:
    """A key file; the key is in `key`."""
    (folder / "key").write_text(add_key(folder / "keys", "app"))
    return folder / "keys"


@pytest.mark.parametrize("way", ["as it stands", "with the policy", "copied"])
async def test_it_speaks_from_another_origin(open_page: OpenPage, tmp_path: Path, way: str) -> None:
    port = free_port()
    imported, own = policies()
    options: dict[str, dict[str, Any]] = {
        "as it stands": {},
        "with the policy": {"policy": imported},
        "copied": {"policy": own, "copied": True},
    }
    async with running(keys=keys(tmp_path), allow_origins=f"http://127.0.0.1:{port}") as server:
        with embedded(tmp_path, server, port, **options[way]) as origin:
            watched = await open_page(f"{origin}/", foreign=(http_of(server),))
            await watched.page.evaluate(SAID)
            await watched.page.fill("#text", TEXT)
            await watched.page.click("#speak")
            await watched.event("ended", 1)
            spoken = await reference(url_of(server), TEXT, api_key=(tmp_path / "key").read_text())
            report = await watched.report(1)
            assert report["received"] == len(spoken) // 2
            words = [each for each in await watched.events("word") if each["id"] == 1]
            said = [TEXT[each["start"] : each["end"]] for each in words]
            assert await watched.page.evaluate("() => said") == [*said, ""]
            assert await watched.page.inner_text("#line") == ""
            support = await watched.page.evaluate("() => probe.player.support")
            assert (support["worker"], support["worklet"]) == (True, True)
            loaded = [url for url in watched.requests if "/worker.js" in url]
            assert [url.startswith(origin) for url in loaded] == [way == "copied"]
            await watched.page.fill("#text", TEXT * 20)
            await watched.page.click("#speak")
            await watched.event("audible", 2)
            await watched.page.click("#stop")
            await watched.event("stopped", 2)
            assert await watched.page.inner_text("#said") == ""
            await watched.page.evaluate("() => probe.player.close()")


async def test_a_drop_takes_the_site_away_too(open_page: OpenPage, tmp_path: Path) -> None:
    """Who has no network gets no token either: it is asked for again, and the text goes on."""
    port = free_port()
    async with running(keys=keys(tmp_path), allow_origins=f"http://127.0.0.1:{port}") as server:
        with embedded(tmp_path, server, port) as origin:
            watched = await open_page(f"{origin}/", foreign=(http_of(server),), expected=("ERR_FAILED",))
            await watched.page.fill("#text", LONG)
            await watched.page.click("#speak")
            await watched.event("audible", 1)
            await watched.page.route("**/speech-token", lambda route: route.abort())
            async with watched.page.expect_event("requestfailed"):
                await watched.page.evaluate("() => probe.player.cut()")
            await watched.page.unroute("**/speech-token")
            await watched.event("ended", 1)
            assert await watched.events("failure") == []
            spoken = await reference(url_of(server), LONG, api_key=(tmp_path / "key").read_text())
            assert (await watched.report(1))["received"] == len(spoken) // 2
            await watched.page.evaluate("() => probe.player.close()")


async def test_the_site_says_that_it_gets_no_token(tmp_path: Path) -> None:
    """The speech server does not know its key, and then is gone."""
    port = free_port()

    def asked() -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request("POST", "/speech-token")
        answer = connection.getresponse()
        connection.close()
        return answer.status, answer.reason

    with ExitStack() as stack:
        async with running(keys=keys(tmp_path)) as server:
            stack.enter_context(site(tmp_path, server, "cosy_of_somebody_else", port))
            assert await asyncio.to_thread(asked) == (500, "the speech server says 401")
            assert "the API key is wrong" in (tmp_path / "log").read_text()
        assert await asyncio.to_thread(asked) == (503, "the speech server does not answer")


async def test_a_refused_key_shows_at_once(open_page: OpenPage, tmp_path: Path) -> None:
    """Asking again would not help; the page waits for nothing."""
    port = free_port()
    async with running(keys=keys(tmp_path), allow_origins=f"http://127.0.0.1:{port}") as server:
        with site(tmp_path, server, "cosy_of_somebody_else", port) as origin:
            watched = await open_page(f"{origin}/", foreign=(http_of(server),), expected=("500",))
            began = time.monotonic()
            await watched.page.click("#speak")
            await watched.until("document.getElementById('said').textContent !== ''")
            assert time.monotonic() - began < 3
            assert await watched.page.inner_text("#said") == "no token: HTTP 500 the speech server says 401"
            assert len([url for url in watched.requests if url.endswith("/speech-token")]) == 1
            await watched.page.evaluate("() => probe.player.close()")


async def test_a_server_that_is_away_shows_beside_the_buttons(open_page: OpenPage, tmp_path: Path) -> None:
    """Its token may come yet: the page says that it waits, and speaks when it comes."""
    port = free_port()
    async with running(keys=keys(tmp_path), allow_origins=f"http://127.0.0.1:{port}") as server:
        with embedded(tmp_path, server, port) as origin:
            watched = await open_page(f"{origin}/", foreign=(http_of(server),), expected=("503",))
            await watched.page.route("**/speech-token", lambda route: route.fulfill(status=503))
            await watched.page.click("#speak")
            await watched.until("document.getElementById('line').textContent === 'connecting unreachable'")
            assert await watched.events("failure") == []
            await watched.page.unroute("**/speech-token")
            await watched.event("ended", 1)
            assert await watched.page.inner_text("#line") == ""
            await watched.page.evaluate("() => probe.player.close()")


async def test_only_the_public_folder_is_served(tmp_path: Path) -> None:
    port = free_port()
    async with running(keys=keys(tmp_path)) as server:
        with site(tmp_path, server, "cosy_any", port):

            def status(path: str) -> int:
                connection = HTTPConnection("127.0.0.1", port, timeout=20)
                connection.request("GET", path)
                found = connection.getresponse().status
                connection.close()
                return found

            assert await asyncio.to_thread(status, "/index.html") == 200
            for path in ("/keys", "/backend.py", "/../keys", "/%2e%2e/keys", "/public/index.html"):
                assert await asyncio.to_thread(status, path) == 404


async def test_a_server_without_its_key_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "backend.py").write_text(block("python embedding"))
    environment = {name: value for name, value in os.environ.items() if name != "COSYSTREAM_API_KEY"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "backend.py", cwd=tmp_path, env=environment, stderr=asyncio.subprocess.PIPE
    )
    _, told = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 1
    assert b"COSYSTREAM_API_KEY" in told


async def test_a_site_that_is_not_allowed_hears_why(open_page: OpenPage, tmp_path: Path) -> None:
    """With copies of the files: what is imported would not even come."""
    port = free_port()
    async with running(keys=keys(tmp_path)) as server:
        with embedded(tmp_path, server, port, copied=True) as origin:
            watched = await open_page(f"{origin}/", foreign=(http_of(server),))
            await watched.page.click("#speak")
            await watched.until("probe.events.some((each) => each.kind === 'failure')")
            (failure, *_) = await watched.events("failure")
            assert failure["code"] == "unauthorized"
            assert "may not use this server; allow_origins can allow them" in failure["message"]
            assert await watched.page.inner_text("#said") == failure["message"]
            await watched.page.evaluate("() => probe.player.close()")
