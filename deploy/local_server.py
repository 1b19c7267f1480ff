"""A server in a process of its own, on a free port of this machine: for the demo and the benchmarks."""

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

ROOT: Final = Path(__file__).resolve().parents[1]
READY_TIMEOUT_S: Final = 120.0  # includes building the voices if nothing built them before
STOP_TIMEOUT_S: Final = 10.0
LOG_LINES: Final = 15  # of the end of the log, when something went wrong
_LOOK_S: Final = 0.01  # between two looks at /readyz: no longer than a measurement of the start may be wrong


class ServerNotReady(Exception):
    """The server stopped or took too long; the text has the end of its log."""


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A running server."""

    pid: int
    port: int
    started: float  # perf_counter() just before the process was started
    ready: float  # ... when /readyz answered 200
    log: IO[str]  # what it writes; `logged` reads it

    def logged(self) -> str:
        """Its log so far."""
        number = self.log.fileno()  # the server writes through the same file: its position must stay where it is
        return os.pread(number, os.fstat(number).st_size, 0).decode("utf-8", "replace")

    @property
    def url(self) -> str:
        """Of its WebSocket."""
        return f"ws://127.0.0.1:{self.port}/v1/stream"


@contextmanager
def local_server(*options: str, environment: Mapping[str, str] | None = None) -> Iterator[LocalServer]:
    """`python -m server` with these options, ready to speak; stopped at the end. Raises ServerNotReady."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "server", "--host", "127.0.0.1", "--port", str(port), *options]
    # What fails in a demo or a benchmark is nothing for the user's own queue.
    env = {**os.environ, "COSYSTREAM_DEAD_LETTERS": "off", **(environment or {})}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        started = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=env)
        try:
            while not _is_ready(port):
                stopped = process.poll() is not None
                if stopped or time.perf_counter() - started > READY_TIMEOUT_S:
                    log.seek(0)
                    tail = "\n".join(log.read().splitlines()[-LOG_LINES:])
                    reason = "stopped" if stopped else f"was not ready within {READY_TIMEOUT_S:.0f} s"
                    raise ServerNotReady(f"the server {reason}. The end of its log:\n{tail}")
                time.sleep(_LOOK_S)
            yield LocalServer(process.pid, port, started, time.perf_counter(), log)
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _is_ready(port: int) -> bool:
    """Whether /readyz answers 200; not while nothing listens or voices are still warming up."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:  # urllib's errors, HTTP statuses included, are of this kind
        return False
