"""A listener in virtual time: a sound device that pulls from the client's playout buffer and notes the silences."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from client.playout import Playout
from protocol.server_messages import Event, SegmentBegin, SegmentEnd

PULL_S: Final = 0.01
REPORT_PULLS: Final = 10  # as the client's device does: ten reports a second


class Timer(Protocol):
    """A virtual clock, or a real one."""

    @property
    def now(self) -> float:
        """Seconds."""

    def after(self, seconds: float, action: Callable[[], object]) -> object:
        """Do this so many seconds from now."""


@dataclass(slots=True)
class Hearing:
    """What a listener noticed. Seconds of virtual time."""

    first_sound: float | None = None
    silences: list[tuple[float, float]] = field(default_factory=list)  # between the first sound and the last
    heard_s: float = 0.0

    @property
    def silent_s(self) -> float:
        """For how long in all it was silent in the middle."""
        return sum(end - begin for begin, end in self.silences)

    def sound_again_after(self, moment: float) -> float | None:
        """How long after `moment` it sounds again; None: it was not silent then."""
        return next((end - moment for begin, end in self.silences if begin < moment < end), None)


class Player:
    """Plays one utterance. `report(sample, buffered_ms, stalls)` as the sound device of the client calls it."""

    def __init__(self, clock: Timer, playout: Playout, report: Callable[[int, int, int], None]) -> None:
        self.hearing = Hearing()
        self.playout = playout
        self.is_over = False
        self._complete = False
        self._clock = clock
        self._report = report
        self._pulls = 0
        self._silent_from: float | None = None
        self._samples = round(PULL_S * playout.sample_rate)

    def begin(self) -> None:
        """The device is open."""
        self._pull()

    def hear(self, pcm: bytes) -> None:
        """Audio arrived."""
        self.playout.push(pcm, self._clock.now)

    def told(self, event: Event) -> None:
        """As the client's sound device learns where segments begin and end."""
        if isinstance(event, SegmentBegin | SegmentEnd):
            self.playout.between(isinstance(event, SegmentEnd))

    def complete(self) -> None:
        """Everything is here."""
        self._complete = True
        self.playout.complete()

    def stop(self) -> None:
        """Nothing more is played."""
        self.playout.clear()
        self.is_over = True

    def _pull(self) -> None:
        if self.is_over:
            return
        now, playout, hearing = self._clock.now, self.playout, self.hearing
        before = playout.played_samples
        playout.pull(self._samples)
        played = playout.played_samples - before
        if played:
            if hearing.first_sound is None:
                hearing.first_sound = now
            if self._silent_from is not None:
                hearing.silences.append((self._silent_from, now))
                self._silent_from = None
        is_dry = played < self._samples and hearing.first_sound is not None and not self._complete
        if is_dry and self._silent_from is None:
            self._silent_from = now
        drained = playout.drained
        if self._pulls % REPORT_PULLS == 0 or drained:
            self._report(playout.played_samples, playout.buffered_ms, playout.stalls)
        self._pulls += 1
        if drained:
            hearing.heard_s = playout.played_samples / playout.sample_rate
            self.is_over = True
            return
        self._clock.after(PULL_S, self._pull)
