"""Names of gateway processes, which the ids of their sessions begin with. Pure.

A name has a nonce: a process that was started in place of a dead one is another gateway, and has none of its sessions.
"""

import re
from typing import Final

FIRST_INDEX: Final = 1
NONCE_BYTES: Final = 4
MAX_NAME: Final = len("g9999-") + 2 * NONCE_BYTES  # characters
_NAME: Final = re.compile(r"g([0-9]{1,4})-[0-9a-f]{8}")
_SEPARATOR: Final = "."  # none of the characters that follow it in an id


def gateway_name(index: int, nonce: str) -> str:
    """The name of the gateway in this place (counted from 1), for one process. `nonce`: `NONCE_BYTES` in hex."""
    name = f"g{index}-{nonce}"
    assert _NAME.fullmatch(name)
    return name


def index_of(name: str) -> int:
    """The place of a gateway. ValueError where this is no name of one."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no gateway's name")
    return int(found[1])


def session_prefix(name: str) -> str:
    """What the ids of a gateway's sessions begin with; of none: nothing."""
    return name and name + _SEPARATOR


def owner_of(session: str) -> str | None:
    """The gateway that made a session with this id, or None where the id names none. Clients may send anything."""
    name, separator, _ = session.partition(_SEPARATOR)
    return name if separator and _NAME.fullmatch(name) else None
