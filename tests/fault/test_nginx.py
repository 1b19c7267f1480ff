"""Behind nginx, with our own configuration: nothing is held back, and sessions outlive the server that had them."""

import asyncio
import contextlib
import gzip
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path

import orjson
import pytest

import client
from deploy.faulty_proxy import DOWN, Connection, FaultyProxy
from protocol import client_messages as c
from protocol import server_messages as s
from server.gateway.pages import web_files
from tests.support.faults import Heard, prove, speak
from tests.support.nginx import Nginx, free_ports, nginx
from tests.support.processes import ServerProcess, server_process
from tests.support.raw_http import client_tls
from tests.support.resumer import resumer

pytestmark = [pytest.mark.programs("nginx"), pytest.mark.slow]

TEXT = "山高水远，天蓝云白，风轻日暖。 The server goes down, and the sentence goes on. " * 3  # 15 s of audio
STEPS = ("--engine", "tone", "--engine-option", "step_delay_ms=20")
BIG = "山高水远，天蓝云白，风轻日暖。" * 60


@dataclass
class Site:
    """Two servers with one store, and nginx before them."""

    proxy: Nginx
    servers: list[ServerProcess]

    def logged(self, server: ServerProcess, event: str) -> list[dict[str, object]]:
        """Its lines with this event."""
        return [line for line in server.log() if line.get("event") == event]

    def faults(self) -> list[dict[str, object]]:
        """What any of them logged as an error."""
        return [line for server in self.servers for line in server.log() if line.get("level") == "error"]


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    first, second = free_ports(2)
    with ExitStack() as running:
        proxy = running.enter_context(nginx(folder / "nginx", [first, second]))
        options = (*STEPS, "--store", f"file:{folder / 'store'}", "--resume-ttl-s", "20", "--drain-timeout-s", "0.5")
        servers = [
            running.enter_context(server_process(folder / f"{port}.log", *options, "--port", str(port)))
            for port in (first, second)
        ]
        yield Site(proxy, servers)


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[Site]:
    with ExitStack() as running:
        yield await asyncio.to_thread(running.enter_context, site(folder))


async def steps(server: ServerProcess) -> float:
    """How many its engine has made; each is up to 0.2 s of audio."""
    return await total(server, "cosystream_step_seconds_count")


async def total(server: ServerProcess, name: str) -> float:
    """A metric, all its labels together."""
    _, _, body = await asyncio.to_thread(ask, f"{server.http}/metrics")
    return sum(map(float, re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", body.decode(), re.MULTILINE)))


def ask(url: str, body: object = None, headers: Mapping[str, str] | None = None) -> tuple[int, Message, bytes]:
    """Status, headers and body."""
    data = None if body is None else orjson.dumps(body)
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers or {}), timeout=10) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


# ---- what passes, and what does not ----


async def test_one_server(tmp_path: Path) -> None:
    """Everything that one server and one nginx can show."""
    (port,) = free_ports(1)
    with ExitStack() as running:
        proxy = await asyncio.to_thread(running.enter_context, nginx(tmp_path / "nginx", [port]))
        await asyncio.to_thread(nobody_is_there, proxy)
        options = (*STEPS, "--port", str(port), "--max-sessions", "3")
        server = await asyncio.to_thread(running.enter_context, server_process(tmp_path / "log", *options))
        await asyncio.to_thread(only_speech_gets_out, proxy)
        await asyncio.to_thread(the_page_comes_as_the_server_sends_it, proxy)
        undisturbed = await speak(server.url, TEXT)
        await asyncio.gather(
            streams(proxy, undisturbed),
            streams_with_tls(proxy, undisturbed),
            asyncio.to_thread(speaks_as_it_is_made, proxy),
        )
        await a_slow_reader_costs_little(server, proxy)
        await a_full_server_says_when_to_come_back(proxy)
        await asyncio.to_thread(one_address_asks_too_often, proxy)


def nobody_is_there(proxy: Nginx) -> None:
    status, headers, body = ask(f"{proxy.http}/v1/voices")
    assert (status, headers["Retry-After"], headers.get_content_type()) == (503, "1", "application/json")
    assert orjson.loads(body)["error"]["code"] == "unavailable"


def only_speech_gets_out(proxy: Nginx) -> None:
    assert ask(f"{proxy.http}/v1/voices")[0] == 200
    inside = [
        "metrics",
        "status",
        "status.json",
        "healthz",
        "readyz",
        "v1/../metrics",
        "v1/%2e%2e/metrics",
        "web/../metrics",
        "web/%2e%2e/metrics",
        "web/..%2fmetrics",
        "web/none.js",
        "web",
        "//metrics",
    ]
    for path in inside:
        status, headers, body = ask(f"{proxy.http}/{path}")
        assert (path, status, headers.get_content_type()) == (path, 404, "application/json")
        assert orjson.loads(body)["error"]["code"] == "not_found"
    status, _, body = ask(f"{proxy.http}/v1/speak", {"text": "x" * 1_100_000})
    assert (status, orjson.loads(body)["error"]["code"]) == (413, "too_big")
    status, _, body = ask(f"{proxy.http}/v1/speak", {"text": 1})  # the server's own errors pass as they are
    assert (status, orjson.loads(body)["error"]["field"]) == (400, "text")


def the_page_comes_as_the_server_sends_it(proxy: Nginx) -> None:
    for path, kind in (("/", "text/html"), ("/web/style.css", "text/css")):
        status, headers, body = ask(f"{proxy.http}{path}")
        assert (status, headers.get_content_type(), headers["Cache-Control"]) == (200, kind, "no-cache")
        assert "connect-src 'self';" in headers["Content-Security-Policy"]
        known = {"If-None-Match": headers["ETag"]}
        assert ask(f"{proxy.http}{path}", headers=known)[0] == 304
        _, headers, small = ask(f"{proxy.http}{path}", headers={"Accept-Encoding": "gzip"})
        assert (headers["Content-Encoding"], gzip.decompress(small)) == ("gzip", body)
        assert "Accept-Encoding" in headers["Vary"]


async def streams(proxy: Nginx, undisturbed: Heard) -> None:
    heard = await speak(proxy.url, TEXT)
    prove(heard, undisturbed)
    came = heard.first_audio[-1] - heard.first_audio[0]
    assert came > 0.2  # as it was made, and not all at once


async def streams_with_tls(proxy: Nginx, undisturbed: Heard) -> None:
    async with resumer(f"wss://127.0.0.1:{proxy.tls_port}/v1/stream", ssl=client_tls()) as found:
        await found.say(1, TEXT)
        done = await found.until(s.Done)
        assert undisturbed.done is not None
        assert done.digest == undisturbed.done.digest
        assert found.pcm == undisturbed.pcm


def speaks_as_it_is_made(proxy: Nginx) -> None:
    request = urllib.request.Request(f"{proxy.http}/v1/speak", orjson.dumps({"text": TEXT * 2}))
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=30) as answer:
        first = answer.read(2_000)
        first_s = time.monotonic() - began
        rest = answer.read()
    whole_s = time.monotonic() - began
    assert first.startswith(b"RIFF")
    assert len(rest) > 500_000
    assert first_s < whole_s / 2


async def a_slow_reader_costs_little(server: ServerProcess, proxy: Nginx) -> None:
    """A minute of audio for a client that takes a nap: it waits in the server, not in nginx, and comes whole."""
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    small.connect(("127.0.0.1", proxy.port))
    small.setblocking(False)
    async with resumer(proxy.url, c.Open(max_lead_ms=None), sock=small) as found:
        found.acks = False
        await found.say(1, BIG)
        await found.until_bytes(10_000)
        await asyncio.sleep(1.5)
        made = await steps(server)
        await asyncio.sleep(0.5)
        assert await steps(server) == made  # the rest is not even made
        found.acks = True
        await found.ack()
        done = await found.until(s.Done)
        assert len(found.pcm) == 2 * done.samples
        assert done.samples > 60 * 24_000


async def a_full_server_says_when_to_come_back(proxy: Nginx) -> None:
    async with contextlib.AsyncExitStack() as places:
        for _ in range(3):
            await places.enter_async_context(resumer(proxy.url))
        status, headers, body = await asyncio.to_thread(ask, f"{proxy.http}/v1/speak", {"text": "好。"})
        assert (status, orjson.loads(body)["error"]["code"]) == (503, "capacity")
        assert int(headers["Retry-After"]) >= 1
        with pytest.raises(client.Busy):
            await speak(proxy.url, "好。")


def one_address_asks_too_often(proxy: Nginx) -> None:
    answers = [ask(f"{proxy.http}/v1/voices") for _ in range(160)]
    assert all(status == 200 for status, _, _ in answers[:60])
    refused = [answer for answer in answers if answer[0] != 200]
    assert refused
    for status, headers, body in refused:
        assert (status, headers.get_content_type()) == (429, "application/json")
        assert int(headers["Retry-After"]) >= 1
        assert orjson.loads(body)["error"]["code"] == "too_many_requests"
    page = ["/", *(f"/web/{name}" for name in web_files())]
    assert {ask(f"{proxy.http}{path}")[0] for path in page * 4} == {200}  # people who reload are counted apart


# ---- two servers ----


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_the_other_server_goes_on_at_the_next_sample(tmp_path: Path, number: signal.Signals) -> None:
    async with started(tmp_path) as there:
        undisturbed = await speak(there.servers[0].url, TEXT)
        speaking = asyncio.ensure_future(speak(there.proxy.url, slowly()))
        struck = await serving(there, speaking)
        struck.process.send_signal(number)
        heard = await speaking
        prove(heard, undisturbed)
        assert (heard.line.resumes, heard.line.restarts) == (1, 0)
        (other,) = [server for server in there.servers if server is not struck]
        assert [line["epoch"] for line in there.logged(other, "session restored")] == [1]
        assert await asyncio.to_thread(struck.process.wait, 10) == (0 if number == signal.SIGTERM else -number)
        assert there.faults() == []


async def slowly() -> AsyncIterator[str]:
    """The text as it is written, for three seconds."""
    for at in range(0, len(TEXT), 6):
        yield TEXT[at : at + 6]
        await asyncio.sleep(0.1)


async def serving(there: Site, speaking: "asyncio.Future[Heard]") -> ServerProcess:
    """The server that really speaks, in the middle of it."""
    before = [await steps(server) for server in there.servers]
    async with asyncio.timeout(10):
        while True:
            for server, made in zip(there.servers, before, strict=True):
                if await steps(server) > made + 15:
                    assert not speaking.done()
                    return server


async def test_who_comes_back_comes_to_the_server_that_has_the_session(tmp_path: Path) -> None:
    """Both live, and the line is cut again and again: by address, and by a word of the client's own."""
    async with started(tmp_path) as there:
        undisturbed = await speak(there.servers[0].url, TEXT)
        routes = ["", *(f"?route=client-{number}" for number in range(7))]
        for heard in await asyncio.gather(*(cut_twice(there, route) for route in routes)):
            prove(heard, undisturbed)
            assert (heard.line.resumes, heard.line.restarts) == (2, 0)
        resumed = [await total(server, "cosystream_resumes_total") for server in there.servers]
        assert sum(resumed) == 2 * len(routes)
        assert all(resumed)  # each server had some of them
        assert there.faults() == []


async def cut_twice(there: Site, route: str) -> Heard:
    """The line before nginx is reset in the middle."""
    async with FaultyProxy(there.proxy.port) as line:
        speaking = asyncio.ensure_future(speak(f"{line.url}{route}", TEXT))
        for _ in range(2):
            async with asyncio.timeout(10):
                enough = line.carried[DOWN] + 60_000
                while line.carried[DOWN] < enough:
                    await asyncio.sleep(0.005)
            line.each(Connection.reset)
        return await speaking
