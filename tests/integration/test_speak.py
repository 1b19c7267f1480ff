"""`POST /v1/speak` against a real server."""

import asyncio
import io
import wave
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog.testing
from starlette.requests import Request
from starlette.types import Message

from protocol import client_messages as c
from protocol import server_messages as s
from server.app import Server
from server.gateway.auth import hash_key
from server.gateway.speak import speak_routes
from tests.support.pools import GivingUp
from tests.support.raw_http import ask, get
from tests.support.server import bare_client, running, url_of

TEXT = "你好，世界。Hello there, this is a test."


def post(server: Server, body: bytes | dict[str, Any], headers: dict[str, str] | None = None) -> tuple[int, str, bytes]:
    """Status, content type and body of the answer."""
    assert server.listener is not None
    connection = HTTPConnection("127.0.0.1", server.listener.port, timeout=10)
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    try:
        connection.request("POST", "/v1/speak", data, {"Content-Type": "application/json", **(headers or {})})
        response: HTTPResponse = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    return response.status, response.headers.get("Content-Type", ""), content


async def speak(server: Server, body: bytes | dict[str, Any], **options: Any) -> tuple[int, str, bytes]:
    return await asyncio.to_thread(post, server, body, **options)


async def test_wav_holds_what_the_websocket_says() -> None:
    async with running() as server:
        async with bare_client(url_of(server), open=c.Open()) as client:
            await client.say(1, TEXT)
            await client.until(s.Done)
            pcm = client.pcm(1)
        status, kind, body = await speak(server, {"text": TEXT})
    assert (status, kind) == (200, "audio/wav")
    assert body.count(b"RIFF") == 1
    assert body[44:] == pcm
    with wave.open(io.BytesIO(body)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)


async def test_pcm_and_ogg() -> None:
    async with running() as server:
        _, _, wav = await speak(server, {"text": TEXT})
        status, kind, pcm = await speak(server, {"text": TEXT, "format": "pcm"})
        assert (status, kind, pcm) == (200, "audio/pcm", wav[44:])
        status, kind, ogg = await speak(server, {"text": TEXT, "format": "opus"})
        assert (status, kind) == (200, "audio/ogg")
        assert ogg.startswith(b"OggS")
        last = ogg.rindex(b"OggS")
        granule = int.from_bytes(ogg[last + 6 : last + 14], "little")
        assert ogg[last + 5] & 4  # end of stream
        head = ogg.index(b"OpusHead")
        pre_skip = int.from_bytes(ogg[head + 10 : head + 12], "little")
        assert granule - pre_skip == len(pcm) // 2 * 2  # 48 kHz counts two for each of ours


@pytest.mark.parametrize("text", ["", "   ", "……", "🎉"])
@pytest.mark.parametrize("format_", ["wav", "pcm", "opus"])
async def test_text_that_says_nothing_is_an_empty_valid_file(text: str, format_: str) -> None:
    async with running() as server:
        status, _, body = await speak(server, {"text": text, "format": format_})
    assert status == 200
    if format_ == "wav":
        assert len(body) == 44
    elif format_ == "opus":
        assert body.startswith(b"OggS")
    else:
        assert body == b""


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", None),
        (b"[]", None),
        ({}, "text"),
        ({"text": 5}, "text"),
        (b'{"text":"a","voice":' + b"[" * 300 + b"]" * 300 + b"}", None),
        ({"text": "a" * 100_001}, "text"),
        ({"text": "a", "format": "mp3"}, "format"),
        ({"text": "a", "voice": "x"}, "voice"),
        ({"text": "a", "speed": "fast"}, "speed"),
        ({"text": "a", "sample_rate": 11_025}, "sample_rate"),
        ({"text": "a", "instruct": "whisper"}, "instruct"),  # which `tone` does not follow
        ({"text": "a", "instruct": 5}, "instruct"),
        ({"text": "a", "instruct": "x" * 2_001}, "instruct"),
        ({"text": "a", "seed": -1}, "seed"),
        ({"text": "a", "seed": 2**32}, "seed"),
        ({"text": "a", "seed": "7"}, "seed"),
        (b'{"text":"a","seed":' + b"[" * 300 + b"]" * 300 + b"}", None),
    ],
)
async def test_bad_requests_name_the_field(body: Any, field: str | None) -> None:
    async with running() as server:
        status, kind, content = await speak(server, body)
    assert (status, kind) == (400, "application/json")
    error = orjson.loads(content)["error"]
    assert error["field"] == field
    assert error["message"]
    assert "start." not in error["message"]
    assert "open." not in error["message"]


async def test_a_seed_is_that_of_a_session() -> None:
    async with running() as server:
        async with bare_client(url_of(server), open=c.Open()) as client:
            await client.numbered(c.Start, utterance=1, seed=7)
            await client.numbered(c.Text, text=TEXT)
            await client.numbered(c.End)
            await client.until(s.Done)
            pcm = client.pcm(1)
        each = [await speak(server, {"text": TEXT, "format": "pcm", "seed": seed, "instruct": ""}) for seed in (7, 8)]
    assert each[0][2] == pcm
    assert each[1][2] != pcm


async def test_an_engine_that_fails_at_once_is_a_500() -> None:
    async with running() as server:
        GivingUp(server.pool, "坏", 0)
        status, kind, content = await speak(server, {"text": "坏的。"})
        assert (status, kind) == (500, "application/json")
        assert "on purpose" in orjson.loads(content)["error"]["message"]
        assert server.sessions.taken == 0


async def test_an_engine_that_fails_half_way_breaks_the_body_off() -> None:
    async with running() as server:
        GivingUp(server.pool, "坏", 1)
        with pytest.raises(IncompleteRead):
            await speak(server, {"text": "你好，世界。坏的坏的坏的坏的。"})


@pytest.mark.parametrize("action", ["fail", "crash", "oom", "nan", "silent", "repeat"])
async def test_what_the_engine_fails_at_does_not_break_the_body_off(action: str) -> None:
    text = "你好，世界。坏的坏的坏的坏的。再见。"
    async with running() as server:
        undisturbed = (await speak(server, {"text": text, "format": "pcm"}))[2]
    script = [{"match": "坏", "at": 0 if action == "silent" else 1, "action": action}]
    async with running(engine_options={"script": script}) as server:
        status, _, pcm = await speak(server, {"text": text, "format": "pcm"})
        assert server.sessions.taken == 0
    assert status == 200
    begin, end = 2 * 24_000 // 2, 2 * 24_000 // 10  # what is said before and after
    assert pcm[:begin] == undisturbed[:begin]
    assert pcm[-end:] == undisturbed[-end:]
    assert len(pcm) > len(undisturbed)


async def ask_http_1_0(server: Server, text: str) -> bytes:
    """The whole answer, its head included."""
    assert server.listener is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", server.listener.port)
    body = orjson.dumps({"text": text, "format": "pcm"})
    writer.write(b"POST /v1/speak HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    try:
        return await reader.read()
    finally:
        writer.close()


async def test_http_1_0_has_no_chunks_and_a_body_that_breaks_off_does_not_look_whole() -> None:
    async with running() as server:
        GivingUp(server.pool, "坏", 1)
        head, _, pcm = (await ask_http_1_0(server, "你好，世界。")).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert pcm == (await speak(server, {"text": "你好，世界。", "format": "pcm"}))[2]
        with pytest.raises(ConnectionResetError):
            await ask_http_1_0(server, "你好，世界。坏的坏的坏的坏的。")


async def test_readers_who_leave_stop_the_engine() -> None:
    """Twenty requests dropped after a little audio; a short one is as quick as before."""
    async with running(engine_options={"step_delay_ms": 2}) as server:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await speak(server, {"text": "你好。"})
        alone = loop.time() - start
        assert server.listener is not None
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.listener.port)
            body = orjson.dumps({"text": "山高水远天蓝云白。" * 555})
            writer.write(b"POST /v1/speak HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await reader.readexactly(1_024)
            writer.transport.abort()
        async with asyncio.timeout(5):
            while server.sessions.taken:
                await asyncio.sleep(0.02)
        start = loop.time()
        await speak(server, {"text": "你好。"})
        assert loop.time() - start < 2 * alone + 0.2


async def start_and_leave(server: Server, text: str) -> None:
    """Send a request, and close the connection before there is an answer."""
    assert server.listener is not None
    _, writer = await asyncio.open_connection("127.0.0.1", server.listener.port)
    body = orjson.dumps({"text": text})
    writer.write(b"POST /v1/speak HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    async with asyncio.timeout(5):
        while not server.sessions.taken:
            await asyncio.sleep(0.01)
    writer.close()


async def test_who_leaves_before_the_first_sound_is_noticed_at_once() -> None:
    script = [{"match": "慢", "at": 0, "action": "stall", "ms": 2_000}]
    async with running(engine_options={"script": script}) as server:
        with structlog.testing.capture_logs() as logs:
            await start_and_leave(server, "慢慢。")
            async with asyncio.timeout(1):
                while server.sessions.taken:
                    await asyncio.sleep(0.01)
        assert [line["outcome"] for line in logs if line["event"] == "session ended"] == ["left"]


async def test_who_is_cancelled_before_the_first_step_gives_the_place_back() -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": orjson.dumps({"text": TEXT})}

    async with running() as server:
        (route,) = speak_routes(server)
        others = asyncio.all_tasks()
        answering = asyncio.create_task(route.endpoint(Request({"type": "http", "headers": []}, receive)))
        await asyncio.sleep(0)
        assert server.sessions.taken == 1
        for task in asyncio.all_tasks() - others:  # all at once, as where an event loop is closed
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        assert (server.sessions.taken, server.doorkeeper.speaking) == (0, 0)


async def test_a_request_is_a_session_in_logs_and_metrics(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"ann {hash_key('secret')}\n")
    async with running(keys=keys) as server:
        with structlog.testing.capture_logs() as logs:
            _, _, body = await speak(server, {"text": TEXT}, headers={"Authorization": "Bearer secret"})
        metrics = server.metrics.render().decode()
    (line,) = [line for line in logs if line["event"] == "session ended"]
    seconds = (len(body) - 44) / 2 / 24_000
    assert (line["principal"], line["outcome"], line["transport"]) == ("ann", "closed", "http")
    assert (line["characters"], line["utterances"], line["audio_s"]) == (len(TEXT), 1, round(seconds, 2))
    assert line["first_audio_ms"] > 0
    assert 'cosystream_sessions_total{outcome="closed"} 1.0' in metrics
    assert f"cosystream_characters_total {len(TEXT)}.0" in metrics
    assert 'cosystream_first_audio_seconds_count{engine="tone",mode="stream"} 1.0' in metrics
    assert "cosystream_audio_seconds_total 0.0" not in metrics
    assert "cosystream_sessions_open 0.0" in metrics


async def test_errors_are_counted_and_faults_of_our_own_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("a fault of our own")

    async with running() as server:
        assert (await speak(server, b"{"))[0] == 400
        monkeypatch.setattr("server.session.utterance.Utterance.next_work", broken)
        with structlog.testing.capture_logs() as logs:
            status, _, content = await speak(server, {"text": "你好。"})
        metrics = server.metrics.render().decode()
    assert (status, orjson.loads(content)["error"]["code"]) == (500, "internal")
    assert b"fault" not in content
    assert [line["code"] for line in logs if line["log_level"] == "error"] == ["internal"]
    for code in ("bad_json", "internal"):
        assert f'cosystream_errors_total{{code="{code}"}} 1.0' in metrics


async def test_a_stopping_server_finishes_what_it_speaks() -> None:
    async with running(engine_options={"step_delay_ms": 100}, drain_timeout_s=20) as server:
        speaking = asyncio.ensure_future(speak(server, {"text": "你好，世界。" * 5}))
        async with asyncio.timeout(5):
            while not server.sessions.taken:
                await asyncio.sleep(0.01)
        loop = asyncio.get_running_loop()
        start = loop.time()
        await server.stop()
        assert 1.5 < loop.time() - start < 15
        status, _, body = await speaking  # IncompleteRead where it was cut off
    assert status == 200
    assert len(body) > 3 * 48_000


async def test_pages_from_elsewhere_are_refused_and_allowed_ones_may_read_the_answer() -> None:
    async def ask_from(server: Server, origin: str, **headers: str) -> tuple[int, str, bytes]:
        return await speak(
            server, {"text": "你好。"}, headers={"Origin": origin, "Content-Type": "text/plain", **headers}
        )

    async with running() as server:
        status, kind, content = await ask_from(server, "https://evil.example")
        assert (status, kind, orjson.loads(content)["error"]["code"]) == (403, "application/json", "forbidden")
        assert (await ask_from(server, "http://evil.example", Host="evil.example"))[0] == 403
        assert server.listener is not None
        own = f"127.0.0.1:{server.listener.port}"
        assert (await ask_from(server, f"http://{own}"))[0] == 200
        assert b'cosystream_http_requests_total{method="POST",route="/v1/speak",status="403"} 2.0' in (
            server.metrics.render()
        )
    async with running(allow_origins="https://good.example") as server:
        assert (await ask_from(server, "https://evil.example"))[0] == 403
        assert (await ask_from(server, "https://good.example"))[0] == 200
        assert server.listener is not None
        asked = get("/v1/speak", "Origin: https://good.example", "Access-Control-Request-Method: POST",
                    "Access-Control-Request-Headers: authorization", method="OPTIONS")  # fmt: skip
        answer = await ask(server.listener.port, asked, "OPTIONS")
        assert answer.headers["access-control-allow-origin"] == "https://good.example"


async def test_too_many_sessions_is_a_503() -> None:
    async with running(max_sessions=1) as server, bare_client(url_of(server), open=c.Open()):
        status, _, _ = await speak(server, {"text": "你好。"})
        assert status == 503
