"""How many files and sockets this process may open: raised at the start to what the settings need."""

import resource
from typing import Final

from server.settings import Settings

OWN_FILES: Final = 128  # the engine's, worker processes, what listens, logs


def raise_file_limit(settings: Settings, max_sessions: int | None = None) -> str | None:
    """Raise the soft limit (RLIMIT_NOFILE) to what `settings` need, as far as the hard one lets it. Processes started
    later inherit it. Where it stays too low: what that means and what to do, in a line. `max_sessions` is what the user
    set, where `settings` are those of one process of several.
    """
    needed = needed_files(settings)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
        except (OSError, ValueError):
            pass  # macOS has a bound of its own below an unlimited hard one: what there is has to do
    allowed = _allowed()
    if allowed is None or allowed >= needed:
        return None
    if max_sessions is None:
        wish = f"max_sessions = {settings.max_sessions}"
    else:
        wish = f"its {settings.max_sessions} of max_sessions = {max_sessions}"
    return (
        f"this process may open {allowed} files, and {wish} may need {needed}: "
        "raise the hard limit (`ulimit -Hn`, LimitNOFILE of systemd, --ulimit nofile of docker) or lower max_sessions"
    )


def needed_files(settings: Settings) -> int:
    """How many files and sockets there are when every place is taken."""
    return _places(settings) + _journals(settings) + OWN_FILES


def max_connections(settings: Settings) -> int:
    """How many connections of any kind to take at a time, so that one more is refused in order (503) and never fails
    for want of a descriptor.
    """
    allowed = _allowed()
    if allowed is None:
        return _places(settings)
    # The store stops at half of what may be opened (`server/store/file.py`).
    return max(1, min(_places(settings), allowed - OWN_FILES - min(_journals(settings), allowed // 2)))


def _places(settings: Settings) -> int:
    """Connections: a session may hold two while it resumes, and HTTP needs some beside them."""
    return 2 * settings.max_sessions + 64


def _journals(settings: Settings) -> int:
    """Files of the session store: one for each session, where it is in a directory."""
    return 0 if settings.store == "memory" else settings.max_sessions


def _allowed() -> int | None:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft
