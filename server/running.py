"""A server as a process: it runs until it is told to stop, and says in one line why it cannot."""

import asyncio
import os
from collections.abc import Callable
from typing import Final

import structlog
import uvloop

from server.app import Server
from server.background import end_process, spare_garbage_collector
from server.engines import loading
from server.gateway.own_names import pages_elsewhere
from server.gateways.place import Place
from server.jobs import FolderError
from server.notify import ServiceManager
from server.observe.logs import configure_logs, log_loop_fault
from server.open_files import raise_file_limit
from server.settings import Settings
from server.signals import end_at_once, on_stop_signals
from server.store import StoreError
from server.voices import VoicesFailed

log = structlog.get_logger(__name__)

STOP_S: Final = 15.0
"""A stop takes `drain_timeout_s` and, where peers, disk and engine all hang, about so long beside it."""
START_ERRORS: Final = (*loading.START_ERRORS, LookupError, StoreError, FolderError, VoicesFailed)
"""Why a server cannot start: in one line for the user."""


async def serve(
    settings: Settings,
    started: Callable[[Server], None] | None = None,
    *,
    place: Place | None = None,
    stop: asyncio.Event | None = None,
    manager: ServiceManager | None = None,
) -> None:
    """Run a server until SIGTERM or SIGINT, or until `stop` is set.

    `started` is called when it is ready; `manager` hears that and when it stops.
    """
    manager = manager or ServiceManager()
    with manager.watched():
        await _serve(settings, started, place, stop or asyncio.Event(), manager)


async def _serve(
    settings: Settings,
    started: Callable[[Server], None] | None,
    place: Place | None,
    stop: asyncio.Event,
    manager: ServiceManager,
) -> None:
    server = Server(settings, place)
    asyncio.get_running_loop().set_exception_handler(log_loop_fault)
    # One of several gateways is ended by its parent, which hears the signals, too.
    on_stop_signals(stop, end_at_once if place is None else lambda: None)
    starting = asyncio.ensure_future(server.start())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            spare_garbage_collector()
            if started:
                started(server)
            assert server.listener is not None
            manager.ready(f"ready at {', '.join(server.listener.urls)}")
            await stopping
    finally:
        manager.stopping("stopping", settings.drain_timeout_s + STOP_S)
        starting.cancel()
        stopping.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
        await server.stop()


def run(settings: Settings) -> int:
    """Run the server in this process; the exit status is returned."""
    configure_logs(settings.log_format, settings.log_level)
    for warning in (*settings.warnings, raise_file_limit(settings)):
        if warning:
            log.warning(warning)
    try:
        uvloop.run(serve(settings, _announce, manager=ServiceManager.of(os.environ)))
    except START_ERRORS as error:
        log.error("the server cannot run", reason=" ".join(str(error).split()))
        log.debug("where that came from", exc_info=error)
        return end_process(1)
    return end_process(0)


def _announce(server: Server) -> None:
    assert server.listener is not None
    assert server.pool is not None
    for url, address in zip(server.listener.urls, server.listener.addresses, strict=True):
        others = pages_elsewhere(address, secure=server.settings.secure)
        log.info(
            "ready",
            url=url,
            page=address.page(secure=server.settings.secure),
            **({"page_elsewhere": ",".join(others)} if others else {}),
            engine=server.settings.engine,
            voices=len(server.pool.capabilities.voices),
            store=server.settings.store,
        )
