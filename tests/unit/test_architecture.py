"""The project's shape: who may import whom, what stays pure, what every package and folder must have."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = ("protocol", "server", "client")

# Both ends know the protocol; nothing else is shared.
MAY_IMPORT = {"protocol": {"protocol"}, "server": {"protocol", "server"}, "client": {"protocol", "client"}}

# These decide and compute: time comes in as an argument, what to do goes out as a value.
PURE = (
    "protocol",
    "server/audio",
    "server/cache",
    "server/link",
    "server/scheduler",
    "server/session",
    "server/text",
    "client/playout.py",
    "client/session.py",
)
IMPURE_MODULES = {
    "asyncio", "concurrent", "multiprocessing", "queue", "sched", "select", "selectors", "signal", "socket", "ssl",
    "subprocess", "threading", "time", "uvloop", "websockets", "uvicorn", "starlette", "httptools",
}  # fmt: skip
ALLOWED = {
    ("protocol/media/opus.py", "threading"),  # a lock, so that two threads do not load libopus at once
}
SHELLS = ("server.app", "server.cluster", "server.gateway")

# Modules that speak to a person at a terminal.
COMMAND_LINE = ("client/__main__.py", "client/cli", "server/__main__.py", "server/engines/embedded/__main__.py")

TOP_LEVEL_FOLDERS = {"bench", "client", "demo_web", "deploy", "docs", "protocol", "server", "tests"}


def python_files(*folders: str) -> list[Path]:
    """The modules in these folders (or the one module a name stands for), as far as they exist."""
    found: list[Path] = []
    for name in folders:
        path = ROOT / name
        found += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return found


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and full name of everything imported, wherever in the module; `from a import b` gives `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def is_inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@pytest.mark.parametrize("package", OURS)
def test_imports_go_one_way(package: str) -> None:
    forbidden = (set(OURS) | {"tests", "bench", "deploy"}) - MAY_IMPORT[package]
    wrong = [
        f"{name_of(path)}:{line} imports {module}"
        for path in python_files(package)
        for line, module in imports(parse(path))
        if module.split(".")[0] in forbidden
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("place", PURE)
def test_pure_code_has_no_clock_no_socket_and_no_loop(place: str) -> None:
    wrong = [
        f"{name_of(path)}:{line} imports {module}"
        for path in python_files(place)
        for line, module in imports(parse(path))
        if module.split(".")[0] in IMPURE_MODULES or any(is_inside(module, shell) for shell in SHELLS)
        if (name_of(path), module) not in ALLOWED
    ]
    assert not wrong, "\n".join(wrong)


def test_only_command_lines_print() -> None:
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path in python_files(*OURS)
        if not name_of(path).startswith(COMMAND_LINE)
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not wrong, "\n".join(wrong)


def test_every_package_says_what_it_is_for() -> None:
    packages = {path.parent for path in python_files(*OURS)}
    silent = [
        name_of(package)
        for package in sorted(packages)
        if not (package / "__init__.py").is_file() or not ast.get_docstring(parse(package / "__init__.py"))
    ]
    assert not silent, f"packages without an __init__.py that has a docstring: {silent}"


def test_every_module_says_what_it_is_for() -> None:
    silent = [name_of(path) for path in python_files(*OURS, "bench", "deploy") if not ast.get_docstring(parse(path))]
    assert not silent, f"modules without a docstring: {silent}"


def test_top_level_folders_are_the_documented_ones() -> None:
    found = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    built = {name for name in found if name in {"build", "dist"} or name.endswith(".egg-info")}
    assert found - built - TOP_LEVEL_FOLDERS == set()


def test_the_checks_see_what_they_forbid() -> None:
    source = "import time\nfrom server import gateway\ndef f():\n    from asyncio import sleep\n"
    assert list(imports(ast.parse(source))) == [(1, "time"), (2, "server.gateway"), (4, "asyncio.sleep")]
    assert is_inside("server.gateway.http", "server.gateway")
    assert not is_inside("server.gateways", "server.gateway")
    assert len(python_files("protocol", "server")) > 5
