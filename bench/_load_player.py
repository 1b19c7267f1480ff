"""A listener: starts to play when the pre-roll is there, plays in real time, and waits for a new one where it ran dry.

Pure: it is told when audio came, and nothing happens in between that could not be computed later.
"""

from dataclasses import dataclass
from typing import Final

PREROLL_S: Final = 0.12  # what our own client waits for on a calm line (client.playout.PREROLL_MS)


@dataclass(slots=True)
class Underrun:
    """Playing ran dry at `moment` (the clock of the arrivals), at `sample`, for `length_s`."""

    moment: float
    sample: int
    length_s: float = 0.0


class Player:
    """Plays one utterance. Moments are seconds of one clock, samples those of the utterance."""

    def __init__(self, sample_rate: int, preroll_s: float = PREROLL_S) -> None:
        self.underruns: list[Underrun] = []
        self.received = 0
        self.complete = False
        self._rate = sample_rate
        self._preroll = round(preroll_s * sample_rate)
        self._zero: float | None = None  # when sample 0 would have been played, had there been no gap; None: it waits
        self._position = 0  # while it waits

    def arrived(self, now: float, end_sample: int) -> None:
        """Audio up to here is there."""
        self._run_to(now)
        self.received = max(self.received, end_sample)
        self._begin(now)

    def completed(self, now: float) -> None:
        """Nothing more comes."""
        self._run_to(now)
        self.complete = True
        if self.underruns and self._zero is None and self._position == self.received:
            self.underruns.pop()  # that was the end, not a hole
        self._begin(now)

    def played(self, now: float) -> int:
        """How far it has played."""
        self._run_to(now)
        return self._at(now)

    def ends(self) -> float | None:
        """When everything that is there will have been played; None while it waits."""
        return None if self._zero is None else self._zero + self.received / self._rate

    def stop(self, now: float) -> None:
        """The listener leaves: a hole that is still open ends here."""
        self._run_to(now)
        if self.underruns and self._zero is None and not self.complete:
            self.underruns[-1].length_s = now - self.underruns[-1].moment

    def _at(self, now: float) -> int:
        if self._zero is None:
            return self._position
        return max(0, min(self.received, int((now - self._zero) * self._rate)))

    def _run_to(self, now: float) -> None:
        ends = self.ends()
        if ends is not None and now > ends and not self.complete:
            self.underruns.append(Underrun(ends, self.received))
            self._zero, self._position = None, self.received

    def _begin(self, now: float) -> None:
        waiting = self.received - self._position
        if self._zero is not None or not waiting or (waiting < self._preroll and not self.complete):
            return
        self._zero = now - self._position / self._rate
        if self.underruns:
            hole = self.underruns[-1]
            hole.length_s = now - hole.moment
