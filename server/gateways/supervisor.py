"""The parent of several gateways: opens the port, starts them, says who lives, starts them again, and stops them.

It serves nothing itself and loads no engine. A gateway that dies is started again, with growing pauses; but where one
cannot start to begin with, the whole server does not, and says why in one line.
"""

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from server.child_processes import command, environment, how_it_ended
from server.gateway.auth import new_secret
from server.gateway.binding import Address
from server.gateway.own_names import pages_elsewhere
from server.gateways.control import CannotStart, Launch, Ready, members_line, pack_launch, parse_report
from server.gateways.loads import Loads
from server.gateways.names import NONCE_BYTES, gateway_name, index_of
from server.gateways.shares import share_of
from server.notify import ServiceManager
from server.settings import Settings

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 10.0
GOOD_LIFE_S: Final = 30.0  # whoever lived so long starts again without delay
SILENT_S: Final = 20.0  # without a word from a gateway that was ready: its event loop hangs
STOP_GRACE_S: Final = 15.0  # beyond `drain_timeout_s`, then gateways are killed
MAX_UNREAD_BYTES: Final = 262_144  # of what a gateway was told: it is frozen, and not to be waited for

log = structlog.stdlib.get_logger("cosystream.gateways")


class GatewayFailed(Exception):
    """A gateway cannot start; the text is one line for the user."""


class Supervisor:
    """See the module text. `run` returns after `stop` was set."""

    def __init__(
        self,
        settings: Settings,
        sockets: Sequence[socket.socket],
        folder: Path,
        stop: asyncio.Event,
        workers: Sequence[str] = (),
        manager: ServiceManager | None = None,
        token_secret: bytes | None = None,
    ) -> None:
        """Inside the running event loop. `sockets` listen; `folder` is private and takes the gateways' own sockets;
        `workers` are the sockets of worker processes; `manager` hears when all gateways are ready, and when they stop;
        `token_secret` signs tokens for browsers, None is a new one.
        """
        self.settings = settings
        self._manager = manager or ServiceManager()
        self.stop = stop
        self._workers = tuple(workers)
        self._token_secret = token_secret or new_secret()
        self._share = share_of(settings, settings.gateways)
        self._sockets = sockets
        self._folder = folder
        self._loads_file = Loads.make_file(settings.gateways)
        self._loads = Loads(self._loads_file, settings.gateways)
        self._living: dict[str, asyncio.StreamWriter | None] = {}  # what leads to them; None: on its way there
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._ready: dict[int, Ready] = {}  # what was ready once, by place
        self._all_ready = asyncio.Event()

    async def run(self) -> None:
        """Keep all gateways going until `stop`. Raises GatewayFailed where one cannot start to begin with."""
        keeping = [
            asyncio.create_task(self._keep(index), name=f"gateway {index}")
            for index in range(1, self.settings.gateways + 1)
        ]
        announcing = asyncio.create_task(self._announce(), name="announce")
        stopping = asyncio.create_task(self.stop.wait(), name="stop")
        try:
            await asyncio.wait((*keeping, stopping), return_when=asyncio.FIRST_COMPLETED)
            self.stop.set()
            self._manager.stopping("stopping", self.settings.drain_timeout_s + 2 * STOP_GRACE_S)
            await self._end_all(keeping)
        finally:
            for task in (*keeping, announcing, stopping):
                task.cancel()
            results = await asyncio.gather(*keeping, announcing, stopping, return_exceptions=True)
            os.close(self._loads_file)
        for result in results:
            if isinstance(result, Exception):
                raise result
        if self._all_ready.is_set():
            log.info("stopped")

    async def ready(self) -> None:
        """Return when every gateway was ready."""
        await self._all_ready.wait()

    def pids(self) -> dict[int, int]:
        """The processes that live now, by place."""
        return {index_of(name): process.pid for name, process in self._processes.items()}

    async def _announce(self) -> None:
        await self.ready()
        ready = self._ready[1]
        secure = self.settings.secure
        for sock in self._sockets:
            address = Address(*sock.getsockname()[:2])
            others = pages_elsewhere(address, secure=secure)
            log.info(
                "ready",
                url=f"{'https' if secure else 'http'}://{address}",
                page=address.page(secure=secure),
                **({"page_elsewhere": ",".join(others)} if others else {}),
                engine=ready.engine,
                voices=ready.voices,
                store=self.settings.store,
                gateways=self.settings.gateways,
            )
        self._manager.ready(f"ready, {self.settings.gateways} gateways")

    # ---- one gateway ----

    async def _keep(self, index: int) -> None:
        """Start the gateway in this place, again and again."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE_S
        while True:
            began = loop.time()
            try:
                how = await self._live(index, gateway_name(index, secrets.token_hex(NONCE_BYTES)))
            except OSError as error:  # no memory, no process, no descriptor: there may be one soon
                how = f"gateway {index} cannot be started: {error.strerror or error}"
            if self.stop.is_set():
                return
            if index not in self._ready:
                raise GatewayFailed(how)
            if loop.time() - began >= GOOD_LIFE_S:
                pause = FIRST_PAUSE_S
            log.error(
                "a gateway ended", gateway=index, how=how.removeprefix(f"gateway {index} "), starts_again_in_s=pause
            )
            try:
                async with asyncio.timeout(pause):
                    await self.stop.wait()
                return
            except TimeoutError:
                pause = min(2 * pause, LONGEST_PAUSE_S)

    async def _live(self, index: int, name: str) -> str:
        """One process, from its start to its end; how it ended."""
        self._living[name] = None
        self._tell_all()  # the others know it before it can have a session
        theirs: socket.socket | None = None
        try:
            ours, theirs = socket.socketpair()
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            try:
                process = await self._start(theirs)
                self._processes[name] = process
                if self.stop.is_set():
                    self._signal(name, signal.SIGTERM)
                theirs.close()
                writer.write(pack_launch(self._launch(name)))
                self._living[name] = writer
                self._tell_all()
                reason = await self._listen(index, name, reader)
                status = await process.wait()
            finally:
                writer.transport.abort()
            return reason or f"gateway {index} {how_it_ended(status)}"
        finally:
            if theirs is not None:
                theirs.close()
            self._processes.pop(name, None)
            # It is gone, and so are its locks: the others may claim its sessions.
            (self._folder / name).unlink(missing_ok=True)
            self._loads.clear(index)
            del self._living[name]
            self._tell_all()

    async def _start(self, control: socket.socket) -> asyncio.subprocess.Process:
        inherited = [sock.fileno() for sock in (*self._sockets, control)]
        return await asyncio.create_subprocess_exec(
            *command("server.gateways.process"),
            str(control.fileno()),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(*inherited, self._loads_file),
            env=environment(),
            start_new_session=True,  # see `child_processes`
        )

    def _launch(self, name: str) -> Launch:
        return Launch(
            settings=self._share,
            name=name,
            gateways=self.settings.gateways,
            folder=self._folder,
            sockets=tuple(sock.fileno() for sock in self._sockets),
            loads=self._loads_file,
            workers=self._workers,
            token_secret=self._token_secret,
        )

    async def _listen(self, index: int, name: str, reader: asyncio.StreamReader) -> str:
        """Hear what it reports until it ends; why it cannot start, empty where it says nothing about that."""
        reason = ""
        patience: float | None = None  # it loads as long as it must
        try:
            while line := await asyncio.wait_for(reader.readline(), patience):
                match parse_report(line):
                    case Ready() as ready:
                        level = "info" if index in self._ready else "debug"  # of the first ones `ready` tells
                        getattr(log, level)("a gateway is ready", gateway=name, pid=self._processes[name].pid)
                        self._ready[index] = ready
                        patience = SILENT_S
                        if len(self._ready) == self.settings.gateways:
                            self._all_ready.set()
                    case CannotStart() as cannot:
                        reason = cannot.reason
        except TimeoutError:
            if not self.stop.is_set():  # what stops in order is given its own time
                log.error("a gateway hangs and is killed", gateway=name, silent_s=SILENT_S)
                self._signal(name, signal.SIGKILL)
        except OSError:
            pass  # it was killed
        return reason

    def _tell_all(self) -> None:
        line = members_line(list(self._living))
        for name, writer in self._living.items():
            if writer is None or writer.transport.is_closing():
                continue
            if writer.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
                log.error("a gateway hears nothing and is killed", gateway=name)
                self._signal(name, signal.SIGKILL)
            else:
                writer.write(line)

    # ---- the end ----

    async def _end_all(self, keeping: list[asyncio.Task[None]]) -> None:
        """Have them stop in order, side by side; whoever does not is killed."""
        for name in list(self._processes):
            self._signal(name, signal.SIGTERM)
        _, late = await asyncio.wait(keeping, timeout=self.settings.drain_timeout_s + STOP_GRACE_S)
        if late:
            log.warning("gateways did not stop and are killed", count=len(self._processes))
            self.kill_all()
            await asyncio.wait(late, timeout=STOP_GRACE_S)

    def kill_all(self) -> None:
        """End every gateway at once."""
        for name in list(self._processes):
            self._signal(name, signal.SIGKILL)

    def _signal(self, name: str, number: signal.Signals) -> None:
        try:
            self._processes[name].send_signal(number)
        except (KeyError, ProcessLookupError):
            pass  # it has just ended
