"""Tests whose packages are not installed are listed as not run; under CI they fail."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "yaml", "playwright"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Finder())
"""


def test_without_the_extra_its_tests_are_listed(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "tests" / "unit" / "cosyvoice").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "conftest.py", project / "tests")
    shutil.copy(ROOT / "pyproject.toml", project)
    shutil.copytree(ROOT / "tests" / "support", project / "tests" / "support")
    for name in ("cosyvoice/conftest.py", "cosyvoice/test_some.py", "test_cosyvoice_other.py"):
        (project / "tests" / "unit" / name).write_text("import torch\n", encoding="utf-8")
    (project / "tests" / "web").mkdir()
    for name in ("conftest.py", "test_some.py"):
        (project / "tests" / "web" / name).write_text("import playwright\n", encoding="utf-8")
    (project / "tests" / "unit" / "test_plain.py").write_text("def test_it(): pass\n", encoding="utf-8")
    block = tmp_path / "block"
    block.mkdir()
    (block / "sitecustomize.py").write_text(BLOCK, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": f"{block}:{ROOT}", "CI": ""}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(project)]
    options = {"cwd": project, "check": False, "capture_output": True, "text": True}
    run = subprocess.run(command, env=environment, **options)  # type: ignore[call-overload]
    assert run.returncode == 0, run.stdout + run.stderr
    told = [line.split(maxsplit=1)[1] for line in run.stdout.splitlines() if ": there is no " in line]
    needs_torch = "there is no torch, yaml: pip install -e '.[cosyvoice]' -c constraints.txt"
    assert told == [
        f"tests/unit/cosyvoice: {needs_torch}",
        f"tests/unit/test_cosyvoice_other.py: {needs_torch}",
        "tests/web: there is no playwright: pip install -e '.[web]' -c constraints.txt",
    ]
    assert "1 passed" in run.stdout
    run = subprocess.run(command, env={**environment, "CI": "true"}, **options)  # type: ignore[call-overload]
    assert run.returncode != 0
    assert "No module named 'torch'" in run.stdout + run.stderr
