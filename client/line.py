"""Measurements of a session's connections: how often it came back, and in which mode audio came. Pure."""

from typing import Literal

Mode = Literal["stream", "block"]


class LineStatistics:
    """Times are seconds. `outage_s`: from the server's last word to the connection that went on, added up."""

    def __init__(self, mode: Mode, now: float) -> None:
        self.resumes = 0
        self.restarts = 0
        self.outage_s = 0.0
        self.resent_bytes = 0
        self.mode: Mode = mode
        self.mode_switches = 0
        self._since = now
        self._spent: dict[Mode, float] = {"stream": 0.0, "block": 0.0}

    def outage(self, seconds: float) -> None:
        """An outage has ended."""
        self.outage_s += seconds

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
