"""How far a long fetch is: a line that changes on a terminal, else a line in the log for each tenth."""

import logging
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

_EVERY_S: Final = 0.5
_log = logging.getLogger(__name__)


class Progress:
    """While it is entered, it says how many of `total` bytes `done()` counts."""

    def __init__(self, what: str, total: int, done: Callable[[], int]) -> None:
        self._what, self._total, self._done = what, max(1, total), done
        self._tenth = -1
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="model-progress", daemon=True)
        self._terminal = sys.stderr.isatty()
        self._begun, self._first = time.monotonic(), done()

    def __enter__(self) -> Self:
        self._tell()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._tell()
        if self._terminal:
            sys.stderr.write("\n")

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_S):
            self._tell()

    def _tell(self) -> None:
        done = min(self._done(), self._total)
        percent = 100 * done // self._total
        if self._terminal:
            rate = (done - self._first) / max(0.001, time.monotonic() - self._begun)
            left = f", {(self._total - done) / rate:.0f} s left" if rate > 0 and done < self._total else ""
            line = f"{self._what}: {percent:3} % of {self._total / 1e6:,.0f} MB, {rate / 1e6:.1f} MB/s{left}"
            sys.stderr.write(f"\r{line:<100}")
            sys.stderr.flush()
        elif percent // 10 > self._tenth:
            self._tenth = percent // 10
            _log.info("%s: %d %% of %.0f MB", self._what, percent, self._total / 1e6)
