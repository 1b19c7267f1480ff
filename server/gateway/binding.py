"""Opens the listening sockets for the hosts a user named, and says in one line why where that fails."""

import asyncio
import errno
import socket
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import structlog

_EVERYWHERE: Final = frozenset({"::", "*"})
_NO_IPV6: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})
_FREE_PORT_TRIES: Final = 10
_BACKLOG: Final = 1024

log = structlog.stdlib.get_logger("cosystream.gateway")


class Address(NamedTuple):
    """Where a listener can be reached."""

    host: str
    port: int

    def __str__(self) -> str:
        """As in a URL: IPv6 addresses in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def page(self, *, secure: bool) -> str:
        """What a person on this machine opens in a browser; one that listens everywhere is `localhost` there."""
        here = Address("localhost", self.port) if self.host in ("0.0.0.0", "::") else self
        return f"{'https' if secure else 'http'}://{here}/"


class ListenError(OSError):
    """A listening socket cannot be had; the text is one line for the user."""


async def open_sockets(hosts: Sequence[str], port: int) -> list[socket.socket]:
    """Listening sockets for all `hosts`, all on one port; `port` 0 finds one that is free on all of them.

    Where IPv6 is off, `::` and `::1` become IPv4 with a warning, and `localhost` is IPv4 alone. Raises ListenError.
    """
    for attempt in range(_FREE_PORT_TRIES):
        opened: list[socket.socket] = []
        host = ""
        try:
            for host in dict.fromkeys(hosts):
                chosen = port or (opened[0].getsockname()[1] if opened else 0)
                opened += await _open(host, chosen)
        except OSError as problem:
            _close(opened)
            if not (port == 0 and problem.errno == errno.EADDRINUSE and attempt + 1 < _FREE_PORT_TRIES):
                raise ListenError(_explain(problem, host, port)) from problem
        else:
            return opened
    raise AssertionError("the last attempt returns or raises")


async def _open(host: str, port: int) -> list[socket.socket]:
    if host == "localhost":
        first = _bind(socket.AF_INET, ("127.0.0.1", port))
        try:
            second = _bind_v6("::1", first.getsockname()[1])
        except OSError:
            first.close()
            raise
        return [first] if second is None else [first, second]
    if host in _EVERYWHERE or host == "::1":
        v6, v4 = ("::1", "127.0.0.1") if host == "::1" else ("::", "0.0.0.0")
        bound = _bind_v6(v6, port)
        if bound is None:
            log.warning("IPv6 is off on this machine, listening on IPv4", host=v6, instead=v4)
            bound = _bind(socket.AF_INET, (v4, port))
        return [bound]
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    opened: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            if family in (socket.AF_INET, socket.AF_INET6):
                chosen = port or (opened[0].getsockname()[1] if opened else 0)
                opened.append(_bind(family, (address[0], chosen, *address[2:])))
    except OSError:
        _close(opened)
        raise
    return opened


def _bind_v6(host: str, port: int) -> socket.socket | None:
    """A socket on an IPv6 address, or None where the machine has no IPv6."""
    if not socket.has_ipv6:
        return None
    try:
        return _bind(socket.AF_INET6, (host, port))
    except OSError as problem:
        if problem.errno in _NO_IPV6:
            return None
        raise


def _bind(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # `::` stands for IPv4 too; any other address for itself.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != "::"))
        sock.bind(address)
        sock.listen(_BACKLOG)  # now, so that a port in use shows here
    except OSError:
        sock.close()
        raise
    return sock


def _close(sockets: Iterable[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def _explain(problem: OSError, host: str, port: int) -> str:
    where = Address(host, port)
    if isinstance(problem, socket.gaierror):
        return f"cannot listen on {host}: no address is known for this name"
    if problem.errno == errno.EADDRINUSE:
        return f"cannot listen on {where}: the port is in use; stop what runs there or choose another --port"
    if problem.errno in (errno.EACCES, errno.EPERM):
        return f"cannot listen on {where}: not allowed; ports below 1024 need more rights, choose another --port"
    if problem.errno == errno.EADDRNOTAVAIL:
        return f"cannot listen on {where}: this machine has no such address; check --host"
    return f"cannot listen on {where}: {problem.strerror or problem}"
