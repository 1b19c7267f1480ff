"""The server as a process of its own, as users run it."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

ROOT = Path(__file__).parents[2]


@dataclass
class ServerProcess:
    """A running server and what it logs."""

    process: subprocess.Popen[bytes]
    port: int
    log_file: Path

    @property
    def url(self) -> str:
        """Where its WebSocket is."""
        return f"ws://127.0.0.1:{self.port}/v1/stream"

    @property
    def http(self) -> str:
        """Where its HTTP side is."""
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> list[dict[str, object]]:
        """Its log lines."""
        return [orjson.loads(line) for line in self.log_file.read_bytes().splitlines() if line.startswith(b"{")]

    def stop(self) -> float:
        """SIGTERM; how many seconds it took to end."""
        start = time.monotonic()
        self.process.terminate()
        self.process.wait(30)
        return time.monotonic() - start


@contextmanager
def server_process(
    log_file: Path, *args: str, env: Mapping[str, str] | None = None, prefix: Sequence[str] = (), timeout: float = 30.0
) -> Iterator[ServerProcess]:
    """Start `python -m server` on a free port and wait until it is ready. AssertionError with its log where it is not.
    Without `args` that say otherwise its engine speaks every text, also what it spoke before.
    """
    options = ("--port", "0", "--log-format", "json", "--audio-cache-mb", "0")
    command = [*prefix, sys.executable, "-m", "server", *options, *args]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}
    environment = {name: value for name, value in environment.items() if value}
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, cwd="/", env=environment, stdout=log, stderr=log)
    try:
        yield ServerProcess(process, _ready_port(process, log_file, timeout), log_file)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)


def _ready_port(process: subprocess.Popen[bytes], log_file: Path, timeout: float) -> int:
    limit = time.monotonic() + timeout
    while time.monotonic() < limit and process.poll() is None:
        for line in log_file.read_bytes().splitlines():
            if line.startswith(b"{") and orjson.loads(line).get("event") == "ready":
                return int(str(orjson.loads(line)["url"]).rsplit(":", 1)[1].rstrip("/"))
        time.sleep(0.05)
    raise AssertionError(f"the server did not get ready:\n{log_file.read_text()}")


def get(url: str, timeout: float = 5.0) -> tuple[int, bytes]:
    """Status and body."""
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
