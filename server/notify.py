"""Tells the service manager how this process is: systemd's `sd_notify` protocol, which other managers speak too.

A datagram of `NAME=value` lines to the socket that `NOTIFY_SOCKET` names (sd_notify(3)). Without that variable nothing
happens.
"""

import asyncio
import os
import socket
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Final, Self

import structlog

log = structlog.get_logger(__name__)

SOCKET_ENV: Final = "NOTIFY_SOCKET"
WATCHDOG_ENV: Final = "WATCHDOG_USEC"
WATCHDOG_PID_ENV: Final = "WATCHDOG_PID"
TIMEOUT_S: Final = 0.5  # a datagram waits only where the manager has not read ten before


class ServiceManager:
    """Whoever started this process. `watchdog_s`: it ends a process that is not `watched` for so long; None: it does
    not.
    """

    def __init__(self, address: str = "", watchdog_s: float | None = None) -> None:
        self.watchdog_s = watchdog_s if address else None
        self._address = "\0" + address[1:] if address.startswith("@") else address  # "@": an abstract socket

    @classmethod
    def of(cls, environ: MutableMapping[str, str]) -> Self:
        """The one that the environment names. Takes the variables out: they are not meant for our child processes."""
        address = environ.pop(SOCKET_ENV, "")
        period, pid = environ.pop(WATCHDOG_ENV, ""), environ.pop(WATCHDOG_PID_ENV, "")
        wanted = period.isdecimal() and int(period) > 0 and pid in ("", str(os.getpid()))
        return cls(address, int(period) / 1_000_000 if wanted else None)

    def ready(self, status: str) -> None:
        """The server can speak. `status`: a line for people."""
        self._tell("READY=1", f"STATUS={status}")

    def stopping(self, status: str, within_s: float) -> None:
        """The server stops, and takes so long at most: more than the manager's own bound where that is less."""
        self._tell("STOPPING=1", f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={round(within_s * 1_000_000)}")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside the running event loop: meanwhile the manager hears in time that the loop turns. One that hangs, with
        whatever hangs in it, says nothing more and is ended.
        """
        if self.watchdog_s is None:
            yield
            return
        loop, period = asyncio.get_running_loop(), self.watchdog_s / 2
        timer: asyncio.Handle | None = None

        def alive() -> None:
            nonlocal timer
            self._tell("WATCHDOG=1")
            timer = loop.call_later(period, alive)

        alive()
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.settimeout(TIMEOUT_S)
                channel.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:  # a manager that does not listen must not keep anybody from being served
            log.warning("the service manager cannot be told", reason=str(error), message=lines[0])
