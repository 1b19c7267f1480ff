"""Slow work beside the event loop, which must hold up neither that nor the end of the process."""

import asyncio
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """What `work` returns or raises. Unlike `asyncio.to_thread`, nothing waits for it once this is cancelled."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def deliver(value: T | None, error: BaseException | None) -> None:
        if result.done():
            return
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(value)  # type: ignore[arg-type]  # a T where there is no error

    def run() -> None:
        value, error = None, None
        try:
            value = work()
        except Exception as problem:  # noqa: BLE001  # whatever it is, it is the caller's
            error = problem
        try:
            loop.call_soon_threadsafe(deliver, value, error)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    threading.Thread(target=run, name=f"background {work}", daemon=True).start()
    return await result


def end_process(status: int) -> int:
    """`status`, for a `main` that returns; where a daemon thread still works, the process ends here.

    Such a thread may be inside native code (a model being loaded, a step that hangs), which crashes where the
    interpreter ends around it.
    """
    if any(thread.daemon for thread in threading.enumerate() if thread is not threading.current_thread()):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def spare_garbage_collector() -> None:
    """What is loaded by now stays until the end. Python's collector would look through all of it, again and again, and
    everything stands still meanwhile: 0.1 s with both embedded voices.
    """
    gc.freeze()
