"""The names and addresses that clients may reach this server by, as far as the machine and the settings know them."""

import ipaddress
import re
import socket
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from server.gateway.binding import Address
from server.settings import Settings, is_loopback

MOST_PAGES: Final = 4  # of a machine with containers, say, which has many addresses
ALWAYS: Final = ("localhost", "127.0.0.1", "::1")
_EVERYWHERE: Final = frozenset({"0.0.0.0", "::", "*"})
_NAME: Final = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_]([a-z0-9_-]{0,62}))*")
_ROUTES: Final = Path("/proc/net/fib_trie")
_IPV6: Final = Path("/proc/net/if_inet6")
_PASSING: Final = 0x01 | 0x20 | 0x40  # of an IPv6 address (if_addr.h): temporary, deprecated, tentative
_OUTSIDE: Final = "192.0.2.1"  # kept for documentation (RFC 5737); nothing is sent there


def names_of(settings: Settings) -> tuple[str, ...]:
    """Names in lower case, and addresses, each once. May ask a name server for what `host` names: it blocks."""
    found = [*ALWAYS, *_of_machine()]
    for host in settings.hosts:
        if host in _EVERYWHERE:
            found += interface_addresses()
        else:
            found += [host, *_addresses_of(host)]
    found += [urlsplit(origin).hostname or "" for origin in settings.origins]
    return tuple(dict.fromkeys(filter(None, map(_checked, found))))


def pages_elsewhere(address: Address, *, secure: bool) -> tuple[str, ...]:
    """What a person on another machine opens in a browser, where `address` is every one of this machine; else none."""
    if address.host not in _EVERYWHERE:
        return ()
    reached = [each for each in interface_addresses() if not is_loopback(each)]
    if address.host == "0.0.0.0":
        reached = [each for each in reached if ":" not in each]
    return tuple(Address(each, address.port).page(secure=secure) for each in reached[:MOST_PAGES])


def interface_addresses() -> list[str]:
    """Of this machine, without those that other machines cannot use or that do not last."""
    found: list[str] = []
    try:
        lines = _ROUTES.read_text(encoding="ascii").splitlines()
        found += [before.split()[-1] for before, line in pairwise(lines) if "/32 host LOCAL" in line]
    except OSError:  # no Linux: what other machines are reached from
        found += _outgoing()
    try:
        for line in _IPV6.read_text(encoding="ascii").splitlines():
            digits, _, _, _, flags, _ = line.split()
            if not int(flags, 16) & _PASSING:
                found.append(str(ipaddress.IPv6Address(bytes.fromhex(digits))))
    except (OSError, ValueError):
        pass  # without IPv6
    return [each for each in dict.fromkeys(found) if not _of_one_link(each)]


def _outgoing() -> Iterator[str]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((_OUTSIDE, 9))
            yield probe.getsockname()[0]
        except OSError:
            pass  # without a network


def _of_machine() -> Iterable[str]:
    name = socket.gethostname()
    return (name, f"{name}.local") if "." not in name else (name, name.partition(".")[0])


def _addresses_of(host: str) -> list[str]:
    if is_loopback(host):
        return []
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []  # whoever listens there says why that fails
    return [str(address[0]) for _, _, _, _, address in found]


def _of_one_link(address: str) -> bool:
    """Such addresses (fe80::) only hold with the name of an interface, which no certificate has."""
    return ipaddress.ip_address(address).is_link_local and ":" in address


def _checked(name: str) -> str:
    """As a certificate has it; empty where it can have none."""
    name = name.partition("%")[0].rstrip(".").lower()
    try:
        return "" if _of_one_link(name) else str(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        name = name.encode("idna").decode("ascii")
    except UnicodeError:
        return ""
    return name if _NAME.fullmatch(name) else ""
