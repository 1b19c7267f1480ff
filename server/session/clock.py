"""What a session does because time passes: heartbeats, flushes, timeouts, and when a connection counts as dead."""

from protocol import limits
from protocol import server_messages as s
from protocol.errors import ErrorCode, ProtocolError
from server.engines.base import Capabilities
from server.session import journal
from server.session.policy import Policy
from server.session.returning import ReturningSide
from server.session.states import State


class ClockSide(ReturningSide):
    """Tells when it wants to be woken, and does then what is due."""

    def __init__(self, policy: Policy, capabilities: Capabilities, token: str, now: float, *, recorded: bool) -> None:
        super().__init__(policy, capabilities, token, now, recorded=recorded)
        self._opened_at = now

    @property
    def unfinished(self) -> bool:
        """Whether an utterance is being written, rendered, sent or acked: only then heartbeats are frequent."""
        return bool(self._speaking) or not self._delivery.ring.empty or not self._delivery.flow.idle

    @property
    def expires_at(self) -> float:
        """When a session without connection is given up."""
        everything = not self.unfinished and self._delivery.ring.all_confirmed and self._writing is None
        ttl = self._policy.resume_ttl_s
        return self._detached_at + (min(ttl, self._policy.resume_idle_ttl_s) if everything else ttl)

    def deadline(self) -> float:
        """When `on_time` must be called next."""
        if self.state is State.AWAITING_OPEN:
            return self._opened_at + self._policy.open_timeout_s
        if not self.attached:
            return self.expires_at
        times = [self._heard_from_at + self._policy.idle_timeout_s]
        beat_at = self._beat_at()
        if beat_at is not None:
            times.append(beat_at)
        if self._stalled():
            times.append(self._acked_at + self._policy.stall_timeout_s)
        flush_at = self._flush_at()
        if flush_at is not None:
            times.append(flush_at)
        dead_at = self._dead_at()
        if dead_at is not None and not self.dead:
            times.append(dead_at)
        if self._mode_place() is not None:
            check = self._delivery.link.next_check(self._now, self._delivery.load(self._paused))
            if check is not None:
                times.append(check)
        return min(times)

    def _beat_at(self) -> float | None:
        """When a heartbeat is due; None where something waits to be written already, or `resumed` must come first."""
        if len(self._answers) or not self.verified:
            return None
        return self._sent_at + (limits.HEARTBEAT_S if self.unfinished else limits.IDLE_HEARTBEAT_S)

    def _dead_at(self) -> float | None:
        """When the connection counts as dead: audio is unacked, and nothing at all was heard. A client that paused may
        be silent, and without resume a connection is all there is.
        """
        oldest = self._delivery.flow.oldest_sent_at
        if oldest is None or self._paused or self._policy.resume_ttl_s <= 0:
            return None
        return max(oldest, self._heard_from_at) + self._policy.detach_after_s

    def _stalled(self) -> bool:
        return not (self._delivery.flow.idle or self._paused)

    def _flush_at(self) -> float | None:
        """When text that looks complete is spoken although nothing followed; None where a client flushes itself."""
        utterance = self._writing
        delay = self.config.open.max_buffer_delay_ms if self.config else None
        if utterance is None or delay is None or not utterance.segmenter.pending or utterance.clock_flushed:
            return None
        return utterance.last_text_at + delay / 1000

    def on_time(self, now: float) -> None:
        """Do what is due."""
        self._now = now
        if self.state is State.AWAITING_OPEN:
            if now >= self._opened_at + self._policy.open_timeout_s:
                raise ProtocolError(
                    ErrorCode.OPEN_TIMEOUT, f"no `open` within {self._policy.open_timeout_s:g} s of connecting", "open"
                )
            return
        if not self.attached:
            return
        flush_at = self._flush_at()
        if flush_at is not None and now >= flush_at:
            utterance = self._written()
            utterance.segmenter.flush(soft=True)
            utterance.clock_flushed = True  # until more text comes
            self.journal.add(journal.FLUSH, utterance.id)
        if now >= self._heard_from_at + self._policy.idle_timeout_s:
            raise ProtocolError(
                ErrorCode.IDLE_TIMEOUT,
                f"nothing came for {self._policy.idle_timeout_s:g} s; a client that waits sends `ping`",
            )
        if self._stalled() and now >= self._acked_at + self._policy.stall_timeout_s:
            raise ProtocolError(
                ErrorCode.CLIENT_STALLED, f"audio stayed unacked for {self._policy.stall_timeout_s:g} s", "ack"
            )
        dead_at = self._dead_at()
        self.dead = dead_at is not None and now >= dead_at
        self._consider_mode()
        beat_at = self._beat_at()
        if beat_at is not None and now >= beat_at:
            self._answers.add(s.Heartbeat(self._delivery.event))
