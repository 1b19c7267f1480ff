"""Runs a test on each event loop that the server may have: asyncio's own and uvloop."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest
import uvloop

LOOPS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def each_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """An asynchronous test, once on each loop."""

    @functools.wraps(test)
    def run(loop_name: str, **arguments: Any) -> None:
        with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
            runner.run(test(**arguments))

    parameter = inspect.Parameter("loop_name", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.signature(test)
    run.__signature__ = signature.replace(parameters=[parameter, *signature.parameters.values()])  # type: ignore[attr-defined]
    parametrised: Callable[..., None] = pytest.mark.parametrize("loop_name", LOOPS)(run)
    return parametrised
