"""A worker process: one engine, served to gateways over a unix socket. Started by `WorkerProcesses`, never by hand.

Standard input has its configuration in one line and stays open for as long as the parent lives: its end is the
worker's end. Standard output gets one line when the worker is ready, or why it cannot be.
"""

import asyncio
import ctypes
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Final

import orjson
import structlog
import uvloop

from server.background import end_process, spare_garbage_collector
from server.cluster.in_process import InProcessPool
from server.cluster.workers.capabilities import describe
from server.cluster.workers.config import Assignment
from server.cluster.workers.service import WorkerService
from server.engines.base import Engine
from server.engines.context_cache import EngineContextCache
from server.engines.loading import START_ERRORS, start_engine
from server.observe.logs import configure_logs
from server.text.normaliser import warm_up as warm_up_text
from server.voices import VoiceStore, VoiceWatch

log = structlog.get_logger(__name__)

PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


def main() -> int:
    """Run a worker until it is told to end; its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal: the parent decides what follows
    report = _take_standard_output()
    die_with_parent()
    assignment = Assignment.parse(sys.stdin.buffer.readline())
    threading.Thread(target=_outlive_no_parent, name="lifeline", daemon=True).start()
    configure_logs(assignment.config.log_format, assignment.config.log_level)
    structlog.contextvars.bind_contextvars(worker=assignment.number)
    config = assignment.config
    context_cache = EngineContextCache(config.context_cache_blocks, config.context_cache_mb)
    voices = VoiceStore(Path(config.voices) if config.voices else None)
    try:
        engine = start_engine(config.engine, config.engine_options, context_cache, voices)
        described = describe(engine.capabilities)
        warm_up_text()
    except START_ERRORS as error:
        log.debug("where that came from", exc_info=error)
        _say(report, {"error": " ".join(str(error).split()) or type(error).__name__})
        return end_process(os.EX_CONFIG)
    uvloop.run(_serve(assignment, engine, context_cache, voices, described, report))
    return end_process(os.EX_OK)


async def _serve(
    assignment: Assignment,
    engine: Engine,
    context_cache: EngineContextCache,
    voices: VoiceStore,
    described: dict[str, object],
    report: int,
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    service = WorkerService(described)
    service.pool = pool = InProcessPool(
        engine,
        threads=assignment.config.threads,
        observer=service,
        step_timeout_s=assignment.config.step_timeout_s,
        on_hang=service.hung,
        context_cache=context_cache,
    )
    watch = VoiceWatch(voices if pool.capabilities.cloning else VoiceStore(None), pool.forget_voice)
    await pool.calibrate()
    spare_garbage_collector()
    listener = socket.socket(fileno=assignment.listener)
    await loop.create_unix_server(service.server, sock=listener)
    _say(report, {"ready": os.getpid()})
    log.debug("the worker is ready", pid=os.getpid())
    await stop.wait()
    service.leave()
    await service.drained()
    watch.close()
    await pool.close()
    # Here, because closing the server would remove the socket's path, where the next worker listens.
    end_process(os.EX_OK)


def _take_standard_output() -> int:
    """The descriptor to report on. Whatever a library prints goes to the logs instead."""
    report = os.dup(1)
    os.dup2(2, 1)
    return report


def _say(report: int, message: dict[str, object]) -> None:
    try:
        os.write(report, orjson.dumps(message) + b"\n")
    except BrokenPipeError:
        pass  # the parent is gone, and this process goes with it
    os.close(report)


def _outlive_no_parent() -> None:
    """Wait for the end of standard input, which is the parent's end, however it came; then end at once."""
    while os.read(0, 4096):
        pass
    os._exit(os.EX_OK)


def die_with_parent() -> None:
    """Have the kernel end this process with its parent, also while it is frozen or stuck in native code (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
