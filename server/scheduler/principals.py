"""What each principal may use: sessions at a time, new sessions, characters and audio, and attempts that fail. Pure.

Times are seconds of one monotonic clock.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from server.scheduler.admission import Refusal
from server.scheduler.token_bucket import TokenBuckets

SESSIONS_RETRY_S: Final = 2.0  # nobody knows when a client closes one of its sessions
FAILURES_WINDOW_S: Final = 3600.0
WORTH_IT: Final = 0.01  # of a quota: with less than this nobody is told to come back


@dataclass(frozen=True, slots=True)
class PrincipalLimits:
    """As set; 0 is no bound. `failures`: attempts to open or to resume that fail, in an hour and at once."""

    sessions: int = 0
    session_rate: float = 0.0
    session_burst: int = 20
    chars: int = 0
    audio_s: float = 0.0
    window_s: float = 3600.0
    failures: int = 0


class PrincipalUse:
    """Keeps account of every principal. What is judged and what is counted are two steps: an `open` may still be bad.

    Of one who uses nothing, nothing is kept.
    """

    def __init__(self, limits: PrincipalLimits) -> None:
        self._limits = limits
        self._sessions: Counter[str] = Counter()
        self._opens = TokenBuckets(limits.session_burst if limits.session_rate else 0, limits.session_rate)
        self._chars = TokenBuckets(limits.chars, limits.chars / limits.window_s)
        self._audio_s = TokenBuckets(limits.audio_s, limits.audio_s / limits.window_s)
        self._failures = TokenBuckets(limits.failures, limits.failures / FAILURES_WINDOW_S)

    @property
    def has_quota(self) -> bool:
        """Whether characters or audio are counted."""
        return self._chars.bounded or self._audio_s.bounded

    def sessions(self, principal: str) -> int:
        """How many it has."""
        return self._sessions[principal]

    def full(self, principal: str) -> bool:
        """Whether it has as many sessions as it may."""
        return 0 < self._limits.sessions <= self.sessions(principal)

    def judge_open(self, principal: str, now: float) -> Refusal | None:
        """Whether it may open a session, as far as its rate and its quota go; see `full` for the number."""
        if self._opens.bounded and self._opens.level(principal, now) < 1.0:
            wait_s = self._opens.wait_s(principal, 1.0, now)
            return Refusal("rate", wait_s, f"at most {self._limits.session_rate:g} new sessions a second are allowed")
        return self.judge_begin(principal, now)

    def judge_begin(self, principal: str, now: float) -> Refusal | None:
        """Whether it may begin an utterance: not while it owes something."""
        return self._judge(principal, now, debts=0.0)

    def judge_more(self, principal: str, now: float) -> Refusal | None:
        """Whether it may add text to an utterance that was begun: not once it owes a whole quota."""
        return self._judge(principal, now, debts=1.0)

    def _judge(self, principal: str, now: float, *, debts: float) -> Refusal | None:
        """`debts`: how many quotas it may owe."""
        limits = self._limits
        for buckets, what in (
            (self._chars, f"{limits.chars:,} characters"),
            (self._audio_s, f"{limits.audio_s:g} s of audio"),
        ):
            if buckets.bounded and buckets.level(principal, now) <= -debts * buckets.size:
                wait_s = buckets.wait_s(principal, buckets.size * WORTH_IT, now)
                return Refusal("quota", wait_s, f"the quota of {what} in {limits.window_s:g} s is used up")
        return None

    def too_many(self, principal: str) -> Refusal:
        """The refusal of one who is `full`."""
        most = self._limits.sessions
        allowed = "1 session at a time is" if most == 1 else f"{most} sessions at a time are"
        return Refusal("sessions", SESSIONS_RETRY_S, f"at most {allowed} allowed")

    def entered(self, principal: str, now: float, *, new: bool = True) -> None:
        """A session of it exists; `new`: it was opened, not taken over from another process."""
        self._sessions[principal] += 1
        if new:
            self._opens.take(principal, 1.0, now)

    def left(self, principal: str) -> None:
        """A session of it is over."""
        self._sessions[principal] -= 1
        if self._sessions[principal] <= 0:
            del self._sessions[principal]

    def spoke(self, principal: str, chars: int, audio_s: float, now: float) -> None:
        """It used so much; more than was left becomes a debt."""
        self._chars.take(principal, chars, now)
        self._audio_s.take(principal, audio_s, now)

    def failed(self, who: str, now: float) -> Refusal | None:
        """An attempt failed, of a principal or of the address of one who is not known. Gives the refusal to answer
        with, where there have been too many.
        """
        if not self._failures.bounded:
            return None
        if self._failures.level(who, now) < 1.0:
            wait_s = self._failures.wait_s(who, 1.0, now)
            return Refusal("rate", wait_s, "too many attempts have failed")
        self._failures.take(who, 1.0, now)
        return None
