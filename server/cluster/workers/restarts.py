"""How long a worker that ended is waited for before the next one starts. No I/O happens here."""

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """A worker that lived ten times as long as its start was put off, or `healthy_s`, starts again after `shortest_s`;
    one that did not is put off twice as long each time, `longest_s` at most.

    So workers that are killed now and then are back at once, those that crash as they start or at their first segment
    cost next to nothing, and nobody waits for more than a tenth of the time.
    """

    shortest_s: float = 0.1
    longest_s: float = 30.0
    healthy_s: float = 30.0
    _delay_s: float = 0.0

    def next_delay_s(self, lived_s: float) -> float:
        """Until the next start, of a worker that was ready for `lived_s` (0.0: it never was)."""
        healthy = lived_s >= min(10 * max(self._delay_s, self.shortest_s), self.healthy_s)
        self._delay_s = self.shortest_s if healthy or not self._delay_s else min(2 * self._delay_s, self.longest_s)
        return self._delay_s
