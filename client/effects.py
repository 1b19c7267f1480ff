"""What `SessionState` asks its shell to do: plain values, executed in order.

Connections are numbered: 0 is the one the session was opened on, later ones are opened to bring it back. One at a time
*carries* the session.
"""

from dataclasses import dataclass
from typing import TypeAlias

from client.errors import ClientError
from client.items import Item
from protocol.client_messages import ClientMessage


@dataclass(frozen=True, slots=True)
class Send:
    """Send this message on the connection that carries the session. A newer ack of the
    same utterance may replace one that still waits.
    """

    message: ClientMessage


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a further connection; report `SessionState.connected` or `refused`, within `reconnecting.ATTEMPT_S`."""

    connection: int


@dataclass(frozen=True, slots=True)
class SendOn:
    """Send this message on that connection, which does not carry the session (yet)."""

    connection: int
    message: ClientMessage


@dataclass(frozen=True, slots=True)
class Adopt:
    """From now on this connection carries the session. What still waits to be sent on the old one is discarded."""

    connection: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Abort this connection, or the attempt to open it. Nothing more is heard of it."""

    connection: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand this item to the utterance's consumer. `cost`: bytes to report to `SessionState.consumed` later."""

    utterance: int
    item: Item
    cost: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The utterance is over: nothing more comes of it."""

    utterance: int


@dataclass(frozen=True, slots=True)
class RoomGrew:
    """More text may be sent, or text may be sent again."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One line for the user: the connection was lost, the session goes on, what was lost of it."""

    text: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The session is over: give this error to every consumer and writer, then drop every connection."""

    error: ClientError


Effect: TypeAlias = Send | Connect | SendOn | Adopt | Drop | Deliver | Finished | RoomGrew | Notice | Failed
