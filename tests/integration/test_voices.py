"""`/v1/voices` against a real server: who may learn, use, see and delete a voice, and what is refused."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import orjson
import pytest

from protocol import client_messages as c
from protocol import server_messages as s
from protocol.errors import ErrorCode
from server.app import Server
from server.cluster import EnginePool
from server.cluster.cached import CachedPool
from server.engines.tone import ToneEngine
from server.gateway.auth import hash_key
from server.gateway.http_connection import MAX_UPLOAD_BYTES
from tests.support.raw_http import ask, connect, get, parse_answers, read_all, talk
from tests.support.server import bare_client, running, url_of
from tests.support.voices import BOUNDARY, CONSENT, form, strongest_hz, voice_fields, wav

FORM = f"multipart/form-data; boundary={BOUNDARY}"
GIVEN: dict[str, str | bytes] = {"audio": wav(300), "text": "你好", "name": "Me", **CONSENT}


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def error(self) -> tuple[int, str, str | None]:
        """Status, code and field."""
        found = self.json["error"]
        return self.status, found["code"], found["field"]


class Caller:
    """Somebody who uses the server's HTTP side."""

    def __init__(self, server: Server, key: str = "") -> None:
        assert server.listener is not None
        self._port = server.listener.port
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request(method, path, body, {**self._headers, **headers})
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    async def ask(self, method: str, path: str = "", body: bytes | None = None, kind: str = FORM) -> Answer:
        headers = {} if body is None else {"Content-Type": kind}
        return await asyncio.to_thread(self._ask, method, f"/v1/voices{path}", body, headers)

    async def add(self, **fields: str | bytes | None) -> Answer:
        """`GIVEN` with other fields; None leaves one out."""
        given = {name: value for name, value in {**GIVEN, **fields}.items() if value is not None}
        return await self.ask("POST", body=form(given))

    async def added(self, **fields: str | bytes | None) -> str:
        answer = await self.add(**fields)
        assert answer.status == 201, answer.body
        return str(answer.json["id"])

    async def ids(self) -> list[str]:
        return [voice["id"] for voice in (await self.ask("GET")).json["voices"]]

    async def speak(self, voice: str) -> Answer:
        body = orjson.dumps({"text": "你，", "voice": voice, "format": "pcm"})
        return await asyncio.to_thread(self._ask, "POST", "/v1/speak", body, {})


@asynccontextmanager
async def cloning(tmp_path: Path, **settings: Any) -> AsyncIterator[Server]:
    given = {"engine_options": {"cloning": True}, "voices": str(tmp_path / "voices"), **settings}
    async with running(**given) as server:
        yield server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with cloning(tmp_path) as server:
        yield server


async def until(done: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0.005)


async def test_a_voice_is_learnt_listed_spoken_with_and_deleted(server: Server) -> None:
    caller = Caller(server)
    answer = await caller.add()
    voice = answer.json["id"]
    assert (answer.status, answer.headers["location"]) == (201, f"/v1/voices/{voice}")
    shown = (await caller.ask("GET", f"/{voice}")).json
    assert shown == answer.json
    assert (shown["name"], shown["text"], shown["consent"], shown["own"]) == ("Me", "你好", True, True)
    listed = (await caller.ask("GET")).json
    assert [each["id"] for each in listed["voices"]] == ["tone-low", "tone-high", voice]
    assert listed["voices"][2] == shown
    assert (await caller.ask("GET", "/tone-low")).json == listed["voices"][0]
    own, low = [strongest_hz((await caller.speak(each)).body) for each in (voice, "tone-low")]
    assert own / low == pytest.approx(300 / 220, rel=0.02)
    answer = await caller.ask("DELETE", f"/{voice}")
    assert (answer.status, answer.body) == (204, b"")
    assert await caller.ids() == ["tone-low", "tone-high"]
    assert (await caller.ask("GET", f"/{voice}")).error == (404, "unknown_voice", "voice")
    assert (await caller.ask("DELETE", f"/{voice}")).error == (404, "unknown_voice", "voice")
    assert (await caller.speak(voice)).error == (400, "unknown_voice", "voice")


async def test_for_others_it_does_not_exist(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{name} {hash_key(name)}\n" for name in ("ann", "bob")))
    async with cloning(tmp_path, keys=keys) as server:
        ann, bob, nobody = Caller(server, "ann"), Caller(server, "bob"), Caller(server)
        voice = await ann.added()
        assert voice in await ann.ids()
        assert voice not in await bob.ids()
        for method in ("GET", "DELETE"):
            assert (await bob.ask(method, f"/{voice}")).error == (404, "unknown_voice", "voice")
        assert (await bob.speak(voice)).error == (400, "unknown_voice", "voice")
        async with bare_client(url_of(server), additional_headers={"Authorization": "Bearer bob"}) as client:
            await client.send(c.Open(voice=voice))
            assert (await client.until(s.Error)).code == ErrorCode.UNKNOWN_VOICE
        for method, path in (("GET", ""), ("POST", ""), ("GET", f"/{voice}"), ("DELETE", f"/{voice}")):
            assert (await nobody.ask(method, path)).error == (401, "unauthorized", None)
        assert (await ann.speak(voice)).status == 200


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"consent": None}, (400, "bad_request", "consent"), "consent must be true: who speaks"),
        ({"consent": "no"}, (400, "bad_request", "consent"), "consent must be true"),
        ({"consent": b"\xff"}, (400, "bad_request", "consent"), "consent must be UTF-8"),
        ({"audio": None}, (400, "bad_request", "audio"), "audio is missing"),
        ({"audio": b""}, (400, "bad_request", "audio"), "audio is missing"),
        ({"text": "x" * 1_001}, (400, "bad_request", "text"), "text must be at most 1000 printable"),
        ({"name": "a\x00b"}, (400, "bad_request", "name"), "name must be at most 64 printable"),
        ({"nmae": "x"}, (400, "bad_request", "nmae"), "'nmae' is not one of audio, text, name, consent"),
        ({"audio": b"no sound"}, (422, "bad_value", "audio"), "the recording is no WAV file"),
        ({"audio": wav(seconds=2)}, (422, "bad_value", "audio"), "must be 3 to 30 s long, not 2.0 s"),
        ({"audio": wav(seconds=31, rate=8_000)}, (422, "bad_value", "audio"), "must be 3 to 30 s long"),
        ({"audio": wav(level=0)}, (422, "bad_value", "audio"), "the recording is silent"),
        ({"text": "..."}, (422, "bad_value", "text"), "text has no word in it"),
    ],
)
async def test_what_is_wrong_is_told_by_its_field(
    server: Server, fields: Any, error: tuple[int, str, str], message: str
) -> None:
    answer = await Caller(server).add(**fields)
    assert answer.error == error
    assert message in answer.json["error"]["message"]
    assert not server.voices.ids()


async def test_a_body_that_is_no_form(server: Server) -> None:
    caller = Caller(server)
    assert (await caller.ask("POST", body=b"{}", kind="application/json")).error[:2] == (415, "unsupported_media_type")
    assert (await caller.ask("POST", body=b"{}")).error[:2] == (400, "bad_request")
    assert (await caller.ask("POST", body=b"", kind="multipart/form-data")).error[:2] == (400, "bad_request")


async def test_a_body_that_is_too_long(server: Server) -> None:
    """Announced or not; other paths take no more than before."""
    assert server.listener is not None
    port, kind = server.listener.port, f"Content-Type: {FORM}"
    for path, length, status in (
        ("/v1/voices", MAX_UPLOAD_BYTES + 1, 413),
        ("/v1/speak", MAX_UPLOAD_BYTES, 413),
        ("/v1/voices/x", MAX_UPLOAD_BYTES, 413),
    ):
        assert (await ask(port, get(path, kind, f"Content-Length: {length}", method="POST"))).status == status
    chunk = b"100000\r\n" + bytes(0x100000) + b"\r\n"
    head = get("/v1/voices?x=1", kind, "Transfer-Encoding: chunked", method="POST")
    (answer,) = parse_answers(await talk(port, head, *[chunk] * 17))
    assert (answer.status, answer.error["message"]) == (
        413,
        f"the request body is longer than {MAX_UPLOAD_BYTES} bytes",
    )


async def test_a_body_that_does_not_come(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.gateway.http_connection.UPLOAD_TIMEOUT_S", 0.1)
    assert server.listener is not None
    request = get("/v1/voices", f"Content-Type: {FORM}", "Content-Length: 1000", method="POST")
    assert (await ask(server.listener.port, request + b"--")).status == 408
    assert (await Caller(server).add()).status == 201  # its place is free again


async def test_only_so_many_uploads_at_once(server: Server) -> None:
    assert server.listener is not None
    request = get("/v1/voices", f"Content-Type: {FORM}", "Content-Length: 1000", method="POST")
    async with connect(server.listener.port) as (_, one), connect(server.listener.port) as (_, other):
        one.write(request)
        other.write(request)
        caller = Caller(server)
        async with asyncio.timeout(10):
            while (answer := await caller.add()).status == 201:
                await asyncio.sleep(0.01)
        assert answer.error[:2] == (503, "unavailable")
        assert int(answer.headers["retry-after"]) >= 1
    async with asyncio.timeout(10):  # both have left
        while (await caller.add()).status != 201:
            await asyncio.sleep(0.01)


async def test_who_leaves_before_the_end_leaves_no_voice(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    let, begun, learn = threading.Event(), threading.Event(), ToneEngine.make_voice

    def slowly(engine: ToneEngine, recording: bytes, text: str) -> bytes:
        begun.set()
        let.wait(10)
        return learn(engine, recording, text)

    monkeypatch.setattr(ToneEngine, "make_voice", slowly)
    assert server.listener is not None
    async with connect(server.listener.port) as (_, writer):
        writer.write(get("/v1/voices", f"Content-Type: {FORM}", method="POST", body=form(GIVEN)))
        await until(begun.is_set)
    await asyncio.sleep(0.05)
    let.set()
    caller = Caller(server)
    assert await caller.added(name="after") in await caller.ids()  # learnt behind it
    assert len(server.voices.ids()) == 1


async def test_two_at_once_are_two_voices(server: Server) -> None:
    caller = Caller(server)
    first, second = await asyncio.gather(caller.added(audio=wav(300)), caller.added(audio=wav(400)))
    low = strongest_hz((await caller.speak("tone-low")).body) / 220
    assert [round(strongest_hz((await caller.speak(each)).body) / low, -1) for each in (first, second)] == [300, 400]


async def test_a_principal_has_only_so_many(tmp_path: Path) -> None:
    async with cloning(tmp_path, voices_per_principal=1) as server:
        caller = Caller(server)
        voice = await caller.added()
        answer = await caller.add()
        assert answer.error[:2] == (409, "too_many_voices")
        await caller.ask("DELETE", f"/{voice}")
        assert (await caller.add()).status == 201


async def test_a_full_disk_is_told_and_the_path_is_not(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", full)
    answer = await Caller(server).add()
    assert answer.error[:2] == (507, "no_room")
    assert b"/voices" not in answer.body
    monkeypatch.undo()
    assert (await Caller(server).add()).status == 201


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine_options": {}}, "the engine tone cannot learn voices"),
        ({"voices": "off"}, "this server keeps no voices"),
    ],
)
async def test_a_server_that_cannot_learn_says_so(tmp_path: Path, settings: Any, message: str) -> None:
    async with cloning(tmp_path, **settings) as server:
        caller = Caller(server)
        answer = await caller.add()
        assert answer.error[:2] == (501, "unsupported")
        assert message in answer.json["error"]["message"]
        assert await caller.ids() == ["tone-low", "tone-high"]
        assert (await caller.ask("DELETE", "/tone-low")).error == (403, "forbidden", "voice")


async def test_an_engine_that_fails_tells_its_log_alone(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> bytes:
        raise RuntimeError("secret cause")

    monkeypatch.setattr(ToneEngine, "make_voice", fails)
    answer = await Caller(server).add()
    assert answer.error[:2] == (500, "engine_failed")
    assert b"secret" not in answer.body


async def test_voices_of_another_kind_of_engine_are_not_offered(server: Server) -> None:
    other = server.voices.add(**voice_fields(owner="anonymous", kind="another"))
    caller = Caller(server)
    assert other.id not in await caller.ids()
    assert (await caller.ask("GET", f"/{other.id}")).status == 404
    assert (await caller.speak(other.id)).error[1] == "unknown_voice"
    assert (await caller.ask("DELETE", f"/{other.id}")).status == 204  # it can be deleted all the same


async def test_a_session_whose_voice_is_deleted_ends_at_its_next_segment(tmp_path: Path) -> None:
    async with cloning(tmp_path, engine_options={"cloning": True, "step_delay_ms": 20}) as server:
        caller = Caller(server)
        voice = await caller.added()
        async with bare_client(url_of(server), open=c.Open(voice=voice, max_lead_ms=1_000)) as client:
            await client.say(1, "今天天气很好，我们去公园散步。" * 10)
            await client.until(s.SegmentBegin)
            await caller.ask("DELETE", f"/{voice}")
            error = await client.until(s.Error)
        assert (error.code, error.message) == (ErrorCode.UNKNOWN_VOICE, f"the voice {voice} was deleted")
        assert not error.retryable


async def test_what_another_process_deletes_is_forgotten_here(tmp_path: Path) -> None:
    async with cloning(tmp_path, audio_cache_mb=1) as server:
        caller = Caller(server)
        voice = await caller.added()
        await caller.speak(voice)
        pool: EnginePool | None = server.pool
        assert isinstance(pool, CachedPool)
        assert pool.cache.size.entries == 1
        (tmp_path / "voices" / f"{voice}.safetensors").unlink()
        assert (await caller.speak(voice)).error[1] == "unknown_voice"  # at once
        await until(lambda: pool.cache.size.entries == 0)  # soon


async def test_pages_of_other_sites_can_neither_add_nor_delete(server: Server) -> None:
    assert server.listener is not None
    for method, path in (("POST", "/v1/voices"), ("DELETE", "/v1/voices/own-0123456789abcdef")):
        answer = await ask(server.listener.port, get(path, "Origin: https://evil.example", method=method), method)
        assert answer.status == 403


async def test_the_first_answer_does_not_wait_for_the_body(server: Server) -> None:
    """A client that asks first (`Expect`), as curl does with long bodies, is told to go on."""
    assert server.listener is not None
    async with connect(server.listener.port) as (reader, writer):
        body = form(GIVEN)
        head = [f"Content-Type: {FORM}", f"Content-Length: {len(body)}", "Expect: 100-continue"]
        writer.write(get("/v1/voices", *head, method="POST"))
        async with asyncio.timeout(5):
            assert (await reader.readline()).startswith(b"HTTP/1.1 100 ")
        writer.write(body)
        assert b"HTTP/1.1 201 " in await read_all(reader)
