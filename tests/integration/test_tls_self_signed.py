"""A server with a certificate of its own, and clients that trust it, or do not."""

import asyncio
import hashlib
import signal
import ssl
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import client
from client.cli.exit_codes import ExitCode
from server.gateway.binding import Address
from server.gateway.own_names import pages_elsewhere
from tests.support.client_process import run
from tests.support.gateways import gateways
from tests.support.processes import ServerProcess, server_process
from tests.support.server import running


def line(server: ServerProcess, event: str) -> dict[str, Any]:
    (found,) = [each for each in server.log() if each.get("event") == event]
    return found


def shared(state: Path) -> Path:
    return state / "cosystream" / "tls" / "certificate.pem"


def fingerprint(port: int) -> str:
    """Of what the server at this port shows."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port)))).hexdigest()


def page(port: int, trusted: Path) -> int:
    context = ssl.create_default_context(cafile=str(trusted))
    with urllib.request.urlopen(f"https://localhost:{port}/", timeout=10, context=context) as answer:
        return int(answer.status)


async def test_a_user_trusts_it_once(tmp_path: Path) -> None:
    """Command line and library, over a restart; who does not trust it is told how to."""
    state = tmp_path / "state"
    options = ("--engine", "tone", "--tls-self-signed")
    environment = {"XDG_STATE_HOME": str(state)}
    with ExitStack() as running_now:
        start = lambda name: running_now.enter_context(  # noqa: E731
            server_process(tmp_path / name, *options, env=environment)
        )
        server = await asyncio.to_thread(start, "first.log")
        url, trust = f"wss://127.0.0.1:{server.port}", ("--tls-ca", str(shared(state)))
        said, ready = line(server, "serving with a certificate of its own"), line(server, "ready")
        assert (ready["url"], ready["page"]) == (
            f"https://127.0.0.1:{server.port}",
            f"https://127.0.0.1:{server.port}/",
        )
        assert said["sha256"].replace(":", "").lower() == await asyncio.to_thread(fingerprint, server.port)
        assert await asyncio.to_thread(page, server.port, shared(state)) == 200
        told, spoken, listed = await asyncio.gather(
            run(tmp_path, "say", "hello", url=url),
            run(tmp_path, "say", "hello", "-o", "hello.wav", *trust, url=url),
            run(tmp_path, "voices", *trust, url=url.replace("wss", "https")),
        )
        assert told.code == ExitCode.CONNECT
        assert "self-signed certificate (--tls-ca FILE trusts it)" in told.err.replace("self signed", "self-signed")
        assert spoken.code == ExitCode.OK, spoken.err
        assert (tmp_path / "hello.wav").stat().st_size > 1_000
        assert (listed.code, "tone" in listed.out.decode()) == (ExitCode.OK, True)
        health = [sys.executable, "-m", "server", "health", "--tls-self-signed", "--port", str(server.port)]
        assert (await asyncio.to_thread(subprocess.run, health, check=False)).returncode == 0
        await asyncio.to_thread(server.stop)
        again = await asyncio.to_thread(start, "second.log")
        assert line(again, "serving with a certificate of its own")["sha256"] == said["sha256"]
        async with client.connect(f"wss://localhost:{again.port}", tls_ca=shared(state)) as session:
            assert [audio async for audio in session.speak("hello")]


@pytest.mark.parametrize("count", [1, 2])
def test_others_are_told_where_the_page_is(tmp_path: Path, count: int) -> None:
    options = ("--engine", "tone", "--host", "0.0.0.0", "--insecure", "--gateways", str(count))
    with server_process(tmp_path / "log", *options, timeout=60) as server:
        elsewhere = pages_elsewhere(Address("0.0.0.0", server.port), secure=False)
        (told,) = [each for each in server.log() if each.get("page")]
        assert told.get("page_elsewhere") == (",".join(elsewhere) or None)


async def test_several_gateways_have_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it can be kept, and where it cannot: also in a gateway that is started again."""
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with ExitStack() as stack:
        options = ("--tls-self-signed", "--dead-letters", "off")
        server = await asyncio.to_thread(stack.enter_context, gateways(tmp_path / "log", 2, *options))
        said = line(server, "serving with a certificate of its own")
        first = await server.settled(2)
        assert {await asyncio.to_thread(fingerprint, server.port) for _ in range(8)} == {
            said["sha256"].replace(":", "").lower()
        }
        server.signal(next(iter(first)), signal.SIGKILL)
        await server.settled(3)
        async with client.connect(f"wss://127.0.0.1:{server.port}", tls_ca=said["file"], busy_wait_s=10) as session:
            assert [audio async for audio in session.speak("hello")]
        folder = Path(said["file"]).parent
        assert folder.parent == tmp_path
        assert any("cannot be kept" in str(each.get("event")) for each in server.log())
        await asyncio.to_thread(server.stop)
        assert not folder.exists()


async def test_what_the_client_cannot_read_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    for file, reason in (
        (empty, "has no certificate (PEM) in it"),
        (tmp_path / "none", "cannot be read: No such file"),
    ):
        ended = await run(tmp_path, "say", "x", "--tls-ca", str(file), url="wss://127.0.0.1:1")
        assert (ended.code, f"--tls-ca {file} {reason}" in ended.err) == (ExitCode.CONNECT, True), ended.err
    with pytest.raises(client.ConnectFailed, match="no certificate"):
        await client.connect("wss://127.0.0.1:1", tls_ca=empty)
    async with running() as server:  # without TLS nobody asks for it
        assert server.listener is not None
        async with client.connect(f"127.0.0.1:{server.listener.port}", tls_ca=empty) as session:
            assert session.sample_rate == 24_000
