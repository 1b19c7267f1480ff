"""Runs worker processes: starts them, starts them again when they end, and leaves none behind.

Each listens on a unix socket in a folder that only this user may enter. The sockets are made here and inherited, so
that whoever connects while a worker starts, or is being replaced, only waits a little longer. Each worker's standard
input is a pipe whose other end is here: when this process dies, however it dies, its workers end, too.
"""

import asyncio
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
import structlog

from server.child_processes import command, environment, how_it_ended, private_folder
from server.cluster.workers.config import WorkerConfig
from server.cluster.workers.restarts import Backoff
from server.engines.base import EngineError

log = structlog.get_logger(__name__)

MODULE: Final = "server.cluster.workers"
START_S: Final = 600.0  # until a worker is ready; the first one may have to build its voices
STOP_S: Final = 3.0  # from SIGTERM to SIGKILL
BACKLOG: Final = 128  # gateways that wait for a worker


@dataclass(eq=False, slots=True)
class _Worker:
    """One worker's place: whichever process is in it now."""

    number: int
    listener: socket.socket
    path: str
    device: str | None
    backoff: Backoff
    process: asyncio.subprocess.Process | None = None
    ready_at: float | None = None


class WorkerProcesses:
    """See the module text. Make it inside the running event loop; after `start`, and where that fails, `stop` it."""

    def __init__(
        self,
        config: WorkerConfig,
        count: int,
        *,
        devices: Sequence[str] = (),
        backoff: Callable[[], Backoff] = Backoff,
    ) -> None:
        """`devices`: for CUDA_VISIBLE_DEVICES, given to the workers in turn.

        Raises OSError where no socket can be made.
        """
        self._config = config
        self._stopping = asyncio.Event()
        self._first_ready = asyncio.get_running_loop().create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._folder = private_folder(len(str(count)))
        self._workers: list[_Worker] = []
        try:
            for number in range(count):
                path = str(self._folder / f"{number}")
                device = devices[number % len(devices)] if devices else None
                self._workers.append(_Worker(number, _listen(path), path, device, backoff()))
        except OSError:
            self._clean_up()
            raise

    @property
    def paths(self) -> tuple[str, ...]:
        """Where the workers listen; the same for as long as this lives."""
        return tuple(worker.path for worker in self._workers)

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that live now and are ready."""
        return tuple(
            worker.process.pid
            for worker in self._workers
            if worker.process is not None and worker.process.returncode is None and worker.ready_at is not None
        )

    async def start(self) -> None:
        """Start all of them; returns when the first one is ready.

        Raises EngineError where one cannot start before any other has: the engine, or a setting of it, is wrong. Later
        such a worker is only started again, after a while. Raises ValueError for an engine option that cannot be told
        to another process.
        """
        self._config.line(number=0, listener=0)  # a fault of it is nothing to start again and again for
        self._tasks = [asyncio.create_task(self._run(worker)) for worker in self._workers]
        await asyncio.shield(self._first_ready)

    async def stop(self, grace_s: float = STOP_S) -> None:
        """End all of them: SIGTERM, and SIGKILL for those that take longer than `grace_s`. Remove the sockets."""
        self._stopping.set()
        for worker in self._workers:
            _send(worker.process, signal.SIGTERM)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace_s)
            for worker in self._workers:
                _send(worker.process, signal.SIGKILL)
            await asyncio.gather(*self._tasks)
        self._first_ready.cancel()
        self._clean_up()

    def _clean_up(self) -> None:
        for worker in self._workers:
            worker.listener.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _run(self, worker: _Worker) -> None:
        """One process after the other in the worker's place, until `stop`."""
        while not self._stopping.is_set():
            fault = await self._run_once(worker)
            if self._stopping.is_set():
                return
            if not self._first_ready.done():
                self._first_ready.set_exception(EngineError(fault))
                return
            delay_s = worker.backoff.next_delay_s(time.monotonic() - (worker.ready_at or time.monotonic()))
            log.warning("a worker ended", worker=worker.number, reason=fault, restart_in_s=delay_s)
            try:
                await asyncio.wait_for(self._stopping.wait(), delay_s)
            except TimeoutError:
                pass

    async def _run_once(self, worker: _Worker) -> str:
        """A process from its start to its end; why it ended."""
        worker.ready_at = None
        try:
            process = await self._spawn(worker)
        except OSError as error:
            return f"no worker process can be started: {error}"
        worker.process = process
        if self._stopping.is_set():
            _send(process, signal.SIGTERM)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(self._config.line(number=worker.number, listener=worker.listener.fileno()))
            try:
                report = _parse(await asyncio.wait_for(process.stdout.readline(), START_S))
            except TimeoutError:
                report = {"error": f"a worker was not ready within {START_S:.0f} s"}
                _send(process, signal.SIGKILL)
            if "ready" in report:
                worker.ready_at = time.monotonic()
                log.info("a worker is ready", worker=worker.number, pid=process.pid, device=worker.device)
                if not self._first_ready.done():
                    self._first_ready.set_result(None)
            status = await process.wait()
        finally:
            process.stdin.close()
        return str(report.get("error") or _ending(status, ready=worker.ready_at is not None))

    async def _spawn(self, worker: _Worker) -> asyncio.subprocess.Process:
        device = {} if worker.device is None else {"CUDA_VISIBLE_DEVICES": worker.device}
        return await asyncio.create_subprocess_exec(
            *command(MODULE),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(worker.listener.fileno(),),
            env=environment() | device,
        )


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _send(process: asyncio.subprocess.Process | None, number: signal.Signals) -> None:
    """To a process that was started here and has not been waited for, so its number is still its own."""
    if process is not None and process.returncode is None:
        try:
            process.send_signal(number)
        except ProcessLookupError:
            pass


def _parse(line: bytes) -> dict[str, Any]:
    """What a worker says of its start; empty where it ended without a word."""
    try:
        report: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError:
        return {}
    return report


def _ending(status: int, *, ready: bool) -> str:
    when = "" if ready else " while it started"
    if status == os.EX_SOFTWARE:
        return "a step of its engine hung"
    return f"a worker process {how_it_ended(status)}{when}"
