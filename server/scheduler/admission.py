"""Who may come in: how many speak, whether the engine can feed one more, and when to try again. Pure.

A session loads the engine only while it speaks, so it is judged twice: when it opens, and when it begins to speak after
it was idle. One that has opened counts beforehand for a moment, by how likely it is to speak, so that many that open at
once are seen. Times are seconds of one monotonic clock.
"""

from collections import OrderedDict
from dataclasses import dataclass
from math import exp
from random import Random
from typing import Final

from protocol.server_messages import BusyReason

GRACE_S: Final = 3.0  # so long one that opened, or whose writer pauses, counts although it says nothing
RESERVE: Final = 8  # one place of so many is kept from those who open, for sessions that are open and begin to speak
CALM_S: Final = 1.0  # after a sign of strain nobody is let in for so long
STEADY: Final = 0.05  # the measured capacity counts as the same within this share of it

# Signs of strain. A session that is open already is let speak up to twice as much. That sound or the event loop is late
# may have other causes where few speak; turning clients away would not help then.
FIRST_WAIT_S: Final = 0.4  # what a first sound would wait for the engine
LATE_S: Final = 0.1  # a listener had to wait so long for sound
LAG_S: Final = 0.25  # the event loop came so late to what was due
FEW: Final = 4  # one of so many places
OPEN_ALREADY: Final = 2.0

SPELL_S: Final = 5.0  # how long one speaks, while nobody has yet
MEMORY_SPELLS: Final = 20
MEMORY_OPENED: Final = 10
LEAST_LIKELY: Final = 0.02
FORGET_REFUSED_S: Final = 10.0  # a client that was turned away and is not back by then has given up
RETRY_S: Final = (0.5, 30.0)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why somebody is not let in, and when it may help to try again."""

    reason: BusyReason
    retry_after_s: float
    message: str

    @property
    def retry_after_ms(self) -> int:
        """The same in whole milliseconds."""
        return round(self.retry_after_s * 1000)


@dataclass(frozen=True, slots=True)
class Conditions:
    """How things are. `streams`: how many the engine can feed in real time (0.0: not known yet). `first_wait_s`: what a
    first sound would wait. `late_s`: how late sound came to a listener, lately. `lag_s`: how late the event loop is.
    `workers`: engines at work.
    """

    streams: float = 0.0
    first_wait_s: float = 0.0
    late_s: float = 0.0
    lag_s: float = 0.0
    workers: int = 1

    def strain(self, few: bool) -> float:
        """The worst sign; from 1.0 on it is too much. `few` speak."""
        first = self.first_wait_s / FIRST_WAIT_S
        return first if few else max(first, self.late_s / LATE_S, self.lag_s / LAG_S)


class Speakers:
    """Counts the sessions that speak, or are about to. Each change costs the same, however many there are."""

    def __init__(self) -> None:
        self._speaking: dict[str, float] = {}  # since when, also of those whose writer pauses
        self._pausing: OrderedDict[str, float] = OrderedDict()  # of these, until when; the first ends first
        self._opened: OrderedDict[str, float] = OrderedDict()  # have not spoken yet, until when
        self._begun = 0.0  # the sum of `_speaking`
        self._likely = 1.0  # that one who has opened speaks within GRACE_S
        self._spell_s = SPELL_S

    @property
    def speaking(self) -> int:
        """How many speak."""
        return len(self._speaking)

    def count(self, now: float, *, without: str = "") -> float:
        """How many speak or are about to, one of them left out."""
        self._forget(now)
        opened = len(self._opened) - (without in self._opened)
        return len(self._speaking) - (without in self._speaking) + self._likely * opened

    def counts(self, session: str, now: float) -> bool:
        """Whether it is among those who speak."""
        self._forget(now)
        return session in self._speaking

    def opened(self, session: str, now: float) -> None:
        """A session has opened."""
        self._opened[session] = now + GRACE_S

    def begins(self, session: str, now: float) -> None:
        """A session begins to speak, though there may be no text yet."""
        self.speaks(session, now)
        self._pausing[session] = now + GRACE_S

    def speaks(self, session: str, now: float) -> None:
        """A session has text that is not spoken yet."""
        if self._pausing and session in self._pausing:
            del self._pausing[session]
        if session not in self._speaking:
            if self._opened.pop(session, None) is not None:
                self._likely += (1.0 - self._likely) / MEMORY_OPENED
            self._speaking[session] = now
            self._begun += now

    def pauses(self, session: str, now: float) -> None:
        """All its text is spoken, and its writer may go on."""
        if session in self._speaking and session not in self._pausing:
            self._pausing[session] = now + GRACE_S

    def falls_silent(self, session: str, now: float) -> None:
        """It has nothing to say any more."""
        self._pausing.pop(session, None)
        since = self._speaking.pop(session, None)
        if since is not None:
            self._begun = self._begun - since if self._speaking else 0.0
            self._spell_s += (now - since - self._spell_s) / MEMORY_SPELLS

    def left(self, session: str, now: float) -> None:
        """The session is over."""
        self.falls_silent(session, now)
        self._opened.pop(session, None)

    def next_end_s(self, now: float) -> float:
        """Seconds until one of those who speak ends, on average. Who has spoken for long goes on for long."""
        count = len(self._speaking)
        if not count:
            return 0.0
        return max(self._spell_s, now - self._begun / count) / count

    def _forget(self, now: float) -> None:
        while self._opened and next(iter(self._opened.values())) <= now:
            self._opened.popitem(last=False)
            self._likely = max(LEAST_LIKELY, self._likely - self._likely / MEMORY_OPENED)
        while self._pausing:
            session, until = next(iter(self._pausing.items()))
            if until > now:
                break
            self.falls_silent(session, until)


class Admission:
    """Lets in as many as the engine can feed. `max_streams` above 0 replaces what is measured. One may always speak."""

    def __init__(self, max_streams: float, random: Random) -> None:
        self.speakers = Speakers()
        self._fixed = max_streams
        self._random = random
        self._measured = 0.0
        self._strained_until = float("-inf")
        self._turned_away = 0.0  # clients who will try again, as far as they may be expected to
        self._turned_away_at = 0.0

    def places(self, conditions: Conditions) -> int | None:
        """How many may speak; None while that is not known."""
        if self._fixed > 0:
            return max(1, int(self._fixed))
        if abs(conditions.streams - self._measured) > STEADY * self._measured:
            self._measured = conditions.streams
        return max(1, int(self._measured)) if self._measured > 0 else None

    def judge(self, now: float, conditions: Conditions, session: str = "") -> Refusal | None:
        """Whether one may come in who opens a session, or, with its name, whether that session may begin to speak."""
        if conditions.workers <= 0:
            return Refusal("loading", self.spread(1.0), "no engine is ready: it starts, or starts again")
        count = self.speakers.count(now, without=session)
        places = self.places(conditions)
        strain = conditions.strain(few=places is not None and count * FEW < places)
        if strain >= 1.0:
            self._strained_until = now + CALM_S
        if count >= 1.0:
            if places is not None and int(count) >= (places if session else places - places // RESERVE):
                return self._refuse(now, "as many sessions speak as it can keep supplied")
            if strain >= OPEN_ALREADY if session else now < self._strained_until:
                return self._refuse(now, "the sessions that speak need all its power")
        self._turned_away = max(0.0, self._turned_away - 1.0)
        return None

    def spread(self, seconds: float) -> float:
        """A time to try again in, such that those who were told so together do not come back together."""
        least, most = RETRY_S
        return min(max(seconds, least), most) * self._random.uniform(1.0, 1.5)

    def _refuse(self, now: float, why: str) -> Refusal:
        """Until a place is free for one more than those who wait for one already."""
        self._turned_away *= exp((self._turned_away_at - now) / FORGET_REFUSED_S)
        self._turned_away_at = now
        self._turned_away += 1.0
        wait_s = self.speakers.next_end_s(now) * self._turned_away
        return Refusal("capacity", self.spread(max(wait_s, CALM_S)), f"the server is full: {why}")
