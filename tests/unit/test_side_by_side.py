"""Two workers share the suite: which one runs what, and that the end of the run tells everything, as without them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.side_by_side import COMPUTING, MEASURING, PATIENT, UNIT_TESTS_THAT_MEASURE, group_of

ROOT = Path(__file__).resolve().parents[2]
NICE = """
import os
from tests.support.findings import LINES
def test_it():
    LINES.append("a finding")
    assert os.nice(0) == {}
"""
MODULES = {
    "unit/test_some.py": NICE.format("min(19, int(os.environ['FOUND']) + 19)"),
    "unit/test_store.py": "def test_it(): pass\n",  # its namesake measures
    "fault/test_some.py": NICE.format("int(os.environ['FOUND'])")
    + "import pytest\n@pytest.mark.quality\ndef test_left_out(): pass\n"
    + "@pytest.mark.privileged\ndef test_rights(): pytest.skip('none')\n",
}
SKIPS = "import pytest\ndef test_it(): pytest.skip('no reason')\n"


def test_every_test_has_its_worker() -> None:
    assert group_of("tests/unit/test_session.py::test_it[a::b]") == COMPUTING
    assert group_of("tests/unit/cosyvoice/test_flow_hops.py::test_it") == COMPUTING
    assert group_of("tests/unit/test_faulty_proxy.py::test_it") == MEASURING
    assert group_of("tests/fault/test_churn.py::test_it") == MEASURING
    assert group_of("tests/web/test_anything.py::test_it") == MEASURING


def test_what_is_named_exists() -> None:
    assert [name for name in PATIENT | UNIT_TESTS_THAT_MEASURE if not (ROOT / name).is_file()] == []
    assert {group_of(f"{name}::test_it") for name in PATIENT} == PATIENT


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small suite with this one's rules."""
    shutil.copytree(ROOT / "tests" / "support", tmp_path / "tests" / "support")
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name, text in MODULES.items():
        (tmp_path / "tests" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "tests" / name).write_text(text, encoding="utf-8")
    return tmp_path


def run(project: Path, *options: str) -> tuple[int, list[str]]:
    """Exit status and lines of a run as CI has it."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**others, "PYTHONPATH": str(ROOT), "CI": "true", "FOUND": str(os.nice(0))}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(project), *options]
    done = subprocess.run(command, env=environment, cwd=project, check=False, stdout=subprocess.PIPE, text=True)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("workers", ["0", "2"])
def test_the_end_tells_everything(project: Path, workers: str) -> None:
    if workers == "0":
        (project / "tests/unit/test_some.py").write_text(NICE.format("int(os.environ['FOUND'])"), encoding="utf-8")
    command = f"{sys.executable} -c 'print(\"looked at\")'"
    status, lines = run(project, "-n", workers, "-m", "not quality", "--beside", command)
    assert status == 0, lines
    assert "3 passed, 1 skipped" in lines[-1]
    counted = [line.split(": ")[0].strip() for line in lines if line.startswith("   1 ")]
    assert sorted(counted) == ["1 tests marked quality", "1 tests/fault/test_some.py::test_rights"]
    assert "looked at" in lines
    assert lines.count("a finding") == 2


def test_what_the_caller_leaves_out_is_not_told(project: Path) -> None:
    marked = "import pytest\n@pytest.mark.programs('sh')\n@pytest.mark.quality\ndef test_it(): pass\n"
    (project / "tests/unit/test_more.py").write_text(marked, encoding="utf-8")
    status, lines = run(project, "-n", "0", "-k", "test_store")
    assert (status, [line for line in lines if "not run here" in line]) == (0, [])
    status, lines = run(project, "-n", "0", "-m", "not quality", "-k", "test_store")
    assert [line for line in lines if line.startswith("   2 ")] == ["   2 tests marked quality: run by `make quality`"]


def test_what_fails_beside_the_tests_is_an_error_of_the_run(project: Path) -> None:
    command = f"{sys.executable} -c 'print(\"a mistake\"); raise SystemExit(2)'"
    status, lines = run(project, "-n", "2", "tests/unit/test_store.py", "--beside", command)
    assert status == 1
    assert lines.count("a mistake") == 1
    assert "1 passed, 1 error" in lines[-1]


def test_a_skip_fails_in_a_worker_too(project: Path) -> None:
    (project / "tests/unit/test_more.py").write_text(SKIPS, encoding="utf-8")
    (project / "tests/fault/test_more.py").write_text("import absent\n", encoding="utf-8")
    status, lines = run(project, "-n", "2", "-m", "not quality")
    assert status == 1
    assert any("was skipped, which CI does not allow: no reason" in line for line in lines)
    assert "1 failed, 3 passed, 1 skipped, 1 error" in lines[-1]
