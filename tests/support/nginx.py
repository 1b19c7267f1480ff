"""nginx with our own configuration, `deploy/nginx/cosystream.conf`, on loopback, in the test's folder."""

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import ROOT
from tests.support.programs import find_program
from tests.support.raw_http import TLS

CONFIGURATION = ROOT / "deploy" / "nginx" / "cosystream.conf"
START_S = 10.0

MAIN = """
daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log info;
events {{ worker_connections 512; }}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/cosystream.conf;
}}
"""


@dataclass(frozen=True)
class Nginx:
    """A running nginx."""

    folder: Path
    port: int
    tls_port: int

    @property
    def url(self) -> str:
        """Of the WebSocket."""
        return f"ws://127.0.0.1:{self.port}/v1/stream"

    @property
    def http(self) -> str:
        """Of the HTTP side."""
        return f"http://127.0.0.1:{self.port}"

    def faults(self) -> list[str]:
        """What it logged as a fault of its own or of the configuration."""
        lines = (self.folder / "error.log").read_text().splitlines()
        return [line for line in lines if re.search(r"\[(emerg|alert|crit)\]", line)]


def configured(servers: Sequence[int], port: int, tls_port: int) -> str:
    """Our configuration with these places filled in, as its comments say. AssertionError where one is not there."""
    text = CONFIGURATION.read_text(encoding="utf-8")
    changes = [
        (r"^( *)server 127\.0\.0\.1:8765( .*)$", "\n".join(rf"\1server 127.0.0.1:{each}\2" for each in servers)),
        (r"^( *)listen 80;$", rf"\1listen 127.0.0.1:{port};"),
        (r"^( *)# listen 443 ssl;$", rf"\1listen 127.0.0.1:{tls_port} ssl;"),
        (r"^( *)# (ssl_certificate +)\S+;$", rf"\1\2{TLS / 'certificate.pem'};"),
        (r"^( *)# (ssl_certificate_key +)\S+;$", rf"\1\2{TLS / 'key.pem'};"),
        (r"^( *)# (ssl_protocols .*)$", r"\1\2"),
        (r"^( *)# (ssl_session_cache .*)$", r"\1\2"),
    ]
    for pattern, replacement in changes:
        text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        assert count == 1, f"{pattern} is in {CONFIGURATION.name} {count} times"
    return text


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody has now."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@contextmanager
def nginx(folder: Path, servers: Sequence[int]) -> Iterator[Nginx]:
    """Start it before the servers on these ports, and wait until it listens; ended by its process id."""
    folder.mkdir(parents=True)
    port, tls_port = free_ports(2)
    (folder / "cosystream.conf").write_text(configured(servers, port, tls_port), encoding="utf-8")
    # Its workers must get into the test's folder.
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(MAIN.format(folder=folder, user=user), encoding="utf-8")
    program = find_program("nginx")
    assert program is not None
    command = [program, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        _wait_for(port, process)
        running = Nginx(folder, port, tls_port)
        yield running
        assert running.faults() == []
    finally:
        process.terminate()
        process.communicate(timeout=10)


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    limit = time.monotonic() + START_S
    while time.monotonic() < limit and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    process.terminate()
    raise AssertionError(f"nginx does not start: {process.communicate(timeout=10)[0].decode()}")
