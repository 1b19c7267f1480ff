"""The server process that the demo and the benchmarks start."""

import os
import time
import urllib.request

import pytest

from bench._common import server_process
from deploy.local_server import ServerNotReady, local_server


def test_it_is_ready_can_be_measured_and_is_stopped() -> None:
    before = time.perf_counter()
    with server_process("--engine", "tone") as server:
        assert before <= server.started < server.ready <= time.perf_counter()
        assert server.cpu_s() > 0
        assert server.memory_mb() <= server.memory_mb("VmHWM")
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/readyz", timeout=5) as answer:
            assert answer.status == 200
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_one_that_does_not_start_says_why() -> None:
    with pytest.raises(ServerNotReady, match=r"(?s)the server stopped\. The end of its log:.*no-such"):
        with local_server("--engine", "no-such"):
            pass
