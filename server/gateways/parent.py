"""The process that a user starts for several gateways: the port, the workers if there are any, and the supervisor.

It loads no engine and serves nothing itself.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib import import_module

import structlog

from server.child_processes import private_folder
from server.gateway.auth import read_secret
from server.gateway.binding import open_sockets
from server.gateway.self_signed import certified
from server.gateways.names import MAX_NAME
from server.gateways.shares import share_of
from server.gateways.supervisor import GatewayFailed, Supervisor
from server.notify import ServiceManager
from server.observe.logs import configure_logs
from server.open_files import raise_file_limit
from server.settings import Settings
from server.signals import end_at_once, on_stop_signals

log = structlog.stdlib.get_logger("cosystream.gateways")


def run(settings: Settings) -> int:
    """Run a server of several gateways; the exit status is returned."""
    configure_logs(settings.log_format, settings.log_level)
    too_few_files = raise_file_limit(share_of(settings, settings.gateways), settings.max_sessions)
    for warning in (*settings.warnings, too_few_files):
        if warning:
            log.warning(warning)
    try:
        asyncio.run(_serve(settings, ServiceManager.of(os.environ)))
    except (OSError, ValueError, GatewayFailed) as error:
        log.error("the server cannot run", reason=" ".join(str(error).split()))
        log.debug("where that came from", exc_info=error)
        return 1
    return 0


async def _serve(settings: Settings, manager: ServiceManager) -> None:
    stop = asyncio.Event()
    token_secret = read_secret(settings.token_secret)
    supervisor: Supervisor | None = None

    def at_once() -> None:
        if supervisor is not None:
            supervisor.kill_all()
        end_at_once()

    on_stop_signals(stop, at_once)
    sockets = await open_sockets(settings.hosts, settings.port)
    folder = private_folder(MAX_NAME)
    try:
        with manager.watched():
            async with certified(settings) as settings, _workers(settings, stop) as workers:
                if not stop.is_set():
                    supervisor = Supervisor(settings, sockets, folder, stop, workers, manager, token_secret)
                    await supervisor.run()
    finally:
        for sock in sockets:
            sock.close()
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def _workers(settings: Settings, stop: asyncio.Event) -> AsyncIterator[Sequence[str]]:
    """The sockets of the worker processes, while they run; of none, where the settings want none.

    Raises GatewayFailed where no worker can start.
    """
    if not settings.workers:
        yield ()
        return
    # Late: these bring libraries that a parent without workers has no use for.
    fault = import_module("server.engines.base").EngineError
    workers = import_module("server.cluster.opening").worker_processes(settings)
    starting = asyncio.create_task(workers.start(), name="start workers")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
        yield workers.paths
    except fault as error:
        raise GatewayFailed(str(error)) from error
    finally:
        starting.cancel()
        stopping.cancel()
        await asyncio.gather(starting, stopping, return_exceptions=True)
        await workers.stop()
