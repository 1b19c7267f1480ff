"""What the project's own files promise: pinned and bounded dependencies, their licences, commands that exist."""

import ast
import os
import re
import stat
import subprocess
import sys
import tomllib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.lowest import lower_bounds

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
OPTIONAL = [line for extra in EXTRAS.values() for line in extra]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def needed(requirements: list[str]) -> dict[str, metadata.Distribution]:
    """Every installed distribution that these requirements bring with them, by normalised name."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [Requirement(line) for line in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found[name] = metadata.distribution(name)
        waiting += [Requirement(line) for line in found[name].requires or ()]
    return found


def licence(distribution: metadata.Distribution) -> str:
    """What a distribution says of its licence, in whichever of the three usual places."""
    data = distribution.metadata
    stated = [(data.get_all(field) or [""])[0].split("\n")[0] for field in ("License-Expression", "License")]
    stated += [line for line in data.get_all("Classifier") or [] if line.startswith("License ::")]
    return " ".join(stated).strip()


def test_everything_installed_is_pinned() -> None:
    missing = set(needed([*PROJECT["dependencies"], *EXTRAS["dev"]])) - set(pins())
    assert not missing, f"not in constraints.txt: {sorted(missing)}"


def test_every_direct_dependency_is_pinned_within_its_bounds() -> None:
    requirements = [Requirement(line) for line in [*PROJECT["dependencies"], *OPTIONAL]]
    pinned = pins()
    wrong = [
        f"{requirement} is pinned to {pinned.get(canonicalize_name(requirement.name))}"
        for requirement in requirements
        if pinned.get(canonicalize_name(requirement.name)) not in requirement.specifier  # type: ignore[operator]
    ]
    assert not wrong, "\n".join(wrong)


def test_every_dependency_has_a_lower_bound() -> None:
    bounds = lower_bounds(PROJECT["dependencies"])
    assert len(bounds) == len(PROJECT["dependencies"])
    with pytest.raises(ValueError, match="no lower bound"):
        lower_bounds(["numpy"])


def test_no_dependency_is_gpl_or_agpl() -> None:
    licences = {name: licence(found) for name, found in needed(PROJECT["dependencies"]).items()}
    unknown = [name for name, text in licences.items() if not text]
    assert not unknown, f"no licence stated: {unknown}"
    strict = re.compile(r"(?<!L)GPL|Affero|(?<!Lesser )General")
    assert not {name: text for name, text in licences.items() if strict.search(text)}


def test_notice_names_every_dependency() -> None:
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    words = {canonicalize_name(word) for word in re.findall(r"[A-Za-z0-9_.-]+", notice)}
    assert not set(needed(PROJECT["dependencies"])) - words
    assert not {canonicalize_name(Requirement(line).name) for line in OPTIONAL} - words


def test_the_suite_that_listens_installs_what_it_imports() -> None:
    given = {canonicalize_name(Requirement(line).name) for line in [*PROJECT["dependencies"], *EXTRAS["quality"]]}
    modules = {
        name.split(".")[0]
        for path in (ROOT / "tests" / "quality").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    foreign = modules - sys.stdlib_module_names - {"bench", "client", "protocol", "server", "tests", "pytest"}
    assert "soxr" in foreign
    assert {name for name in foreign if canonicalize_name(name) not in given} == set()


def test_pyav_is_never_imported() -> None:
    """Its wheel carries GPL libraries beside the libopus that is taken from it (NOTICE)."""
    for folder in ("protocol", "server", "client"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                assert not any(name.split(".")[0] == "av" for name in names), path


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md"))])
def test_documented_commands_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    made = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE))
    assert made <= targets(), page
    for module in set(re.findall(r"python3? -m ((?:server|client|bench)[\w.]*)", text)):
        assert find_spec(module.rstrip(".")) is not None, f"{page}: python -m {module}"


def test_make_explains_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert set(re.findall(r"^  make ([a-z-]+)", shown, re.MULTILINE)) == targets()


def test_what_an_installed_package_reads_is_installed() -> None:
    """Files beside the code, as package data names them."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    given = {
        path
        for package, patterns in tool["package-data"].items()
        for pattern in patterns
        for path in (ROOT / package.replace(".", "/")).glob(pattern)
    }
    there = {
        path
        for folder in ("client", "demo_web", "protocol", "server")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc") and "__pycache__" not in path.parts
    }
    assert ROOT / "server/gateway/status.html" in there
    assert there == given


def test_entry_points_exist() -> None:
    named = [*PROJECT["scripts"].values(), *PROJECT["entry-points"]["cosystream.engines"].values()]
    for target in named:
        module, attribute = target.split(":")
        assert callable(getattr(__import__(module, fromlist=[attribute]), attribute)), target


def fake_python(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def find_python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{folder}:/usr/bin:/bin"}
    command = ["sh", str(ROOT / "deploy" / "find_python.sh"), *arguments]
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True)


def test_set_up_takes_the_first_python_that_is_new_enough(tmp_path: Path) -> None:
    fake_python(tmp_path, "python3", "echo 'is Python 3.9' >&2; exit 1")
    fake_python(tmp_path, "python3.13", f'exec {sys.executable} "$@"')
    found = find_python(tmp_path)
    assert found.returncode == 0
    assert Path(found.stdout.strip()).exists()


def test_set_up_says_what_is_missing(tmp_path: Path) -> None:
    fake_python(tmp_path, "old", "echo 'is Python 3.9' >&2; exit 1")
    found = find_python(tmp_path, str(tmp_path / "old"))
    assert found.returncode == 1
    assert "needs Python 3.11 or newer" in found.stderr
    assert "is Python 3.9" in found.stderr
    assert "PYTHON=" in found.stderr


def test_shell_scripts_are_well_formed() -> None:
    for script in (ROOT / ".ci" / "run", *ROOT.glob("deploy/*.sh")):
        assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
