"""Admission, carried out: how things are is asked of the pool and the event loop, and each session's use is counted.

What is decided, and by which figures, is in `server/scheduler/admission.py` and `principals.py`.
"""

import asyncio
from collections.abc import Callable
from random import Random

from server.cluster.base import EnginePool
from server.observe.metrics import Metrics
from server.scheduler.admission import Admission, Conditions, Refusal, Speakers
from server.scheduler.principals import PrincipalLimits, PrincipalUse
from server.session import Session


class Refused(Exception):
    """Somebody is turned away; `refusal` says why, and when to come back."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class Doorkeeper:
    """One of a server. `max_streams` and `limits` as set; `lag_s` tells how late the event loop is."""

    def __init__(
        self,
        metrics: Metrics,
        *,
        max_streams: float = 0.0,
        limits: PrincipalLimits | None = None,
        lag_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.use = PrincipalUse(limits or PrincipalLimits())
        self._metrics = metrics
        self._admission = Admission(max_streams, Random())
        self._lag_s = lag_s
        self._pool: EnginePool | None = None

    @property
    def speakers(self) -> Speakers:
        """Who speaks, or is about to."""
        return self._admission.speakers

    @property
    def speaking(self) -> int:
        """Sessions that speak, as admission counts them: those whose writer pauses for a moment are among them."""
        return self.speakers.speaking

    def follow(self, pool: EnginePool) -> None:
        """From here on this pool renders."""
        self._pool = pool

    def check_open(self, principal: str) -> None:
        """Raises Refused where this principal may not open a session now. The number of its sessions is not looked at:
        one that waits for its client could make way.
        """
        now = _now()
        refusal = self.use.judge_open(principal, now) or self.judge(now)
        if refusal is not None:
            raise self.refused(refusal)

    def judge(self, now: float, session: str = "") -> Refusal | None:
        """Why nobody may come in now, or why this session may not begin to speak, as things are."""
        return self._admission.judge(now, self._conditions(), session)

    def check_failure(self, who: str) -> None:
        """An attempt to open or to resume failed. Raises Refused where there were too many of this principal, or from
        this address.
        """
        refusal = self.use.failed(who, _now())
        if refusal is not None:
            raise self.refused(refusal)

    def refused(self, refusal: Refusal) -> Refused:
        """What to raise; it is counted."""
        self._metrics.refusals.labels(reason=refusal.reason).inc()
        return Refused(refusal)

    def enter(self, session: Session, *, new: bool = True) -> "Tally":
        """A session has a place from here on; `new`: it was opened here, not in another process."""
        return Tally(self, session, new=new)

    def spread(self, seconds: float) -> float:
        """A time to try again in; see Admission."""
        return self._admission.spread(seconds)

    def _conditions(self) -> Conditions:
        if self._pool is None:
            return Conditions(lag_s=self._lag_s())
        capacity = self._pool.capacity()
        return Conditions(
            streams=capacity.streams,
            first_wait_s=capacity.waiting_first * capacity.first_chunk_s / max(1, capacity.workers),
            late_s=capacity.late_s,
            lag_s=self._lag_s(),
            workers=capacity.workers,
        )


class Tally:
    """What one session uses, from its `open` to `close`. `changed` is called after all that may have changed it."""

    def __init__(self, doorkeeper: Doorkeeper, session: Session, *, new: bool) -> None:
        self.principal = session.principal
        self._session = session
        self._doorkeeper = doorkeeper
        self._use = doorkeeper.use
        self._speakers = doorkeeper.speakers
        self._chars = 0 if new else session.chars  # counted already: by another process, and below
        self._samples = 0 if new else session.delivery.samples_sent
        self._speaks = self._begun = False
        self._awaits_text = False  # an utterance was let in, and has none yet
        self._use.entered(self.principal, _now(), new=new)
        if new:
            self._speakers.opened(session.id, _now())
        if session.begun:
            self._speakers.begins(session.id, _now())
        self.changed()

    def check_start(self) -> Refusal | None:
        """Why the client may not begin an utterance, or None. Where others are unfinished only the quota counts."""
        self.changed()
        now, session = _now(), self._session
        refusal = self._use.judge_begin(self.principal, now)
        if refusal is None and not session.unfinished:
            refusal = self._doorkeeper.judge(now, session.id)
        if refusal is None:
            self._begun = True
            self._speaks, self._awaits_text = False, True
            self._speakers.begins(session.id, now)
        return refusal

    def check_text(self) -> Refusal | None:
        """Why the client may not add text to an utterance that was begun, or None. The first text is judged once more
        where it comes so late that the session does not count any longer: its place may be another's.
        """
        awaited, self._awaits_text = self._awaits_text, False
        late = awaited and not self._speakers.counts(self._session.id, _now())
        if not late and not self._use.has_quota:
            return None
        self.changed()
        refusal = self._use.judge_more(self.principal, _now())
        return self._doorkeeper.judge(_now(), self._session.id) if refusal is None and late else refusal

    def changed(self) -> None:
        """Text came, was spoken or cancelled; audio was sent; the client paused or is gone."""
        session = self._session
        speaks, begun = session.speaks, session.begun
        if speaks is not self._speaks or begun is not self._begun:
            self._speaks, self._begun = speaks, begun
            if speaks:
                self._speakers.speaks(session.id, _now())
            elif begun:
                self._speakers.pauses(session.id, _now())
            else:
                self._speakers.falls_silent(session.id, _now())
        if self._use.has_quota and session.config is not None:
            chars, samples = session.chars, session.delivery.samples_sent
            if chars != self._chars or samples != self._samples:
                audio_s = (samples - self._samples) / session.config.open.sample_rate
                self._use.spoke(self.principal, chars - self._chars, audio_s, _now())
                self._chars, self._samples = chars, samples

    def close(self) -> None:
        """The session is over."""
        self.changed()
        self._speakers.left(self._session.id, _now())
        self._use.left(self.principal)


def _now() -> float:
    return asyncio.get_running_loop().time()
