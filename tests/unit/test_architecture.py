"""The project's shape: who may import whom, what stays pure, what every package and folder must have."""

import ast
import re
from collections.abc import Iterator
from functools import cache
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
    "server/cluster/failures.py",
    "server/engines/cosyvoice/config.py",
    "server/engines/cosyvoice/hops.py",
    "server/engines/cosyvoice/text",
    "server/engines/cosyvoice/voice/data.py",
    "server/engines/cosyvoice/voice/features.py",
    "server/gateway/request_head.py",
    "server/gateway/tokens.py",
    "server/gateways/merging.py",
    "server/gateways/names.py",
    "server/json_text.py",
    "server/link",
    "server/observe/account.py",
    "server/observe/latencies.py",
    "server/observe/line_limit.py",
    "server/observe/sampling.py",
    "server/observe/status.py",
    "server/scheduler",
    "server/session",
    "server/text",
    "client/acks.py",
    "client/address.py",
    "client/captions.py",
    "client/cli/encodings.py",
    "client/cli/text_reader.py",
    "client/decode.py",
    "client/durations.py",
    "client/effects.py",
    "client/errors.py",
    "client/items.py",
    "client/continuing.py",
    "client/line.py",
    "client/saved.py",
    "client/cli/ledger.py",
    "client/outbox.py",
    "client/receiving.py",
    "client/reconnecting.py",
    "client/transcript.py",
    "client/writing.py",
    "client/playout.py",
    "client/sending.py",
    "client/session.py",
    "client/splice.py",
    "client/statistics.py",
    "client/timeline.py",
    "client/tracking.py",
    "client/watchdog.py",
)
IMPURE_MODULES = {
    "asyncio", "concurrent", "multiprocessing", "queue", "sched", "select", "selectors", "signal", "socket", "ssl",
    "subprocess", "threading", "time", "uvloop", "websockets", "uvicorn", "starlette", "httptools",
}  # fmt: skip
ALLOWED = {
    ("protocol/media/opus.py", "threading"),  # a lock, so that two threads do not load libopus at once
}
SHELLS = ("server.app", "server.cluster", "server.gateway", "server.running")

# Modules that speak to a person at a terminal.
COMMAND_LINE = (
    "client/__main__.py",
    "client/cli",
    "server/__main__.py",
    "server/doctor.py",
    "server/engines/cosyvoice/parity",
    "server/engines/embedded/__main__.py",
    "server/jobs/command.py",
)

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


def nodes(tree: ast.AST, *, for_types: bool) -> Iterator[ast.AST]:
    """Everything in a module; without `for_types` less what only a type checker reads."""
    yield tree
    children = ast.iter_child_nodes(tree)
    if not for_types and isinstance(tree, ast.If) and ast.unparse(tree.test) == "TYPE_CHECKING":
        children = iter(tree.orelse)
    for node in children:
        yield from nodes(node, for_types=for_types)


def imports(tree: ast.Module, *, for_types: bool = True) -> Iterator[tuple[int, str]]:
    """The line and full name of everything imported, wherever in the module; `from a import b` gives `a.b`."""
    for node in nodes(tree, for_types=for_types):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def module_file(name: str) -> Path | None:
    """The file of a module or package of ours; of `a.b.c` where `c` is a name in `a.b`, the one of `a.b`."""
    while name.split(".")[0] in OURS:
        stem = ROOT / name.replace(".", "/")
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if path.is_file():
                return path
        name = name.rpartition(".")[0]
    return None


def needed_modules(path: Path) -> dict[Path, Path]:
    """Every module of ours that is loaded with this one, itself included, and which other one asks for it."""
    found, waiting = {path: path}, [path]
    while waiting:
        importer = waiting.pop()
        for _, name in imports(parse(importer), for_types=False):
            parts = name.split(".")
            for length in range(1, len(parts) + 1):  # a package is loaded before what is in it
                needed = module_file(".".join(parts[:length]))
                if needed is not None and needed not in found:
                    found[needed] = importer
                    waiting.append(needed)
    return found


def is_inside(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@cache
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
    assert python_files(place), f"{place} does not exist"
    wrong = [
        f"{name_of(needed)}:{line} imports {module} ({name_of(path)} needs it, through {name_of(importer)})"
        for path in python_files(place)
        for needed, importer in needed_modules(path).items()
        for line, module in imports(parse(needed), for_types=False)
        if module.split(".")[0] in IMPURE_MODULES or any(is_inside(module, shell) for shell in SHELLS)
        if (name_of(needed), module) not in ALLOWED
    ]
    assert not wrong, "\n".join(wrong)


def test_modules_that_claim_to_be_pure_are_checked() -> None:
    checked = set(python_files(*PURE))
    claiming = {
        path for path in python_files(*OURS) if re.search(r"(^|\W)Pure\b", ast.get_docstring(parse(path)) or "")
    }
    assert not {name_of(path) for path in claiming - checked}


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


def public_without_docstring(tree: ast.AST) -> Iterator[str]:
    """Public classes, functions and methods that do not say what they do."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            if not ast.get_docstring(node):
                yield f"{node.lineno} {node.name}"
            if isinstance(node, ast.ClassDef):
                yield from public_without_docstring(node)


@pytest.mark.parametrize("package", ["client", "protocol", "bench", "deploy"])
def test_everything_public_says_what_it_does(package: str) -> None:
    silent = [
        f"{name_of(path)}:{name}" for path in python_files(package) for name in public_without_docstring(parse(path))
    ]
    assert not silent, "\n".join(silent)


def test_no_text_needs_a_list_that_is_not_here() -> None:
    label = re.compile(r"\b[Cc]ases? [A-Z]{1,2}-\d")
    wrong = [
        f"{name_of(path)}:{number}"
        for path in python_files(*OURS, "bench", "deploy", "tests")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if label.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_top_level_folders_are_the_documented_ones() -> None:
    found = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    built = {name for name in found if name in {"build", "dist"} or name.endswith(".egg-info")}
    assert found - built - TOP_LEVEL_FOLDERS == set()


def test_the_checks_see_what_they_forbid() -> None:
    source = "import time\nfrom server import gateway\ndef f():\n    from asyncio import sleep\n"
    assert list(imports(ast.parse(source))) == [(1, "time"), (2, "server.gateway"), (4, "asyncio.sleep")]
    guarded = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import asyncio\nelse:\n    import queue\n"
    assert [name for _, name in imports(ast.parse(guarded))] == ["typing.TYPE_CHECKING", "asyncio", "queue"]
    assert [name for _, name in imports(ast.parse(guarded), for_types=False)] == ["typing.TYPE_CHECKING", "queue"]
    assert module_file("client.errors.ServerLost") == ROOT / "client/errors.py"
    assert module_file("json.loads") is None
    shell = needed_modules(ROOT / "client/shell.py")
    assert shell[ROOT / "client/sending.py"] in {ROOT / "client/session.py", ROOT / "client/utterance.py"}
    assert ROOT / "client/handshake.py" in shell
    assert is_inside("server.gateway.http", "server.gateway")
    assert not is_inside("server.gateways", "server.gateway")
    assert len(python_files("protocol", "server")) > 5
