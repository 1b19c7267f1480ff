"""The HTTP side through the real listener: probes, metrics, voices, and errors in one shape."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from server.cluster import EnginePool
from server.engines.base import Capabilities, Voice
from server.gateway.auth import Principals, hash_key
from server.gateway.http import ApiError, build_app
from server.gateway.voices import voices_routes
from server.observe.metrics import Metrics
from server.session import Policy
from server.voices import VoiceStore
from tests.support.listening import listening
from tests.support.raw_http import Answer, ask, connect, get, talk

CAPABILITIES = Capabilities(
    name="test",
    languages=("zh", "en"),
    sample_rate=24_000,
    voices=(
        Voice("a", "Ann", ("zh", "en"), "calm", "Apache-2.0"),
        Voice("b", "Bob", ("en",), "loud", "CC-BY-NC-4.0", "non-commercial use only"),
    ),
    max_tokens=40,
    count_tokens=len,
    fingerprint="f",
    parameters=frozenset({"speed", "pitch"}),
)


@dataclass
class State:
    """A server that is ready or not."""

    not_ready_reason: str = ""
    capabilities: Capabilities | None = CAPABILITIES
    policy: Policy | None = field(default_factory=lambda: Policy(default_voice="b"))
    principals: Principals = field(default_factory=Principals)
    metrics: Metrics = field(default_factory=Metrics)
    name: str = ""
    pool: EnginePool | None = None
    voices: VoiceStore = field(default_factory=lambda: VoiceStore(None))

    async def scrape(self) -> bytes:
        return self.metrics.render()


async def fail(_: Request) -> Response:
    raise RuntimeError("secret cause")


async def refuse(_: Request) -> Response:
    raise ApiError(422, "too fast", code="bad_message", field="speed")  # type: ignore[arg-type]  # plain numbers work too


class Client:
    def __init__(self, port: int) -> None:
        self.port = port

    async def get(self, path: str, *headers: str, method: str = "GET") -> Answer:
        return await ask(self.port, get(path, *headers, method=method), method)


@asynccontextmanager
async def serving(state: State) -> AsyncIterator[Client]:
    app = build_app(state, routes=[*voices_routes(state), Route("/fail", fail), Route("/refuse", refuse)])
    async with listening(app=app) as listener:
        yield Client(listener.port)


async def test_probes() -> None:
    state = State("loading the engine", None, None)
    async with serving(state) as client:
        assert (await client.get("/healthz")).status == 200
        answer = await client.get("/readyz")
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert orjson.loads(answer.body) == {"ready": False, "reason": "loading the engine"}
        answer = await client.get("/v1/voices")
        assert (answer.status, answer.error["code"]) == (503, "unavailable")
        state.not_ready_reason, state.capabilities, state.policy = "", CAPABILITIES, Policy(default_voice="a")
        answer = await client.get("/readyz")
        assert (answer.status, orjson.loads(answer.body)) == (200, {"ready": True})
        assert (await client.get("/v1/voices")).status == 200


async def test_voices() -> None:
    async with serving(State()) as client:
        answer = await client.get("/v1/voices")
    found = orjson.loads(answer.body)
    assert (found["engine"], found["default"], [voice["id"] for voice in found["voices"]]) == ("test", "b", ["a", "b"])
    assert found["voices"][1] == {
        "id": "b",
        "name": "Bob",
        "languages": ["en"],
        "description": "loud",
        "license": "CC-BY-NC-4.0",
        "notice": "non-commercial use only",
        "sample_rate": 24_000,
        "parameters": ["pitch", "speed"],
        "default": True,
    }


async def test_keys() -> None:
    async with serving(State(principals=Principals({hash_key("k"): "ann"}))) as client:
        for headers in ((), ("Authorization: Bearer x",)):
            answer = await client.get("/v1/voices", *headers)
            assert (answer.status, answer.error["code"]) == (401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"
            assert ("does not know it" in (answer.error["message"] or "")) is bool(headers)
        for headers in ((), ("Authorization: Basic eDp5",)):
            answer = await client.get("/v1/voices", *headers)
            assert "an API key is needed" in (answer.error["message"] or "")
        assert (await client.get("/v1/voices", "Authorization: bearer k")).status == 200
        for probe in ("/healthz", "/readyz", "/metrics"):  # what asks here has no key
            assert (await client.get(probe)).status == 200


async def test_errors_have_one_shape(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(State()) as client:
        for path, method, status, code in (
            ("/nowhere", "GET", 404, "not_found"),
            ("/healthz/", "GET", 404, "not_found"),
            ("/healthz", "POST", 405, "method_not_allowed"),
            ("/v1/stream", "GET", 426, "upgrade_required"),
            ("/v1/stream", "POST", 405, "method_not_allowed"),
        ):
            answer = await client.get(path, method=method)
            assert (answer.status, answer.error["code"]) == (status, code)
            assert answer.headers["content-type"] == "application/json"
        answer = await client.get("/v1/stream")
        assert "ws://" in str(answer.error["message"])
        assert answer.headers["upgrade"] == "websocket"
        answer = await client.get("/refuse")
        assert (answer.status, answer.error) == (422, {"code": "bad_message", "message": "too fast", "field": "speed"})
        assert not caplog.records
        answer = await client.get("/fail")
        assert (answer.status, answer.error["code"]) == (500, "internal")
        assert b"secret" not in answer.body
        assert "secret cause" in caplog.text


async def test_metrics() -> None:
    async with serving(State()) as client:
        for path in ("/healthz", "/healthz", "/invented-1", "/invented-2"):
            await client.get(path)
        await talk(client.port, b"BREW / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = answer.body.decode()
    assert 'cosystream_http_requests_total{method="GET",route="/healthz",status="200"} 2.0' in text
    assert 'cosystream_http_requests_total{method="GET",route="other",status="404"} 2.0' in text
    assert "invented" not in text
    assert "BREW" not in text


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_event(caplog: pytest.LogCaptureFixture) -> None:
    async def read(request: Request) -> Response:
        return Response(await request.body())

    app = build_app(State(), routes=[Route("/read", read, methods=["POST"])])
    async with listening(app=app) as listener:
        async with connect(listener.port) as (reader, writer):
            writer.write(get("/read", "Content-Length: 10", "Expect: 100-continue", method="POST"))
            await reader.readuntil(b"\r\n\r\n")
        assert (await ask(listener.port, get("/healthz"))).status == 200
    assert not caplog.records
