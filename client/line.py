"""Measurements of a session's connections: how often it came back, and in which mode audio came. Pure."""

from typing import Literal

Mode = Literal["stream", "block"]


class LineStatistics:
    """Times are seconds of one monotonic clock. `outage_s`: from the server's last word to the connection that went on,
    or to the moment the client gave up, added up. `out_since`: when the outage that still lasts began; None: none does.
    """

    def __init__(self, mode: Mode, now: float) -> None:
        self.resumes = 0
        self.restarts = 0
        self.outage_s = 0.0
        self.out_since: float | None = None
        self.resent_bytes = 0
        self.mode: Mode = mode
        self.mode_switches = 0
        self._since = now
        self._spent: dict[Mode, float] = {"stream": 0.0, "block": 0.0}

    def outage_begins(self, heard_at: float) -> None:
        """No connection carries the session any more; the server was last heard then."""
        self.out_since = heard_at

    def outage_ends(self, now: float) -> None:
        """A connection carries it again, or none is looked for any more. Nothing where there was no outage."""
        self.outage_s = self.outage_seconds(now)
        self.out_since = None

    def outage_seconds(self, now: float) -> float:
        """`outage_s`, and the outage that still lasts."""
        return self.outage_s + (0.0 if self.out_since is None else now - self.out_since)

    def resent(self, size: int) -> None:
        """So many bytes of audio came that were here already."""
        self.resent_bytes += size

    def mode_changed(self, mode: Mode, now: float) -> None:
        """Audio comes in this mode from now on."""
        if mode == self.mode:
            return
        self._spent[self.mode] += now - self._since
        self.mode, self._since = mode, now
        self.mode_switches += 1

    def mode_seconds(self, now: float) -> dict[str, float]:
        """How long audio came in each mode."""
        return {mode: spent + (now - self._since if mode == self.mode else 0.0) for mode, spent in self._spent.items()}
