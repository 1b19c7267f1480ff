"""Several gateways on one port: clients come back to any of them, and gateways die, freeze and stop."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from protocol import TOKEN_SUBPROTOCOL
from protocol import client_messages as c
from protocol import server_messages as s
from server.gateway.auth import add_key
from server.gateways import supervisor
from server.gateways.control import ALIVE_S
from server.settings import Settings
from tests.support.faults import prove, speak
from tests.support.gateways import Gateways, Patient, alive, gateways, owner
from tests.support.processes import ROOT, get
from tests.support.raw_http import ask
from tests.support.raw_http import get as raw_get
from tests.support.resumer import Resumer

TEXT = "山高水远，天蓝云白，风轻日暖。 A gateway goes down, and the sentence goes on. " * 2
SLOW = ("--engine-option", "step_delay_ms=20")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateways]:
    """Three gateways that share a store."""
    folder = tmp_path_factory.mktemp("gateways")
    with gateways(folder / "log", 3, *SLOW, "--store", f"file:{folder / 'store'}", "--resume-ttl-s", "30") as server:
        yield server


async def spoken(server: Gateways) -> bytes:
    """The samples of TEXT."""
    client = Patient(server.url)
    await client.open()
    await client.say(1, TEXT)
    await client.until(s.Done)
    await client.close()
    return bytes(client.pcm)


async def broken(server: Gateways, at: int = 20_000) -> Patient:
    """A client in mid-sentence whose connection broke."""
    client = Patient(server.url)
    await client.open()
    await client.say(1, TEXT)
    await client.until_bytes(at)
    client.abort()
    return client


async def test_sessions_are_spread(three: Gateways) -> None:
    clients = [Patient(three.url) for _ in range(9)]
    for client in clients:
        await client.open()
    spread = sorted(Counter(owner(client) for client in clients).values())
    assert spread[0] >= 2  # where all have time, [3, 3, 3]
    assert await three.metric("cosystream_sessions_open") == 9
    assert await three.metric("cosystream_gateways") == 3
    for client in clients:
        await client.close()


async def test_another_gateway_relays(three: Gateways) -> None:
    undisturbed, client = await asyncio.gather(spoken(three), broken(three))
    async with three.away_from(owner(client)):
        resumed = await client.resume()
    assert resumed.epoch == 0
    assert await three.metric("cosystream_connections_relayed") == 1
    await client.until_bytes(100_000)
    client.abort()
    assert (await client.resume()).generation == 3  # wherever this is
    await client.until(s.Done)
    assert bytes(client.pcm) == undisturbed
    await client.close()
    async with asyncio.timeout(5):
        while await three.metric("cosystream_connections_relayed"):
            await asyncio.sleep(0.05)


async def test_text_and_closes_go_through_a_relay(three: Gateways) -> None:
    client = Patient(three.url)
    await client.open()
    name = owner(client)
    await client.client.numbered(c.Start, utterance=1)
    await client.until(s.SeqAck)
    client.seq = client.client.seq
    client.abort()
    async with three.away_from(name):
        resumed = await client.resume()
        for number in range(40):  # as much as a client may send at once
            await client.client.numbered(c.Text, text=f"{number} " + "天地" * 3000)
        await client.client.numbered(c.Cancel)
        while (await client.until(s.SeqAck)).seq < resumed.seq + 41:
            pass
        await client.close()  # the owner hears that it is over
        async with asyncio.timeout(10):
            while (await client.ask()) != s.ResumeFailed("unknown"):
                await client.client.socket.close()
        await client.client.socket.close()

        wrong = Patient(three.url)
        wrong.state = client.state
        await wrong.dial()
        assert isinstance(await wrong.ask_here(), s.ResumeFailed)
        await wrong.client.socket.send('{"type": "open", "voice": 7}')
        error = await wrong.client.receive()
        assert isinstance(error, s.Error)
        with pytest.raises(ConnectionClosed) as closed:
            await wrong.client.receive()
        assert closed.value.rcvd is not None
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, error.message)


MADE_UP = ("\n", "a\r\nb", "\0", "g1-../../x", "g1-00000000." + "../" * 9, "?%2e#&=+ ", "天👋")


@pytest.mark.parametrize("made_up", MADE_UP)
async def test_an_id_that_nobody_made_is_unknown(three: Gateways, made_up: str) -> None:
    client = Resumer(three.url, state=c.Resume(made_up, "t", 0, 1, 0, 0, 0))
    assert await client.ask() == s.ResumeFailed("unknown")
    await client.client.socket.close()


async def test_a_killed_owner_is_followed_by_any_other(three: Gateways) -> None:
    undisturbed, client, other = await asyncio.gather(spoken(three), broken(three), broken(three))
    names = await three.settled(3)
    dead = owner(client)
    three.signal(dead, signal.SIGKILL)
    resumed = await client.resume()
    assert resumed.epoch == 1
    if owner(other) == dead:
        assert (await other.resume()).epoch == 1
    await other.close()
    await client.until_bytes(80_000)
    # Its session is at one of the others now, though its id names the dead one. Wherever the client comes to:
    for generation in range(3, 7):
        client.abort()
        resumed = await client.resume()
        assert (resumed.epoch, resumed.generation) == (1, generation)
    await client.until(s.Done)
    assert bytes(client.pcm) == undisturbed
    await client.close()
    again = await three.settled(len(names) + 1)
    (name,) = again.keys() - names.keys()
    assert name.partition("-")[0] == dead.partition("-")[0]
    assert name != dead


async def test_a_frozen_owner_is_asked_again_later(three: Gateways) -> None:
    undisturbed, client = await asyncio.gather(spoken(three), broken(three))
    async with three.away_from(owner(client)):
        three.signal(owner(client), signal.SIGSTOP)
        try:
            await client.dial()
            began = time.monotonic()
            await client.client.send(client.state)
            busy = await client.client.receive()
            assert isinstance(busy, s.Busy)
            assert time.monotonic() - began < 4  # 2.0 s alone
            with pytest.raises(ConnectionClosed) as closed:
                await client.client.receive()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1013
            status, text = await asyncio.to_thread(get, f"{three.http}/metrics")
            assert status == 200
            assert b"\ncosystream_gateways 2.0\n" in text
        finally:
            three.signal(owner(client), signal.SIGCONT)
        await client.resume()
    await client.until(s.Done)
    assert bytes(client.pcm) == undisturbed
    await client.close()


async def test_a_whole_client_hears_nothing_of_it(three: Gateways) -> None:
    """Owners are killed and frozen while a client speaks."""

    async def slowly() -> AsyncIterator[str]:
        for at in range(0, len(TEXT), 6):
            yield TEXT[at : at + 6]
            await asyncio.sleep(0.05)

    async def strike() -> None:
        await asyncio.sleep(0.4)
        seen = await three.settled(3)
        living = [name for name, pid in seen.items() if alive(pid)]
        for name in living[:2]:  # one of them is the owner, or becomes it
            three.signal(name, signal.SIGKILL)
            await asyncio.sleep(0.3)
        three.signal(living[2], signal.SIGSTOP)
        await asyncio.sleep(2.5)
        three.signal(living[2], signal.SIGCONT)
        await three.settled(len(seen) + 2)

    undisturbed = await speak(three.url, TEXT)
    heard, _ = await asyncio.gather(speak(three.url, slowly(), patience_s=40), strike())
    prove(heard, undisturbed)
    assert heard.line.restarts == 0


@pytest.mark.parametrize("in_header", [True, False])
async def test_keys_hold_at_the_owner_too(keyed: tuple[Gateways, str], in_header: bool) -> None:
    server, key = keyed
    client = Patient(server.url, {"additional_headers": {"Authorization": f"Bearer {key}"}} if in_header else {})
    given: dict[str, Any] = {} if in_header else {"api_key": key}
    await client.open(c.Open(**given))
    client.abort()
    async with server.away_from(owner(client)):
        if in_header:
            client.options = {"additional_headers": {"Authorization": "Bearer wrong"}}
            with pytest.raises(InvalidStatus):
                await client.dial()
            client.options = {"additional_headers": {"Authorization": f"Bearer {key}"}}
        else:
            await client.dial()
            await client.client.send(client.state)
            assert isinstance(await client.client.receive(), s.Error)
            await client.client.socket.close()
        assert await client.ask(**given, token="wrong") == s.ResumeFailed("auth")
        await client.client.socket.close()
        await client.resume(**given)
    await client.close()


async def test_a_token_is_known_to_all_gateways_and_goes_on_to_the_owner(keyed: tuple[Gateways, str]) -> None:
    server, key = keyed

    def page(token: str, origin: str) -> Patient:
        return Patient(server.url, {"origin": origin}, (TOKEN_SUBPROTOCOL + token,))

    body = orjson.dumps({"origin": "https://app.example"})
    made = await ask(
        server.port, raw_get("/v1/tokens", f"Authorization: Bearer {key}", method="POST", body=body), "POST"
    )
    token = orjson.loads(made.body)["token"]
    client = page(token, "https://app.example")
    await client.open()
    client.abort()
    async with server.away_from(owner(client)):
        await client.resume()
        assert await server.metric("cosystream_connections_relayed") == 1
        elsewhere = page(token, "https://other.example")
        await elsewhere.dial()
        told = await elsewhere.client.receive()
        assert isinstance(told, s.Error)
        assert "for pages from https://app.example" in told.message
        elsewhere.abort()
    await client.close()


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateways, str]]:
    """Two gateways, and a key that they want."""
    folder = tmp_path_factory.mktemp("keyed")
    key = add_key(folder / "keys", "ann")
    pages = ("--allow-origins", "https://app.example,https://other.example")
    with gateways(folder / "log", 2, "--keys", str(folder / "keys"), *pages) as server:
        yield server, key


async def test_without_a_store_the_client_says_the_rest(tmp_path: Path) -> None:
    with gateways(tmp_path / "log", 2, *SLOW) as server:
        client = await broken(server)
        async with server.away_from(owner(client)):
            await client.resume()
            server.signal(owner(client), signal.SIGKILL)
            with pytest.raises(ConnectionClosed):  # the relay breaks with the owner
                await client.until(s.Done)
        assert await client.ask() == s.ResumeFailed("unknown")
        await client.close()

        before = server.children()
        idle, relayed = Patient(server.url), Patient(server.url)
        await asyncio.gather(idle.open(), relayed.open())
        relayed.abort()
        async with server.away_from(owner(relayed)):
            await relayed.resume()
        took = await asyncio.to_thread(server.stop)
        await asyncio.gather(idle.close(), relayed.close())
        assert took < 8  # 0.6 s alone
        assert server.process.returncode == 0
        assert not any(alive(pid) for pid in before)


async def test_gateways_end_with_their_parent(tmp_path: Path) -> None:
    with gateways(tmp_path / "log", 2, "--workers", "1") as server:
        children = server.children()
        assert len(children) == 3
        client = Patient(server.url)
        await client.open()
        await client.say(1, "好。")
        await client.until(s.Done)
        assert await server.metric("cosystream_workers") == 1
        server.process.kill()
        async with asyncio.timeout(10):
            while any(alive(pid) for pid in children):
                await asyncio.sleep(0.05)
        await client.close()


async def test_the_port_is_free_at_once_when_the_parent_dies_though_sessions_go_on(tmp_path: Path) -> None:
    with gateways(tmp_path / "log", 2, *SLOW, "--drain-timeout-s", "6") as server:
        client = Patient(server.url)
        await client.open()
        await client.say(1, 4 * TEXT)
        await client.until_bytes(20_000)
        owning, children = server.pids()[owner(client)], server.children()
        server.process.kill()
        async with asyncio.timeout(3):  # 0.01 s alone
            while not is_free(server.port):
                await asyncio.sleep(0.05)
        assert alive(owning)
        await client.until(s.GoAway)
        await client.until_bytes(len(client.pcm) + 40_000)
        client.abort()
        async with asyncio.timeout(10):
            while any(alive(pid) for pid in children):
                await asyncio.sleep(0.05)


def is_free(port: int) -> bool:
    """Whether a server could listen there."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


async def test_a_gateway_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(supervisor, "SILENT_S", ALIVE_S + 1.5)
    stop = asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        parent = supervisor.Supervisor(Settings(engine="tone", gateways=2), [listening], tmp_path, stop)
        running = asyncio.create_task(parent.run())
        async with asyncio.timeout(30):
            await parent.ready()
            await asyncio.sleep(ALIVE_S + 2)  # both live longer than any silence is allowed
            first = parent.pids()
            os.kill(first[1], signal.SIGSTOP)
            while parent.pids().get(1) in (None, first[1]):
                await asyncio.sleep(0.05)
            assert parent.pids()[2] == first[2]
            stop.set()
            await running


async def test_what_cannot_start_says_why_and_ends() -> None:
    await asyncio.gather(
        asyncio.to_thread(cannot_start, ("--engine", "nonsense"), "nonsense"),
        asyncio.to_thread(cannot_start, ("--default-voice", "nobody"), "default_voice must be one of"),
        asyncio.to_thread(cannot_start, ("--port", "TAKEN"), "the port is in use"),
    )


def cannot_start(options: tuple[str, str], reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = (options[0], options[1].replace("TAKEN", str(taken.getsockname()[1])))
        done = subprocess.run(
            [*(sys.executable, "-m", "server", "--gateways", "2", "--engine", "tone", "--port", "0"), *options],
            cwd=ROOT,
            env={**os.environ, "COSYSTREAM_LOG_FORMAT": "json"},
            capture_output=True,
            timeout=60,
        )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert orjson.loads(line)["event"] == "the server cannot run"
    assert reason in orjson.loads(line)["reason"]
