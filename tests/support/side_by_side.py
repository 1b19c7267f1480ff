"""Two workers share the suite (pytest-xdist, `make test`): one computes, the other waits and measures time.

The first one is nice: it takes nothing from what the other measures, and has the processor while the other waits.
Whoever is done first goes on with modules that may take any time.
"""

import os
import shlex
import subprocess
import tempfile
from typing import Final, Self

COMPUTING: Final = "computing"
MEASURING: Final = "measuring"

_COMPUTING: Final = ("tests/unit/", "tests/quality/")

# Unit tests that hold to times of the clock.
UNIT_TESTS_THAT_MEASURE: Final = frozenset(
    f"tests/unit/{name}.py"
    for name in (
        "test_client_arguments", "test_client_state", "test_faulty_proxy", "test_notify", "test_observe_loop",
        "test_store", "test_store_bounds", "test_store_failures",
    )
)  # fmt: skip

# Modules that take long and hold to no short time: each is a unit of its own, for whichever worker is free.
PATIENT: Final = frozenset(
    f"tests/{name}.py"
    for name in (
        "fault/test_books", "fault/test_cut_boundaries", "fault/test_demo_drop", "fault/test_long_text",
        "integration/test_client_books", "integration/test_client_books_disturbed", "integration/test_client_files",
        "integration/test_codes", "integration/test_cosyvoice_server", "integration/test_dead_letters",
        "integration/test_dockerfile", "integration/test_embedded_engine", "integration/test_embedded_joins",
        "integration/test_embedded_reuse", "integration/test_log_privacy", "integration/test_recovering",
        "integration/test_recovering_restart", "integration/test_recovering_told", "integration/test_voices",
        "integration/test_voices_client", "web/test_node", "web/test_page_looks",
    )
)  # fmt: skip

NICENESS: Final = 19


def group_of(test: str) -> str:
    """Which tests run one after the other in one worker, by a test's node id. What nobody thought of is measured."""
    module = test.partition("::")[0]
    if module in PATIENT:
        return module
    return COMPUTING if module.startswith(_COMPUTING) and module not in UNIT_TESTS_THAT_MEASURE else MEASURING


class Politeness:
    """Makes a worker nice when its first computing test comes; it stays so, since few may take that back."""

    def __init__(self) -> None:
        self._nice = "PYTEST_XDIST_WORKER" not in os.environ  # alone, there is nobody to be nice to

    def before(self, test: str) -> None:
        """The worker runs this test next."""
        if not self._nice and group_of(test) == COMPUTING:
            os.nice(NICENESS)
            self._nice = True


class Beside:
    """A command that runs beside the tests, such as a check of types, within a `with`."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __enter__(self) -> Self:
        self._output = tempfile.TemporaryFile()  # no pipe, which could be full
        self._process = subprocess.Popen(
            shlex.split(self._command), stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT
        )
        return self

    def wait(self) -> tuple[bool, str]:
        """Whether it ended well, and what it said."""
        ended_well = self._process.wait() == 0
        self._output.seek(0)
        return ended_well, self._output.read().decode(errors="replace")

    def __exit__(self, *raised: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._output.close()
