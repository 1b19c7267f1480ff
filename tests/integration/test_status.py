"""The status page, what it asks for, and what neither may show."""

import asyncio
import base64
import hashlib
import re
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import orjson
import pytest

from protocol import client_messages as c
from protocol import server_messages as s
from server.app import Server
from server.gateway.auth import hash_key
from server.gateway.summary import short_id
from tests.support.gateways import gateways
from tests.support.processes import get as get_url
from tests.support.raw_http import Answer, ask, get
from tests.support.server import BareClient, bare_client, running, url_of

SECRET = "山高水远天蓝云白，"


async def fetch(server: Server, path: str) -> Answer:
    assert server.listener is not None
    return await ask(server.listener.port, get(path))


async def status(server: Server) -> dict[str, Any]:
    answer = await fetch(server, "/status.json")
    assert answer.status == 200
    return orjson.loads(answer.body)  # type: ignore[no-any-return]


def opened(client: BareClient) -> s.Opened:
    return next(message for message in client.messages if isinstance(message, s.Opened))


def opened_client(server: Server) -> AbstractAsyncContextManager[BareClient]:
    return bare_client(url_of(server), open=c.Open())


async def test_the_page_is_one_file_that_its_policy_lets_run() -> None:
    async with running() as server:
        answer = await fetch(server, "/status")
    page = answer.body.decode()
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for kind in ("script", "style"):
        (content,) = re.findall(f"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert not re.findall(r"""\s(?:style|on\w+)=["']""", page), "the policy forbids these in attributes"
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page), "it asks nobody else"
    assert "innerHTML" not in page
    assert re.search(r'<html lang="en">', page)


async def test_what_is_asked_for_is_what_is_told() -> None:
    """Names in the script that the answer lacks would show as `undefined` or NaN."""
    async with running() as server:
        page = (await fetch(server, "/status")).body.decode()
        async with bare_client(url_of(server), open=c.Open()):
            told = await status(server)
    for prefix, fields in (("load", told["load"]), ("each", {**told["sessions"][0], **told["processes"][0]}),
                           ("server", told["server"])):  # fmt: skip
        asked = set(re.findall(rf"\b{prefix}\.(\w+)", page)) - {"value", "units"}
        missing = asked - set(fields) - {"p50_ms", "p95_ms", "ago_s", "count"}
        assert not missing, (prefix, missing)
    assert set(re.findall(r'\["(\w+)", "[\w ]+"\]', page.split("const TOTALS")[1].split(";")[0])) == set(told["totals"])


async def test_a_session_that_speaks_is_shown() -> None:
    async with running(engine_options={"step_delay_ms": 5}) as server:
        async with (
            bare_client(url_of(server), open=c.Open()) as idle,
            bare_client(url_of(server), open=c.Open(mode="stream")) as client,
        ):
            await client.say(1, SECRET * 30)
            for _ in range(3):
                await client.until(s.Timing)
            await client.send(c.Ack(1, 1, client.frames[-1].end_sample, 2_400, buffered_ms=740, stalls=2))
            async with asyncio.timeout(5):
                while not (told := await status(server))["totals"]["underruns"]:
                    await asyncio.sleep(0.1)
            client.socket.transport.abort()
    speaks, waits = told["sessions"]
    assert speaks["id"] == short_id(opened(client).session)
    assert (speaks["state"], speaks["mode"], speaks["underruns"], speaks["buffer_ms"]) == ("speaking", "stream", 2, 740)
    assert speaks["first_audio_ms"] > 0
    assert speaks["lead_ms"] > 0
    assert (waits["id"], waits["state"], waits["first_audio_ms"]) == (short_id(opened(idle).session), "idle", None)
    load = told["load"]
    assert (load["sessions"], load["speaking"], load["away"], load["workers"]) == (2, 1, 0, 1)
    assert load["step_ms"] >= 5
    assert load["capacity"] > 1
    assert [point["count"] for point in told["first_audio"]["points"]] == [1]
    (process,) = told["processes"]
    assert process["memory_mb"] > 10
    assert told["server"]["ready"] is True


async def test_a_lost_connection_and_one_that_waits_are_shown() -> None:
    script = [{"match": "慢", "at": 0, "action": "stall", "ms": 1_500}]
    async with running(engine_options={"script": script}) as server:
        async with (
            bare_client(url_of(server), open=c.Open()) as client,
            bare_client(url_of(server), open=c.Open()) as gone,
        ):
            gone.socket.transport.abort()
            await client.say(1, "慢慢。")
            await asyncio.sleep(0.3)
            told = await status(server)
    assert [each["state"] for each in told["sessions"]] == ["waiting", "away"]
    assert told["sessions"][0]["first_audio_ms"] >= 200
    assert (told["load"]["away"], told["load"]["speaking"]) == (1, 1)


async def test_it_needs_no_key_and_shows_no_secret(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"bartholomew {hash_key('secret-key')}\n")
    async with running(keys=keys) as server:
        async with bare_client(url_of(server), open=c.Open(api_key="secret-key")) as client:
            await client.say(1, SECRET * 3)
            await client.until(s.Timing)
            bodies = (await fetch(server, "/status.json")).body + (await fetch(server, "/status")).body
            client.socket.transport.abort()
        session, token = opened(client).session, opened(client).token
    assert short_id(session).encode() in bodies
    for secret in ("bartholomew", "secret-key", session, token, session[7:], token[:8], SECRET[:4]):
        assert secret not in bodies.decode()
        assert orjson.dumps(secret).decode().strip('"') not in bodies.decode()


async def test_many_questions_cost_what_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as server:
        made = 0
        make = server._report._make

        async def counted() -> Any:
            nonlocal made
            made += 1
            return await make()

        monkeypatch.setattr(server._report._part, "_make", counted)
        answers = await asyncio.gather(*(fetch(server, "/status.json") for _ in range(20)))
    assert {answer.status for answer in answers} == {200}
    assert made <= 3


async def test_several_gateways_are_one_server(tmp_path: Path) -> None:
    with gateways(tmp_path / "log", 2) as server:
        async with bare_client(server.url, open=c.Open()) as first, bare_client(server.url, open=c.Open()) as second:
            ids = {short_id(opened(each).session) for each in (first, second)}
            _, body = await asyncio.to_thread(get_url, f"{server.http}/status.json")
        told = orjson.loads(body)
    assert [each["name"] for each in told["processes"]] in (["g1", "g2"], ["g2", "g1"])
    assert {each["id"] for each in told["sessions"]} == ids
    assert told["load"]["sessions"] == 2
    assert opened(first).session not in body.decode()
