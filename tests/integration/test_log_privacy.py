"""No text that a client had spoken, or sent in the wrong place, is in the log; and floods do not fill it."""

import asyncio
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog
from websockets.exceptions import ConnectionClosed

from protocol import SUBPROTOCOL, TOKEN_SUBPROTOCOL
from protocol import client_messages as c
from protocol import server_messages as s
from server.app import Server
from server.engines.tone import ToneEngine
from server.gateway.auth import hash_key
from server.observe import line_limit
from server.observe.logs import configure_logs, log_loop_fault
from tests.support.raw_http import ask, frame, get, handshake, talk
from tests.support.server import BareClient, bare_client, running, url_of

MARK = "玄鸟翩翩"
ENGLISH = "zyzzyva"
TEXT = f"{MARK}，{ENGLISH}。"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """Everything that is logged, as JSON lines."""
    stream = io.StringIO()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    configure_logs("json", "info", stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("server", "cosystream"):
        logging.getLogger(name).setLevel(logging.NOTSET)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in stream.getvalue().splitlines()]


def leaked(stream: io.StringIO) -> list[str]:
    """Lines with the text, in whichever spelling."""
    marks = {MARK, MARK[:2], MARK[2:], ENGLISH, repr(MARK.encode())[2:-1], ascii(MARK).strip("'")}
    return [line for line in stream.getvalue().splitlines() if any(mark in line for mark in marks)]


async def until_closed(client: BareClient) -> None:
    async with asyncio.timeout(10):
        try:
            async for _ in client.socket:
                pass
        except ConnectionClosed:
            pass


async def say(server: Server, text: str = TEXT) -> None:
    async with bare_client(url_of(server), open=c.Open()) as client:
        await client.say(1, text)
        await client.until(s.Done)


async def say_until_closed(server: Server, text: str = TEXT) -> None:
    async with bare_client(url_of(server), open=c.Open()) as client:
        await client.say(1, text)
        await until_closed(client)


async def send_raw(server: Server, *messages: str | bytes, open: c.Open | None = None) -> None:
    async with bare_client(url_of(server), open=open) as client:
        for message in messages:
            await client.socket.send(message)
        await until_closed(client)


async def post(server: Server, body: bytes, **changes: str) -> None:
    assert server.listener is not None
    request = get(changes.get("path", "/v1/speak"), *(changes.get("header"),) if "header" in changes else (),
                  method="POST", body=body) + body  # fmt: skip
    await ask(server.listener.port, request, "POST")


async def leave(server: Server) -> None:
    async with bare_client(url_of(server), open=c.Open()) as client:
        await client.say(1, TEXT * 20)
        await client.until(s.Timing)
        client.socket.transport.abort()


WRONG: dict[str, str | bytes] = {
    "no JSON": f"{{{TEXT}",
    "no object": f'"{TEXT}"',
    "type": f'{{"type": "{TEXT}"}}',
    "voice": f'{{"type": "open", "voice": "{TEXT}"}}',
    "format": f'{{"type": "open", "format": "{TEXT}"}}',
    "field": f'{{"type": "open", "{TEXT}": 1, "speed": "{TEXT}"}}',
    "session": f'{{"type": "resume", "session": "{TEXT}", "token": "{TEXT}", "epoch": -1}}',
    "binary": TEXT.encode(),
    "UTF-8": f'{{"type": "open", "voice": "{TEXT}'.encode() + b"\xff",
}


@pytest.mark.parametrize("what", WRONG)
async def test_messages_that_are_wrong(written: io.StringIO, what: str) -> None:
    message = WRONG[what]
    async with running() as server:
        await send_raw(server, message)
        await post(server, message.encode() if isinstance(message, str) else message)
    assert leaked(written) == []
    assert what == "UTF-8" or "client error" in {line["event"] for line in lines(written)}


async def test_fields_that_are_wrong(written: io.StringIO) -> None:
    async with running() as server:
        for kind, name, value in (("start", "voice", TEXT), ("text", "text", [TEXT]), ("start", "instruct", TEXT),
                                  ("start", "lexicon", {TEXT: 1}), ("cancel", "utterance", TEXT)):  # fmt: skip
            message = orjson.dumps({"type": kind, "seq": 1, "utterance": 1, name: value})
            await send_raw(server, message.decode(), open=c.Open())
    assert leaked(written) == []
    assert len([line for line in lines(written) if line["event"] == "client error"]) == 5


async def test_keys_that_are_wrong(written: io.StringIO, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"ann {hash_key('secret')}\n")
    async with running(keys=keys) as server:
        await send_raw(server, orjson.dumps({"type": "open", "api_key": TEXT}).decode())
        await post(server, b"{}", header=f"Authorization: Bearer {ENGLISH}")
    assert leaked(written) == []


@pytest.mark.parametrize("level", ["info", "debug"])
async def test_tokens_good_and_bad(written: io.StringIO, tmp_path: Path, level: str) -> None:
    configure_logs("json", level, written)
    keys = tmp_path / "keys"
    keys.write_text(f"ann {hash_key('secret')}\n")
    async with running(keys=keys, log_sample_percent=100.0, store=f"file:{tmp_path / 'store'}") as server:
        assert server.listener is not None
        made = await ask(server.listener.port, get("/v1/tokens", "Authorization: Bearer secret", method="POST"), "POST")
        token = orjson.loads(made.body)["token"]
        for each in (token, token[:-1]):
            await post(server, orjson.dumps({"text": "a"}), header=f"Authorization: Bearer {each}")
            await post(server, b"{}", path="/v1/tokens", header=f"Authorization: Bearer {each}")
            offered = f"Sec-WebSocket-Protocol: {SUBPROTOCOL}, {TOKEN_SUBPROTOCOL}{each}"
            for headers in ((offered,), (f"Authorization: Bearer {each}",), (offered, offered)):
                await talk(server.listener.port, handshake("/v1/stream", *headers), frame(1, b'{"type": "open"}'),
                           frame(8, b"\x03\xe8"))  # fmt: skip
            await send_raw(server, orjson.dumps({"type": "open", "api_key": each}).decode())
    _, claims, signature = token.split(".")
    assert "session ended" in written.getvalue()
    assert claims not in written.getvalue()
    assert signature[:-1] not in written.getvalue()
    assert not [file for file in (tmp_path / "store").rglob("*") if file.is_file() and claims in str(file.read_bytes())]


@pytest.mark.parametrize(
    "body", [{"text": TEXT}, {"text": TEXT, "format": TEXT}, {"text": [TEXT]}, {"text": "x", "voice": TEXT}]
)
async def test_requests(written: io.StringIO, body: dict[str, Any]) -> None:
    async with running(log_sample_percent=100.0) as server:
        await post(server, orjson.dumps(body))
        await post(server, orjson.dumps(body), path="/nothing?" + ENGLISH)
        await post(server, orjson.dumps(body), header=f"Authorization: Bearer {ENGLISH}")
    assert leaked(written) == []


async def test_sessions_that_go_well_and_those_that_break(written: io.StringIO, tmp_path: Path) -> None:
    async with running(log_sample_percent=100.0, store=f"file:{tmp_path / 'store'}") as server:
        await say(server)
        await leave(server)
    told = lines(written)
    assert [line["outcome"] for line in told if line["event"] == "session ended"] == ["closed", "stopped"]
    assert [line["why"] for line in told if line["event"] == "session detail"] == ["sample", "sample"]
    assert leaked(written) == []


@pytest.mark.parametrize("fault", ["step", "prepare", "reading", "session"])
async def test_whatever_fails_with_the_text_in_its_message(
    written: io.StringIO, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    def fail(*arguments: Any, **_: Any) -> Any:
        try:
            raise KeyError(TEXT)
        except KeyError as error:
            raise RuntimeError(f"cannot say {TEXT!r} of {arguments!r}") from error

    async with running() as server:
        if fault in ("step", "prepare"):
            monkeypatch.setattr(ToneEngine, fault, fail)
        elif fault == "reading":
            monkeypatch.setattr("server.cluster.segment.normalise", fail)
        else:
            monkeypatch.setattr("server.session.utterance.Utterance.next_work", fail)
        await (say_until_closed if fault == "session" else say)(server)
        await post(server, orjson.dumps({"text": TEXT}))
    told = lines(written)
    if fault == "session":
        failed = [line for line in told if line["event"] == "session failed"]
        assert len(failed) == 2
        assert all("RuntimeError" in line["exception"] and "KeyError" in line["exception"] for line in failed)
        assert [line["why"] for line in told if line["event"] == "session detail"] == ["failed"] * 2
    else:  # what an engine does wrong ends no session
        failed = [line for line in told if line["event"] == "a segment failed"]
        assert len(failed) >= 2
        assert all(line["where"].endswith(" fail") for line in failed)
        assert [line["why"] for line in told if line["event"] == "session detail"] == ["degraded"] * 2
    assert leaked(written) == []


async def test_a_fault_in_a_handler_and_on_the_loop(written: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"cannot say {TEXT!r}")

    async with running() as server:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log_loop_fault)
        monkeypatch.setattr("server.gateway.speak.parse", fail)
        await post(server, orjson.dumps({"text": TEXT}))
        loop.call_soon(fail, TEXT)
        task = asyncio.ensure_future(asyncio.to_thread(fail))
        await asyncio.wait((task,))
        del task
        monkeypatch.setattr("server.gateway.websocket.decode_client", fail)
        await send_raw(server, TEXT)
    events = [line["event"] for line in lines(written)]
    assert events.count("the event loop met a fault") >= 1
    assert any("ASGI" in event for event in events)
    assert leaked(written) == []


async def test_the_log_level_debug_tells_what_was_wrong(written: io.StringIO) -> None:
    configure_logs("json", "debug", written)
    async with running() as server:
        await send_raw(server, WRONG["type"])
    assert any(MARK in str(line.get("message")) for line in lines(written))


@contextmanager
def captured() -> Iterator[list[Any]]:
    with structlog.testing.capture_logs() as logs:
        yield logs


async def test_a_flood_of_mistakes_gets_few_lines_and_their_number() -> None:
    with captured() as logs:
        async with running() as server:
            for _ in range(60):
                await send_raw(server, WRONG["no JSON"])
            assert 'errors_total{code="bad_json"} 60.0' in server.metrics.render().decode()
    kept = [line for line in logs if line["event"] == "client error"]
    (left_out,) = [line for line in logs if line["event"] == "lines left out"]
    assert line_limit.BURST <= len(kept) < line_limit.BURST + 20
    assert left_out["kind"] == "bad_json"
    assert len(kept) + left_out["count"] == 60
    assert not [line for line in logs if line["event"] == "session ended"]


async def test_sessions_that_say_nothing_get_few_lines_and_those_that_speak_all() -> None:
    with captured() as logs:
        async with running() as server:
            for _ in range(40):
                async with bare_client(url_of(server), open=c.Open()):
                    pass
            for _ in range(25):
                await say(server, "好。")
    ended = [line for line in logs if line["event"] == "session ended"]
    assert len([line for line in ended if line["characters"]]) == 25
    assert len([line for line in ended if not line["characters"]]) < 40
    assert server.watch.open == set()
