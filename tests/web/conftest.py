"""A browser, servers that it opens the page of, and what holds for every page: no error on its console, no request to
anywhere else, nothing against the content security policy.
"""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from bench._browser import ELSEWHERE, Watched, chromium, watched_page
from tests.support.processes import ServerProcess, server_process
from tests.support.web_player import POLICY, PlayerPage, serve_empty_page

ARTIFACTS = Path(__file__).parent / "artifacts"

OpenPage = Callable[..., Awaitable[Watched]]
"""`await open_page(url, expected=(), foreign=(), **options)`: options are those of `watched_page`; `expected`: patterns
of errors that belong to the test; `foreign`: URLs of other origins that the page may talk to; `policy`: of `/empty`."""

OpenPlayer = Callable[..., Awaitable[PlayerPage]]
"""`await open_player(http, player={...}, **options)`: an empty page of this server with a `Player`; `player`: its
options, the others are those of `open_page`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What uses the browser runs in the browser's event loop, and needs one to be installed."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()) and item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            item.add_marker(pytest.mark.programs("chromium"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One Chromium for all tests."""
    ARTIFACTS.mkdir(exist_ok=True)
    async with chromium() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="session")
async def open_page(browser: Browser) -> AsyncIterator[OpenPage]:
    """Opens pages; each has a browsing context of its own and must be clean at the end."""
    opened: list[tuple[Watched, set[str]]] = []
    async with AsyncExitStack() as stack:

        async def open_it(
            url: str,
            *,
            expected: tuple[str, ...] = (),
            foreign: tuple[str, ...] = (),
            policy: str = POLICY,
            **options: Any,
        ) -> Watched:
            watched = await stack.enter_async_context(watched_page(browser, **options))
            watched.expected += expected
            opened.append((watched, {*map(place, foreign), place(url)}))
            await serve_empty_page(watched.page, policy)
            await watched.page.goto(url)
            return watched

        yield open_it
        problems = [problem for watched, _ in opened for problem in watched.problems]
    assert not problems, "\n".join(problems)
    for watched, allowed in opened:
        asked = {place(url) for url in watched.requests if not url.startswith(("blob:", "data:"))}
        assert asked <= allowed, "a request left the origin"


@pytest.fixture
def open_player(open_page: OpenPage) -> OpenPlayer:
    """Opens empty pages with a player."""

    async def open_it(http: str, player: dict[str, Any] | None = None, **options: Any) -> PlayerPage:
        page = PlayerPage(await open_page(f"{http}/empty", **options))
        await page.make(**(player or {}))
        return page

    return open_it


def place(url: str) -> str:
    """Host and port of a URL."""
    return urlsplit(url).netloc


def free_port() -> int:
    """A TCP port that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def tone_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Speaks tones. Pages from `ELSEWHERE`, too, may use it."""
    port = free_port()
    options = ("--engine", "tone", "--port", str(port), "--allow-origins", f"http://{ELSEWHERE}:{port}")
    with server_process(tmp_path_factory.mktemp("tone") / "log", *options) as server:
        yield server


@pytest.fixture(scope="session")
def voice_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Speaks with the embedded voices."""
    with server_process(tmp_path_factory.mktemp("voice") / "log", "--engine", "embedded", timeout=120) as server:
        yield server
