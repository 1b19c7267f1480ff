"""What a line is like: its two directions, their properties, where it is cut, and when TCP tries again. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from deploy.faulty_proxy.connection import Connection

LONGEST_RETRY_S: Final = 120.0  # TCP doubles the time between two attempts up to this (Linux)


class Direction(Enum):
    """Which way bytes go."""

    UP = "up"  # from the client to the server
    DOWN = "down"

    @property
    def other(self) -> "Direction":
        """The opposite one."""
        return Direction.DOWN if self is Direction.UP else Direction.UP


UP: Final = Direction.UP
DOWN: Final = Direction.DOWN


@dataclass(slots=True)
class Line:
    """One direction of the line, shared by all connections. Change it with `FaultyProxy.change`."""

    delay_s: float = 0.0
    jitter_s: float = 0.0  # up to so much more, at random; never out of order
    rate: float | None = None  # bytes a second, all connections together
    hole: bool = False
    free_at: float = 0.0  # when the last byte is through, where the rate is limited


@dataclass(frozen=True, slots=True)
class Cut:
    """What to do to a connection when exactly so many bytes of it were delivered in one direction.

    The place is `byte`, counted from the connection's first one, or `shift` bytes after the boundary of a WebSocket
    `message` (see `MessageBoundaries`; 0 is the end of the handshake). `how` is `Connection.reset` or the like. Behind
    the place nothing passes any more, in neither direction, whatever `how` does.
    """

    direction: Direction
    how: "Callable[[Connection], None]"
    byte: int | None = None
    message: int | None = None
    shift: int = 0


def next_attempt(lost_at: float, first_retry_s: float, now: float) -> float:
    """When TCP next sends again what was lost at `lost_at`: after 1, 3, 7, 15 ... times its first time-out."""
    due, wait = lost_at + first_retry_s, first_retry_s
    while due < now:
        wait = min(2 * wait, LONGEST_RETRY_S)
        due += wait
    return due
