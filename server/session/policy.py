"""The server's side of a session: how long and how much."""

from collections.abc import Callable
from dataclasses import dataclass


def _nobody(principal: str, voice: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Policy:
    """What settings decide about every session. Times in seconds."""

    default_voice: str  # empty: the engine has none of its own
    open_timeout_s: float = 10.0
    idle_timeout_s: float = 300.0
    stall_timeout_s: float = 60.0
    read_ahead_ms: int = 10_000  # audio rendered and not yet sent
    ring_ms: int = 30_000  # audio rendered and not yet confirmed
    detach_after_s: float = 4.0  # audio unacked and nothing heard for so long: the connection is dead
    resume_ttl_s: float = 120.0  # how long a session without connection is kept; 0: not at all
    resume_idle_ttl_s: float = 10.0  # the same where the client has everything
    block_tokens: int = 256  # a sentence of more is cut again; fewer where the engine takes fewer
    block_window_tokens: int = 128  # of a block that such a sentence is cut into
    owns_voice: Callable[[str, str], bool] = _nobody  # whether a principal has a learnt voice with this id, now
    overlap_tokens: int = 16  # said just before, as context; fewer where the engine can use fewer
