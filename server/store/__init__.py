"""Where sessions are kept so that another process can go on with them: a journal of opaque lines for each session.

`base.py` is the contract, `memory.py` keeps nothing, `file.py` keeps one append-only file per session in a directory
(`journal_format.py` is what is in it, `journal_file.py` the file with its lock, `writer.py` the one thread that writes,
`file_journal.py` what one session has waiting for it).
"""

from server.store.base import FIRST_EPOCH, Activity, Claim, Journal, Observer, SessionStore, StoreError
from server.store.file import FileStore
from server.store.memory import MemoryStore

FORMS = "'memory' or 'file:DIRECTORY'"

__all__ = [
    "FIRST_EPOCH",
    "Activity",
    "Claim",
    "FileStore",
    "Journal",
    "MemoryStore",
    "Observer",
    "SessionStore",
    "StoreError",
    "open_store",
]


def open_store(spec: str, *, ttl_s: float, fsync: bool = False, observer: Observer | None = None) -> SessionStore:
    """The store that `spec` names: `memory` or `file:DIRECTORY`.

    Args:
        spec: what the setting says.
        ttl_s: seconds after which a session that nobody owns any more is forgotten; above 0.
        fsync: lines survive a loss of power, and not just the death of the process.
        observer: is told, on the event loop, what was written and what failed.

    Raises:
        ValueError: `spec` or `ttl_s` is none that there is; the text says which there are.
        StoreError: the directory cannot be used; the text names it.
    """
    kind, _, place = spec.strip().partition(":")
    if not ttl_s > 0:
        raise ValueError(f"a store keeps sessions for more than 0 seconds, not {ttl_s:g}")
    if kind == "memory" and not place:
        return MemoryStore()
    if kind == "file" and place.strip() and "\0" not in place:
        return FileStore(place.strip(), ttl_s=ttl_s, fsync=fsync, observer=observer)
    raise ValueError(f"a store is {FORMS}, not {spec!r}")
