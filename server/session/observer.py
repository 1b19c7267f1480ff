"""What a session tells whoever keeps account of it, as it happens."""

from collections.abc import Mapping
from typing import Any

from server.link import Switch


class SessionObserver:
    """Every method does nothing: override those of interest. They are called in the middle of the session's own work,
    so they must not call it back.
    """

    def first_audio(self, utterance: int, seconds: float) -> None:
        """An utterance's first audio was handed out, `seconds` after its first cut was certain. Not told where the
        listener did not wait for it: earlier audio still played, or the client had paused or lost its connection.
        """

    def spoken(self, utterance: int, statistics: Mapping[str, Any]) -> None:
        """The `done` of an utterance was handed out, with its statistics (docs/protocol.md)."""

    def degraded(self, utterance: int, reason: str) -> None:
        """A segment was rendered otherwise than it was asked for, since the engine failed at it."""

    def stalled(self, utterance: int, count: int) -> None:
        """The client told that playing ran dry `count` times more."""

    def switched(self, switch: Switch) -> None:
        """The mode changed."""
