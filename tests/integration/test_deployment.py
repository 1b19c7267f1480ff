"""Deployment: any user, no home, read-only files, no network, with or without IPv6, and a prompt stop."""

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import wave
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from protocol import client_messages as c
from protocol import server_messages as s
from tests.support.processes import ROOT, get, server_process
from tests.support.raw_http import TLS
from tests.support.server import bare_client

# Brings the loopback interface of a new network namespace up (SIOCSIFFLAGS, IFF_UP | IFF_RUNNING), then runs the rest.
LOOPBACK_UP = (
    "import fcntl,os,socket,struct,sys;s=socket.socket();"
    "fcntl.ioctl(s,0x8914,struct.pack('16sH14x',b'lo',0x41));os.execv(sys.argv[1],sys.argv[1:])"
)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_cold_start_and_stop(tmp_path: Path) -> None:
    with server_process(tmp_path / "log", "--engine", "tone") as server:
        assert get(f"{server.http}/healthz")[0] == 200
        assert get(f"{server.http}/readyz")[0] == 200
        assert b"cosystream_sessions_open" in get(f"{server.http}/metrics")[1]
        assert server.stop() < 2
        assert server.process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_stop_with_an_open_stream(tmp_path: Path, number: signal.Signals) -> None:
    with server_process(tmp_path / "log", "--engine", "tone", "--drain-timeout-s", "0.2") as server:
        async with bare_client(server.url, open=c.Open()) as client:
            await client.say(1, "你好，世界。" * 2_000)
            await client.until(s.SegmentBegin)
            server.process.send_signal(number)
            with pytest.raises(ConnectionClosed) as over:
                await client.until(s.Done, timeout=10)
            assert over.value.rcvd is not None
            assert over.value.rcvd.code == 1012
            assert any(isinstance(message, s.GoAway) for message in client.messages)
        assert await asyncio.to_thread(server.process.wait, 5) == 0
        assert not [line for line in server.log() if line.get("level") == "error"]


def test_no_home_any_directory(tmp_path: Path, voices: Path) -> None:
    """The voices are elsewhere, HOME is unset, the working directory is `/`."""
    env = {"HOME": "", "COSYSTREAM_MODEL_DIR": str(voices)}
    with server_process(tmp_path / "log", env=env) as server:
        out = tmp_path / "a.wav"
        subprocess.run(
            [sys.executable, "-m", "client", "say", "你好 hello", "-o", str(out), "--url", server.url],
            check=True,
            cwd=ROOT,
            capture_output=True,
            timeout=30,
        )
        with wave.open(str(out)) as file:
            assert file.getnframes() > 12_000
        assert server.stop() < 5


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.privileged
def test_every_name_of_this_machine_answers(tmp_path: Path) -> None:
    with server_process(tmp_path / "log", "--engine", "tone", "--host", "localhost") as server:
        for name in ("127.0.0.1", "[::1]", "localhost"):
            assert get(f"http://{name}:{server.port}/healthz")[0] == 200


def test_without_ipv6_the_wildcard_still_listens(tmp_path: Path) -> None:
    with server_process(tmp_path / "log", "--engine", "tone", "--host", "::", "--insecure") as server:
        assert get(f"{server.http}/healthz")[0] == 200
        warned = [line for line in server.log() if line.get("level") == "warning" and "IPv6" in str(line)]
        assert bool(warned) is not has_ipv6()


def test_a_public_address_without_keys_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "server", "--host", "0.0.0.0", "--engine", "tone"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 2
    assert "insecure" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["--engine", "nobody"], "embedded"),
        (["--engine", "tone", "--engine-option", "colour=red"], "colour"),
        (["--engine", "tone", "--engine-option", "script=abc"], "tone|script"),
        (["--engine", "tone", "--default-voice", "x"], "tone-low"),
        (["--engine-option", "foo=1"], "foo"),
        (["--engine-option", "voices=en-hibari"], "/proc/x"),
    ],
)
def test_what_cannot_start_says_why_in_one_line(args: list[str], word: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "server", "--port", "0", *args],
        cwd=ROOT,
        env={**os.environ, "COSYSTREAM_MODEL_DIR": "/proc/x"},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert done.returncode == 1
    assert re.search(word, done.stderr)
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


LOADING_FOR_EVER = """
import sys, time
from server.running import run
from server.engines import registry
from server.settings import Settings

def create(name, options):
    print("loading", flush=True)
    time.sleep(60)

registry.create = create
sys.exit(run(Settings(port=0)))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopping_does_not_wait_for_an_engine_that_loads(number: signal.Signals) -> None:
    command = [sys.executable, "-c", LOADING_FOR_EVER]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"loading\n"
            start = time.monotonic()
            process.send_signal(number)
            _, said = process.communicate(timeout=20)
        finally:
            process.kill()
        assert time.monotonic() - start < 3
        assert (process.returncode, said) == (0, b"")


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_the_health_check_follows_the_settings(tmp_path: Path, secure: bool) -> None:
    env = {"COSYSTREAM_HOST": "0.0.0.0", "COSYSTREAM_INSECURE": "yes", "http_proxy": "http://127.0.0.1:1"}
    if secure:
        env |= {"COSYSTREAM_TLS_CERT": str(TLS / "certificate.pem"), "COSYSTREAM_TLS_KEY": str(TLS / "key.pem")}
    with server_process(tmp_path / "log", "--engine", "tone", env=env) as server:

        def health() -> subprocess.CompletedProcess[str]:
            command = [sys.executable, "-m", "server", "health"]
            environment = {**os.environ, **env, "COSYSTREAM_PORT": str(server.port)}
            return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=20)

        assert health().returncode == 0, health().stderr
        server.stop()
        down = health()
    assert (down.returncode, len(down.stderr.splitlines())) == (1, 1)


def test_a_port_in_use_is_said_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "server", "--port", port, "--engine", "tone"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=20,
        )
    assert done.returncode == 1
    assert port in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.privileged
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")
def test_speaks_both_languages_without_a_network(tmp_path: Path, voices: Path) -> None:
    """In a network namespace with nothing but loopback."""
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, pathlib, subprocess\n"
        "from tests.support.processes import server_process\n"
        "out = sys.argv[1]\n"
        "with server_process(pathlib.Path(out) / 'log') as server:\n"
        "    subprocess.run([sys.executable, '-m', 'client', 'say', '你好 hello', '-o', out + '/a.wav',\n"
        "                    '--url', server.url], check=True)\n"
    )
    subprocess.run(
        ["unshare", "-n", sys.executable, "-c", LOOPBACK_UP, sys.executable, str(script), str(tmp_path)],
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COSYSTREAM_MODEL_DIR": str(voices)},
        capture_output=True,
        timeout=60,
    )
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert file.getnframes() > 12_000
