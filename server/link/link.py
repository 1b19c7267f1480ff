"""The link of one session: told what is sent and acked, it says how to send."""

from math import inf
from typing import Final

from protocol.limits import ACK_INTERVAL_S
from server.link.buffer import ListenerBuffer
from server.link.estimator import HIDDEN_S, Estimator
from server.link.mode import (
    ACK_AGE_RTTS,
    ACK_AGE_S,
    ACK_AGE_SLACK_S,
    ACK_AGE_UNKNOWN_S,
    JITTER_S,
    Evidence,
    Load,
    Mode,
    ModeDecision,
    Switch,
)

LEAST_LEAD_S: Final = 0.3
MOST_LEAD_S: Final = 6.0
LEAD_DELAYS: Final = 2.0  # the lead covers the 95th percentile of the relative delay so many times
WITHHELD_S: Final = JITTER_S  # unacked for a round trip and this: the link, not the ack schedule, delays it
DEFAULT_MAX_LEAD_S: Final = 4.0  # `open.max_lead_ms` where a client does not choose


class Link:
    """See the module text. Call `decide` after each ack, each burst of sending, `resumed`, and at `next_check`.

    `paced`: the client limits the lead and so plays in real time; otherwise its buffer says nothing.
    `max_lead_s`: that limit.
    """

    def __init__(self, now: float, *, pinned: Mode | None, paced: bool, max_lead_s: float = DEFAULT_MAX_LEAD_S) -> None:
        self._now = now
        self._paced = paced
        self._max_lead_s = max_lead_s
        self._path = Estimator()
        self._buffer = ListenerBuffer()
        self._modes = ModeDecision(pinned)
        self._visible = True
        self._resumed_at = -inf

    # ---- events ----

    def resumed(self, now: float) -> None:
        """Another connection carries the session: nothing is known of its path."""
        self._now = now
        self._path = Estimator()
        self._buffer.forget()
        self._visible = True
        self._resumed_at = now

    def sent(self, now: float, size: int) -> None:
        """An audio frame of `size` bytes, header included, was written."""
        self._now = now
        self._path.sent(now, size)

    def acked(
        self, now: float, *, sent_at: float | None, size: int, buffered_ms: int, stalls: int, visible: bool
    ) -> None:
        """An ack came. It covers `size` bytes that none before it did, the newest of them written at `sent_at`."""
        self._now = now
        self._visible = visible
        self._path.acked(now, sent_at, size, visible=visible)
        if self._paced:
            self._buffer.reported(now, buffered_ms, stalls)

    # ---- how to send ----

    @property
    def mode(self) -> Mode:
        """As of the last decision."""
        return self._modes.mode

    @property
    def window(self) -> int:
        """Bytes that may be unacked, headers included."""
        return self._path.window

    @property
    def message_bytes(self) -> int:
        """The largest payload of one message: 250 ms of goodput, 20 ms of PCM at 48 kHz at least, 64 KiB at most."""
        return self._path.message_bytes

    @property
    def block_ms(self) -> int:
        """How much audio one message may hold; 0: as it was made. `message_bytes` bounds it, too."""
        return self._modes.block_ms

    @property
    def target_lead_s(self) -> float:
        """How much audio the listener should have in hand, seconds."""
        return min(MOST_LEAD_S, max(LEAST_LEAD_S, LEAST_LEAD_S + LEAD_DELAYS * self._path.delay_p95(self._now)))

    @property
    def goodput(self) -> float | None:
        """What the link delivers, bytes/s; None where it was not the bottleneck of late, so that nobody knows."""
        return self._path.bytes_per_s if self._path.limited else None

    @property
    def rtt_s(self) -> float | None:
        """The round trip, smoothed; None: not measured yet."""
        return self._path.srtt_s

    @property
    def listener_ms(self) -> int | None:
        """What the listener has in hand, as it told; None where audio does not flow."""
        return self._buffer.level_ms

    @property
    def ack_age_limit_s(self) -> float:
        """How old unacked audio may get before the link counts as disturbed."""
        path = self._path
        limit = ACK_AGE_UNKNOWN_S
        if path.srtt_s is not None:
            limit = max(ACK_AGE_S, ACK_AGE_RTTS * path.srtt_s + ACK_AGE_SLACK_S) + path.own_delay_s
        return limit if self._visible else limit + HIDDEN_S

    def decide(self, now: float, load: Load) -> Switch | None:
        """The switch of mode that is due, already made. A pinned mode never changes."""
        self._now = now
        self._path.waits_since(load.oldest_unacked_at)
        if load.idle:
            self._buffer.forget()
        switch = self._modes.decide(self._evidence(now, load))
        self._buffer.stalled = False  # told once
        return switch

    def next_check(self, now: float, load: Load) -> float | None:
        """When `decide` must be called although nothing happens; None: no need. Not before `now`."""
        at = self._modes.next_check(self._evidence(now, load))
        if self._buffer_counts(load) and (self._buffer.low or self._buffer.falling):
            withheld_at = self._withheld_at(load)
            at = min(at, withheld_at) if withheld_at > now else at
        return None if at == inf else max(now, at)

    # ---- inner parts ----

    def _evidence(self, now: float, load: Load) -> Evidence:
        oldest = load.oldest_unacked_at
        buffer = self._buffer
        withheld = self._buffer_counts(load) and self._is_withheld(now, load)
        return Evidence(
            now,
            load.idle,
            ack_late_at=inf if oldest is None else oldest + self.ack_age_limit_s,
            stalled=withheld and buffer.stalled,
            buffer_low=withheld and buffer.low,
            buffer_falling=withheld and buffer.falling,
            buffer_short=withheld and (buffer.level_ms or 0) < 1000 * self._attainable_lead(),
            delay_s=self._path.delay_p95(now),
            delays=self._path.delays,
            lead_s=load.lead_s if self._paced else 0.0,
            resumed_at=self._resumed_at,
        )

    def _buffer_counts(self, load: Load) -> bool:
        return self._paced and self._buffer.filled and load.playing and not load.idle

    def _is_withheld(self, now: float, load: Load) -> bool:
        """Whether the link keeps audio from the listener, and not a writer, an engine or a lead that is used up."""
        late = self._path.last_delay_s > WITHHELD_S or now >= self._withheld_at(load)
        return late or (load.waiting and load.lead_s < self._max_lead_s / 2)

    def _withheld_at(self, load: Load) -> float:
        if load.oldest_unacked_at is None:
            return inf
        rtt = ACK_AGE_UNKNOWN_S if self._path.min_rtt_s is None else self._path.min_rtt_s
        return load.oldest_unacked_at + rtt + WITHHELD_S + (0.0 if self._visible else HIDDEN_S)

    def _attainable_lead(self) -> float:
        """The target, as far as the client's limit lets its buffer get: a block and what is on its way are missing."""
        on_its_way = (self._path.min_rtt_s or 0.0) + ACK_INTERVAL_S + self.block_ms / 1000
        return min(self.target_lead_s, max(0.0, self._max_lead_s - on_its_way))
