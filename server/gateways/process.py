"""One gateway of several: a server that shares its port, started by `supervisor.py` and never by hand.

Its one argument is the descriptor of its end of the control socket. When that ends it lets go of the port at once, and
ends in order.
"""

import asyncio
import socket
import sys

import structlog
import uvloop

from server.app import Server
from server.background import end_process
from server.gateways.control import (
    ALIVE_S,
    Alive,
    CannotStart,
    Launch,
    Ready,
    parse_members,
    receive_launch,
    report_line,
)
from server.gateways.place import Place
from server.observe.logs import configure_logs
from server.running import START_ERRORS, serve

log = structlog.get_logger(__name__)


def main() -> int:
    """Run a gateway until it is told to stop or its parent is gone; its exit status."""
    control = socket.socket(fileno=int(sys.argv[1]))
    try:
        launch = receive_launch(control)
    except EOFError:
        return 1
    configure_logs(launch.settings.log_format, launch.settings.log_level)
    structlog.contextvars.bind_contextvars(gateway=launch.name)
    try:
        uvloop.run(_run(launch, control))
    except START_ERRORS as error:
        log.debug("where that came from", exc_info=error)
        _report(control, CannotStart(" ".join(str(error).split()) or type(error).__name__))
        return end_process(1)
    return end_process(0)


async def _run(launch: Launch, control: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    place = Place(launch)
    stop = asyncio.Event()
    running: Server | None = None
    reader, writer = await asyncio.open_unix_connection(sock=control.dup())

    def ready(server: Server) -> None:
        nonlocal running
        running = server
        place.begin()
        assert server.pool is not None
        capabilities = server.pool.capabilities
        writer.write(report_line(Ready(capabilities.name, len(capabilities.voices))))
        say_alive()

    def say_alive() -> None:
        if not writer.transport.is_closing():
            writer.write(report_line(Alive()))
            loop.call_later(ALIVE_S, say_alive)

    def end(_: asyncio.Task[None]) -> None:
        stop.set()
        if running is not None and running.listener is not None:
            running.listener.stop_accepting()  # sessions have their time; the next server wants the port now

    following = asyncio.create_task(_follow(reader, place), name="control")
    following.add_done_callback(end)
    try:
        await serve(launch.settings, ready, place=place, stop=stop)
    finally:
        orphaned = following.done()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        writer.transport.abort()
        place.leave(orphaned=orphaned)


async def _follow(reader: asyncio.StreamReader, place: Place) -> None:
    """Hear who lives, until the parent is gone."""
    try:
        while line := await reader.readline():
            place.siblings.update(parse_members(line))
    except OSError:
        pass  # it was killed


def _report(control: socket.socket, report: CannotStart) -> None:
    try:
        control.setblocking(True)
        control.sendall(report_line(report))
    except OSError:
        pass  # the parent is gone, too


if __name__ == "__main__":
    sys.exit(main())
