"""What `SessionState` asks its shell to do: plain values, executed in order."""

from dataclasses import dataclass
from typing import TypeAlias

from client.errors import ClientError
from client.items import Item
from protocol.client_messages import ClientMessage


@dataclass(frozen=True, slots=True)
class Send:
    """Send this message. A newer ack may replace one that is still waiting."""

    message: ClientMessage


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
    """More text may be sent."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The session is over: give this error to every consumer and writer, then drop the connection."""

    error: ClientError


Effect: TypeAlias = Send | Deliver | Finished | RoomGrew | Failed
