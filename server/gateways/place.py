"""Where one gateway of several stands: its name, the sockets it shares, the others, its share of the connections."""

import os
import socket
from typing import Final

from server.gateways.control import Launch
from server.gateways.loads import Loads
from server.gateways.siblings import Siblings

BACKLOG: Final = 1024
STEP_ASIDE_S: Final = 0.002  # some wake-ups of another process
NOT_READY_S: Final = 0.1  # others can serve, and we cannot


class Place:
    """Made from a `Launch`, inside the running event loop."""

    def __init__(self, launch: Launch) -> None:
        """Takes over what was inherited."""
        self.siblings = Siblings(launch.name, launch.folder)
        self.gateways = launch.gateways
        self.workers = launch.workers
        self.token_secret = launch.token_secret
        self.sockets = tuple(socket.socket(fileno=descriptor) for descriptor in launch.sockets)
        self._loads = Loads(launch.loads, launch.gateways)
        os.close(launch.loads)
        self._connections = 0
        self._serves = False

    @property
    def name(self) -> str:
        """This gateway's name."""
        return self.siblings.name

    def open_private(self) -> socket.socket:
        """A socket that listens for the other gateways. Only when it is served at once: whoever finds it waits for an
        answer. Raises OSError.
        """
        private = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        private.setblocking(False)
        private.bind(str(self.siblings.socket_of(self.name)))
        private.listen(BACKLOG)
        return private

    def begin(self) -> None:
        """It can speak: connections may come."""
        self._serves = True
        self.on_count(self._connections)

    def retire(self) -> None:
        """It stops: the others should take what comes."""
        self._serves = False
        self._loads.clear(self.siblings.index)

    def leave(self, *, orphaned: bool) -> None:
        """It has given its sessions up: the others need not ask it any more. Where the parent is gone (`orphaned`), the
        last one removes the folder.
        """
        own = self.siblings.socket_of(self.name)
        own.unlink(missing_ok=True)
        if orphaned:
            try:
                own.parent.rmdir()
            except OSError:
                pass  # others are still there

    # What the listener asks (Share)

    def patience(self) -> float:
        """For how many seconds the next connection should be left to others."""
        index = self.siblings.index
        if self._serves:
            return 0.0 if self._loads.has_least(index) else STEP_ASIDE_S
        return NOT_READY_S if self._loads.others_serve(index) else 0.0

    def on_count(self, connections: int) -> None:
        """So many are open here."""
        self._connections = connections
        if self._serves:
            self._loads.set(self.siblings.index, connections)
