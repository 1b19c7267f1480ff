"""A process that does work for a benchmark, so that what it costs is not counted, nor in the way of what is measured.

with helper(Crowd) as many:
    many.ask("idle", port, 2_000)
"""

import asyncio
import multiprocessing
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Final

from bench._common import run

PATIENCE_S: Final = 120.0
STOP_S: Final = 10.0


class Helper:
    """In the parent: asks for methods of the object in the child."""

    def __init__(self, pipe: "Connection[Any, Any]") -> None:
        self._pipe = pipe
        self._what = ""

    def ask(self, what: str, *arguments: Any) -> Any:
        """Call the coroutine method `what` and wait for its result. Raises RuntimeError with what went wrong there."""
        self.begin(what, *arguments)
        return self.result(PATIENCE_S)

    def begin(self, what: str, *arguments: Any) -> None:
        """Call it and do not wait; `result` must be asked for before anything else is."""
        self._what = what
        self._pipe.send((what, arguments))

    @property
    def done(self) -> bool:
        """Whether the result is there."""
        return self._pipe.poll()

    def result(self, timeout_s: float) -> Any:
        """Of what was begun. Raises RuntimeError."""
        if not self._pipe.poll(timeout_s):
            raise RuntimeError(f"`{self._what}` took longer than {timeout_s:.0f} s")
        fine, answer = self._pipe.recv()
        if not fine:
            raise RuntimeError(f"`{self._what}` failed: {answer}")
        return answer


@contextmanager
def helper(make: Callable[[], object], *, nice: int = 0) -> Iterator[Helper]:
    """A process with the object that `make` gives there, inside a running event loop. It ends with the block. `nice`:
    how far it stands back for others who want the processor, as if it ran elsewhere.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, make, nice), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Helper(ours)
    finally:
        ours.close()
        process.join(STOP_S)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(pipe: "Connection[Any, Any]", make: Callable[[], object], nice: int) -> None:
    os.nice(nice)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    run(_answer(pipe, make))


async def _answer(pipe: "Connection[Any, Any]", make: Callable[[], object]) -> None:
    there = make()
    while True:
        try:
            what, arguments = await asyncio.to_thread(pipe.recv)
        except EOFError:
            return
        try:
            answer = True, await getattr(there, what)(*arguments)
        except Exception as error:  # noqa: BLE001  # whatever it is, the parent must hear of it
            answer = False, f"{type(error).__name__}: {error}"
        pipe.send(answer)
