"""What integration tests share."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from server.engines.model_cache import default_model_dir
from tests.support.processes import ROOT


@pytest.fixture(scope="session")
def voices() -> Path:
    """The folder with the built voices; `make setup` has built them, otherwise it takes a while."""
    subprocess.run(
        [sys.executable, "-m", "server.engines.embedded", "build"], cwd=ROOT, check=True, capture_output=True
    )
    return default_model_dir(os.environ)
