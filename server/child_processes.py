"""What the processes that this one starts have in common: how they are started, where they listen, how they ended.

Gateways have a session of their own, with `start_new_session`: Ctrl-C on a terminal would end one that still imports
with Python's trace. The parent hears it and tells them; they end with the parent by themselves, however it ends.
"""

import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Final

LONGEST_PATH: Final = 100  # bytes of a unix socket's address: 104 on macOS, 108 on Linux


def command(module: str) -> tuple[str, ...]:
    """What runs a module of ours; with `environment` it finds its modules where this process found them, and nowhere
    else: `-P`, because what lies in the working directory is no module of ours.
    """
    return (sys.executable, "-P", "-m", module)


def environment() -> dict[str, str]:
    """This process's own, with the places that it imports from."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(place or os.curdir for place in sys.path)}


def private_folder(longest_name: int) -> Path:
    """A new folder that only this user may enter, for sockets with names of so many bytes at most. Raises OSError."""
    for parent in (None, "/tmp"):  # noqa: S108  # a new folder there, with a name nobody can guess and mode 0700
        folder = Path(tempfile.mkdtemp(prefix="cosystream-", dir=parent))
        if len(os.fsencode(folder)) + 1 + longest_name <= LONGEST_PATH:
            return folder
        folder.rmdir()
    raise OSError("no folder for temporary files has a path short enough for unix sockets")


def how_it_ended(status: int) -> str:
    """In words, what follows the name of a process that ended with this status (negative: a signal's number)."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:  # most real-time signals have no name
        return f"was ended by signal {-status}"
