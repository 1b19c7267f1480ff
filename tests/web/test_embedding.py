"""docs/embedding.md: its page works as it stands, on somebody else's server."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.processes import ROOT
from tests.support.server import http_of, running, url_of
from tests.support.web_page import DemoPage
from tests.support.web_player import reference
from tests.web.conftest import OpenPage

DOCUMENT = ROOT / "docs" / "embedding.md"
LINES = 30


def example() -> str:
    """The page in the document."""
    (block,) = re.findall(r"```html embedding\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    return str(block)


@contextmanager
def elsewhere(page: str) -> Iterator[str]:
    """A web server of its own that has only this page; gives its origin."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page.encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_it_is_short() -> None:
    assert len(example().splitlines()) <= LINES


async def test_it_speaks_from_another_origin(open_page: OpenPage) -> None:
    async with running(allow_origins="*") as server:
        with elsewhere(re.sub(r"https?://[\w.:-]+", http_of(server), example())) as origin:
            page = DemoPage(await open_page(f"{origin}/", foreign=(http_of(server),)))
            text = "One two three."
            await page.page.locator("textarea, input[type=text], input:not([type])").first.fill(text)
            await page.page.locator("button").first.click()
            await page.watched.until("probe.events.some((each) => each.kind === 'ended')")
            report = (await page.watched.events("report"))[-1]
            assert report["received"] == len(await reference(url_of(server), text)) // 2
