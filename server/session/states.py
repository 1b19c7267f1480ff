"""Which message a client may send when. The table is the rule; the machine only looks it up."""

from enum import StrEnum
from typing import Final

from protocol import client_messages as c
from protocol.errors import ErrorCode, ProtocolError


class State(StrEnum):
    """A session's place in its life."""

    AWAITING_OPEN = "awaiting_open"
    IDLE = "idle"  # no utterance takes text
    WRITING = "writing"  # between `start` and `end`


_ALWAYS: Final = (c.Ack, c.Ping, c.Cancel, c.Pause, c.Unpause)
ALLOWED: Final[dict[State, tuple[type[c.ClientMessage], ...]]] = {
    State.AWAITING_OPEN: (c.Open, c.Resume, c.Ping),
    State.IDLE: (*_ALWAYS, c.Start),
    State.WRITING: (*_ALWAYS, c.Text, c.Silence, c.Flush, c.End),
}
_HINTS: Final = {
    State.AWAITING_OPEN: "the first message must be `open`",
    State.IDLE: "no utterance takes text: send `start` first",
    State.WRITING: "an utterance is being written: send `end` first",
}


def check_allowed(state: State, message: c.ClientMessage) -> None:
    """Raises ProtocolError where the message has no place in this state."""
    if not isinstance(message, ALLOWED[state]):
        hint = "the session is already open" if isinstance(message, c.Open | c.Resume) else _HINTS[state]
        raise ProtocolError(ErrorCode.UNEXPECTED, f"`{message.type}` is not allowed while {state}: {hint}", "type")
