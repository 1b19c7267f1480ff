"""SIGTERM and SIGINT: the first one begins the end, a second one is the end."""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

import structlog

log = structlog.get_logger(__name__)

ECHO_S: Final = 0.2
"""Repeats within this time are no second signal: a terminal signals the whole process group, and programs in between
(`npm`, `uv`, an init in a container) pass the same one on once more."""


def on_stop_signals(stop: asyncio.Event, at_once: Callable[[], None]) -> None:
    """Inside the running event loop: set `stop` at the first signal, and call `at_once` at another one."""
    loop = asyncio.get_running_loop()
    first: float | None = None

    def signalled() -> None:
        nonlocal first
        if first is None:
            first = loop.time()
            stop.set()
        elif loop.time() - first > ECHO_S:
            at_once()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)


def end_at_once() -> None:
    """End this process without waiting for anybody: what a store keeps is on disk, as with `kill -9`."""
    log.warning("stopped at once", reason="a second signal")
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
