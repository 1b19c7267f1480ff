"""What the page's modules do without a browser: the tests in tests/web/node, which node's own runner runs."""

import subprocess
from pathlib import Path

import pytest

from tests.support.node import node_command

TESTS = sorted((Path(__file__).parent / "node").glob("*.test.mjs"))


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name.removesuffix(".test.mjs"))
def test_node(path: Path) -> None:
    run = subprocess.run(
        node_command("--disable-warning=MODULE_TYPELESS_PACKAGE_JSON", "--test", "--test-reporter=spec", str(path)),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    assert "pass 0" not in run.stdout
