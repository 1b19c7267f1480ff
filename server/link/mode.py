"""Streaming or block-wise: the triggers, and the hysteresis around them. Starting values from measured links.

A trigger that fires by mistake costs little (a barge-in wastes more audio), one that fires late costs an audible stall,
so STREAM is left at the first sign of trouble and entered again only after a while without any.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final, Literal

from protocol.limits import ACK_INTERVAL_S, ACK_TIMER_S

Mode = Literal["stream", "block"]

# Triggers.
ACK_AGE_S: Final = 0.4  # finds a blackhole at once, a link that became too slow within 0.7 s
ACK_AGE_RTTS: Final = 4.0  # ... and more where round trips are long: one lost packet costs TCP two to three
ACK_AGE_SLACK_S: Final = 0.15
ACK_AGE_UNKNOWN_S: Final = 1.0  # while no round trip was measured
JITTER_S: Final = ACK_TIMER_S + 0.08  # the ack schedule alone may delay acks by ACK_TIMER_S
JITTER_DELAYS: Final = 20  # with fewer, a single late ack would be the 95th percentile
RESUMED_S: Final = 30.0  # a link that broke is likely to break again

# Hysteresis.
DWELL_S: Final = 2.0  # the least time in a mode
GOOD_S: Final = 5.0  # how long all must be well before STREAM ...
MAX_GOOD_S: Final = 60.0  # ... doubled at each re-entry, up to this
REENTRY_S: Final = 60.0  # BLOCK again within this time of leaving it is a re-entry
CALM_S: Final = ACK_INTERVAL_S + 0.1  # relative delays (95th percentile) below this are well
IDLE_COUNTS_S: Final = 1.0  # of an idle time that follows good acks, so much counts as good
IDLE_FORGIVES_S: Final = 60.0  # after so long idle nothing is known of the link any more
BLOCKS_MS: Final = (200, 400, 800)
BLOCK_GROWS_S: Final = 2.0  # a trigger that holds so long in BLOCK makes the blocks larger


@dataclass(frozen=True, slots=True)
class Load:
    """What a session has to send.

    `oldest_unacked_at`: when the oldest audio frame was written that is not acked; None: all is acked.
    `waiting`: audio is ready and not written because the window or the lead is used up.
    `lead_s`: audio sent and not known to be played.
    `playing`: False while the client has paused the session.
    """

    oldest_unacked_at: float | None
    waiting: bool
    lead_s: float
    playing: bool

    @property
    def idle(self) -> bool:
        """Nothing is on its way and nothing waits: what happens now is not the link's doing."""
        return self.oldest_unacked_at is None and not self.waiting


@dataclass(frozen=True, slots=True)
class Switch:
    """The mode changes; `reason` is a trigger's, `recovered`, or `idle`."""

    mode: Mode
    reason: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a decision rests on. The buffer's fields are false where it says nothing about the link."""

    now: float
    idle: bool
    ack_late_at: float = inf  # when the oldest unacked audio reaches the limit of its age
    stalled: bool = False
    buffer_low: bool = False
    buffer_falling: bool = False
    buffer_short: bool = False  # below the target lead
    delay_s: float = 0.0  # relative, 95th percentile
    delays: int = 0  # how many it rests on
    lead_s: float = 0.0
    resumed_at: float = -inf


@dataclass(frozen=True, slots=True)
class Trigger:
    """A reason to send block-wise: the name clients hear, and the test."""

    reason: str
    holds: Callable[[Evidence], bool]


def _ack_age(e: Evidence) -> bool:
    """Audio is unacked for longer than max(0.4 s, 4 smoothed round trips + 0.15 s) and what our own queue explains."""
    return e.now >= e.ack_late_at


def _stall(e: Evidence) -> bool:
    """The listener's buffer ran dry while the link held audio back."""
    return e.stalled


def _buffer_low(e: Evidence) -> bool:
    """The listener's buffer is below half the pre-roll of 120 ms (`buffer.LOW_MS`)."""
    return e.buffer_low


def _buffer_falling(e: Evidence) -> bool:
    """It falls faster than 100 ms/s for 300 ms (`buffer.FALL_MS_PER_S`, `buffer.FALL_S`)."""
    return e.buffer_falling


def _jitter(e: Evidence) -> bool:
    """One ack in twenty comes later than `JITTER_S`, and than half the lead."""
    return not e.idle and e.delays >= JITTER_DELAYS and e.delay_s > max(JITTER_S, e.lead_s / 2)


def _resumed(e: Evidence) -> bool:
    """The connection broke within the last 30 s."""
    return e.now < e.resumed_at + RESUMED_S


RESUMED: Final = Trigger("resumed", _resumed)
TRIGGERS: Final = (
    Trigger("ack_age", _ack_age),
    Trigger("stall", _stall),
    Trigger("buffer_low", _buffer_low),
    Trigger("buffer_falling", _buffer_falling),
    Trigger("jitter", _jitter),
    RESUMED,
)  # the first that holds gives the reason


class ModeDecision:
    """The mode and when it changes."""

    def __init__(self, pinned: Mode | None) -> None:
        self.mode: Mode = pinned or "stream"
        self._pinned = pinned is not None
        self._entered_at = -inf
        self._left_block_at = -inf
        self._good_for = GOOD_S
        self._good_since: float | None = None
        self._idle_since: float | None = None
        self._trouble_since: float | None = None
        self._step = 0
        self._wants_block = False  # a trigger holds and the dwell is not over

    @property
    def block_ms(self) -> int:
        """Audio that one message may hold; 0: as the engine made it."""
        return BLOCKS_MS[self._step] if self.mode == "block" else 0

    def decide(self, e: Evidence) -> Switch | None:
        """The switch that is due, already made."""
        trigger = next((t for t in TRIGGERS if t.holds(e)), None)
        if self.mode == "block":
            self._grow(e, trigger)
            return None if self._pinned else self._leave(e, trigger)
        if self._pinned:
            return None
        self._wants_block = trigger is not None
        if trigger is None or (e.now < self._entered_at + DWELL_S and trigger is not RESUMED):
            return None
        return self._enter(e.now, trigger)

    def next_check(self, e: Evidence) -> float:
        """When time alone may change the mode; infinity: never. `e` as of the last decision, whatever time it is."""
        if self._pinned:
            return inf
        if self.mode == "stream":
            dwell_over = self._entered_at + DWELL_S
            if _resumed(e):
                return e.now
            return max(dwell_over, e.now if self._wants_block else e.ack_late_at)
        earliest = e.resumed_at + RESUMED_S
        at = e.ack_late_at if e.ack_late_at > e.now else inf  # it must be seen, so that the good time starts anew
        if e.idle:
            idle_since = e.now if self._idle_since is None else self._idle_since
            at = min(at, max(earliest, idle_since + IDLE_FORGIVES_S))
            counts_until = idle_since + IDLE_COUNTS_S
        else:
            counts_until = inf
        if self._good_since is not None and self._good_since + self._good_for <= counts_until:
            at = min(at, max(earliest, self._good_since + self._good_for))
        return at

    # ---- inner parts ----

    def _enter(self, now: float, trigger: Trigger) -> Switch:
        if now < self._left_block_at + REENTRY_S:
            self._good_for = min(MAX_GOOD_S, 2 * self._good_for)
            self._step = min(self._step + 1, len(BLOCKS_MS) - 1)
        else:
            self._good_for = GOOD_S
            self._step = 0
        self._good_since = self._idle_since = None
        self._trouble_since = None if trigger is RESUMED else now
        self._wants_block = False
        return self._switch(now, "block", trigger.reason)

    def _leave(self, e: Evidence, trigger: Trigger | None) -> Switch | None:
        self._count_idle(e)
        if trigger not in (None, RESUMED) or e.delay_s >= CALM_S or (e.buffer_short and not e.idle):
            self._good_since = None
        elif self._good_since is None and not e.idle:
            self._good_since = e.now
        if trigger is not None:
            return None
        reason = None
        good_until = e.now
        if self._idle_since is not None:
            good_until = min(e.now, self._idle_since + IDLE_COUNTS_S)
            if e.now >= self._idle_since + IDLE_FORGIVES_S:
                reason = "idle"
        if self._good_since is not None and good_until >= self._good_since + self._good_for:
            reason = "recovered"
        if reason is None or e.now < self._entered_at + DWELL_S:
            return None
        self._left_block_at = e.now
        return self._switch(e.now, "stream", reason)

    def _count_idle(self, e: Evidence) -> None:
        """Idle time proves nothing: but for its first second, the good time stands still meanwhile."""
        if e.idle:
            self._idle_since = e.now if self._idle_since is None else self._idle_since
        elif self._idle_since is not None:
            if self._good_since is not None:
                self._good_since += max(0.0, e.now - self._idle_since - IDLE_COUNTS_S)
            self._idle_since = None

    def _grow(self, e: Evidence, trigger: Trigger | None) -> None:
        if trigger in (None, RESUMED):
            self._trouble_since = None
        elif self._trouble_since is None:
            self._trouble_since = e.now
        elif (steps := int((e.now - self._trouble_since) // BLOCK_GROWS_S)) > 0:
            self._step = min(self._step + steps, len(BLOCKS_MS) - 1)
            self._trouble_since += steps * BLOCK_GROWS_S

    def _switch(self, now: float, mode: Mode, reason: str) -> Switch:
        self.mode = mode
        self._entered_at = now
        return Switch(mode, reason)
