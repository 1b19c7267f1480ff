"""When a server that owes audio counts as lost: it says nothing at all, or nothing but that it is alive. Pure."""

from typing import Final

from client.errors import ServerLost

WATCHDOG_S: Final = 1.2  # the server speaks at least every 0.5 s while an utterance is unfinished ...
MESSAGE_TIME_S: Final = 0.25  # ... and one message takes at most this long on the measured link
STUCK_S: Final = 30.0  # heartbeats alone, while there is text to speak: no engine takes so long for its next audio
LATE_TICK_S: Final = 0.25  # a tick this late means that this process slept, not the server


class Watchdog:
    """Times are seconds of one monotonic clock; `rtt_s` is how long an answer takes on this line."""

    def __init__(self, now: float, rtt_s: float) -> None:
        self._patience = max(WATCHDOG_S, 3 * MESSAGE_TIME_S + rtt_s)
        self.heard_at = now
        self._step = now

    def begin(self, now: float) -> None:
        """From here on the server owes something."""
        self.heard_at = now

    def moved(self, now: float, rtt_s: float) -> None:
        """Another connection carries the session."""
        self._patience = max(WATCHDOG_S, 3 * MESSAGE_TIME_S + rtt_s)
        self.heard_at = self._step = now

    def heard(self, now: float) -> None:
        """Anything came from the server."""
        self.heard_at = max(self.heard_at, now)

    def step(self, now: float) -> None:
        """The server did more than be alive, or got something to do."""
        self._step = now

    def deadline(self, *, awaits_speech: bool) -> float:
        """When to look. `awaits_speech`: the server has text to speak and nothing on this side holds it up."""
        due = self.heard_at + self._patience
        return min(due, self._step + STUCK_S) if awaits_speech else due

    def slept(self, now: float) -> None:
        """This process did not run for a while: messages may wait unread."""
        lately = now - self._patience / 2
        self.heard_at = max(self.heard_at, lately)
        self._step = max(self._step, lately)

    def silent(self, now: float) -> ServerLost | None:
        """That the connection counts as dead, without advice; None while it does not."""
        if now < self.heard_at + self._patience:
            return None
        return ServerLost(f"nothing came from the server for {now - self.heard_at:.1f} s")

    def stuck(self, now: float) -> ServerLost | None:
        """Why the server counts as lost though it is alive and awaits nothing; None while it does not."""
        if now < self._step + STUCK_S:
            return None
        return ServerLost(
            f"the server has stopped speaking: for {now - self._step:.0f} s it only said that it is alive; see its "
            "log, then run this again"
        )
