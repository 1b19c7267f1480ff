"""The Dockerfile, carried out without Docker: its install steps work, the image stays small, the server in it is healthy."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.dockerfile import Build, parse

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "Dockerfile"
BASE_IMAGE_MB = 130  # python:3.12-slim on amd64, unpacked
LIBOPUS_MB = 1
LIMIT_MB = 900
READY_TIMEOUT_S = 30.0


def base_python() -> Path:
    """The interpreter that this virtual environment was made with."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def build(root: Path, accept: str) -> Build:
    return Build(DOCKERFILE, root, base_python(), {"ACCEPT_BAKER_NONCOMMERCIAL": accept})


@contextmanager
def running(made: Build) -> Iterator[dict[str, str]]:
    """The image's own entry point with the image's environment, on this machine's loopback; yields the environment."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    environment = {**made.environment, "COSYSTREAM_HOST": "127.0.0.1", "COSYSTREAM_PORT": port, "HOME": "/nonexistent"}
    server = subprocess.Popen(made.command("ENTRYPOINT"), cwd=made.root, env=environment)
    try:
        yield environment
    finally:
        server.terminate()
        assert server.wait(15) == 0


def healthy(made: Build, environment: dict[str, str]) -> bool:
    command = made.command("HEALTHCHECK")
    return subprocess.run(command, env=environment, check=False, capture_output=True).returncode == 0


def voices(made: Build, environment: dict[str, str]) -> str:
    """What the image's own client says about the server's voices."""
    command = ["cosystream", "voices", "--url", f"ws://127.0.0.1:{environment['COSYSTREAM_PORT']}"]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
