"""Round-trip time, delays and goodput of one connection, measured from when audio was written and when acks came.

An ack names the newest frame it covers, so the delay of that frame is a round trip plus what the client's ack schedule
adds (up to `ACK_TIMER_S`) plus queues. The schedule's part is taken off where the gap between acks shows that the timer
made the ack; the part that what we sent ourselves explains at the known goodput is taken off, too. What is left is the
network's doing: the relative delay.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from protocol.limits import ACK_INTERVAL_S, ACK_TIMER_S, MAX_UNACKED_BYTES
from server.link.filters import RecentQuantile, WindowedMax

FIRST_WINDOW: Final = 65_536  # bytes unacked before anything is known
LEAST_WINDOW: Final = 16_384
LARGEST_MESSAGE: Final = 65_536  # bytes; a quarter of what the protocol allows, so that a cancel is answered soon
SMALLEST_MESSAGE: Final = 1_920  # bytes: 20 ms at 48 kHz, the largest unit that is never split
MESSAGE_S: Final = 0.25  # goodput one message may take up
STANDING_S: Final = (
    0.15  # queue that the window leaves beside round trip and ack interval, so that the link never idles
)
QUEUE_S: Final = 0.1  # relative delay above which something queues
QUEUE_PROOF_S: Final = 0.25  # ... for how long, to be a queue and not one late packet
NEW_LINK_S: Final = 1.0  # a queue for so long that drains at less than ...
NEW_LINK_RATE: Final = 0.5  # ... this part of the known rate: what was measured before it was another link
KNOWN_FOR_S: Final = 60.0  # how long a limit that was seen is believed
FILTER_S: Final = 10.0  # window of the goodput's maximum and of the delays
MIN_RTT_S: Final = 15.0  # the smallest round trip is that of the last one to two such spans
MIN_RTT_ACKS: Final = 20  # ... each of at least so many acks
SRTT_RISE_S: Final = 3.0  # slow, so that a link that gets slower does not raise the ack age's limit as fast as the age
SRTT_RISE: Final = 1 / 8  # the most one sample counts when the value rises ...
SRTT_FALL: Final = 1 / 4  # ... and how much when it falls
FULL_PIPES: Final = 3.0  # so many times what a round trip and an ack interval deliver ...
FULL_BYTES: Final = 4_000  # ... and this: the lead of Opus fills a slow link long before the window is full
SHORTEST_S: Final = 0.01  # a rate over less says more about timers than about the link
GROWTH: Final = 2.0  # of the window while nothing is known to limit it
PROBE: Final = 1.25  # ... while a limit is known; now and then even where acks are late, as that may be jitter alone
PROBE_EVERY: Final = 8  # ... namely for one in so many times that the window covers
LONGEST_OWN_S: Final = 1.0  # the most delay that our own sending may explain
TIMER_GAP_S: Final = (0.9 * ACK_TIMER_S, 1.5 * ACK_TIMER_S)  # an ack so long after another was made by the timer
HIDDEN_S: Final = 1.0  # how much later a hidden page may ack: browsers wake its timers once a second
MAX_FLIGHTS: Final = 1_024


@dataclass(slots=True)
class _Flight:
    """Frames sent between two acks, and what was known then: the base of a rate sample when they are acked."""

    first_at: float
    delivered: int  # bytes acked when the flight began
    delivered_at: float
    covered_sent_at: float  # when the newest frame was written that was acked by then
    in_flight: int  # bytes unacked after its last frame


@dataclass(frozen=True, slots=True)
class _Stand:
    """Since when every ack came late, and the totals then."""

    since: float
    sent: int
    delivered: int


class Estimator:
    """See the module text. One per connection."""

    def __init__(self) -> None:
        self.srtt_s: float | None = None
        self.min_rtt_s: float | None = None
        self.last_delay_s = 0.0  # relative delay of the last ack
        self.bytes_per_s = 0.0  # goodput: the most that was delivered lately; a lower bound unless `limited`
        self.window = FIRST_WINDOW
        self._now = 0.0
        self._sent = self._delivered = 0  # bytes
        self._in_flight = 0
        self._acked_at: float | None = None  # the last ack of any kind
        self._delivered_at = self._covered_sent_at = 0.0
        self._flights: deque[_Flight] = deque()
        self._delays = RecentQuantile(FILTER_S, 0.95)
        self._rates = WindowedMax(FILTER_S)
        self._stand: _Stand | None = None
        self._limited_at: float | None = None
        self._span_at: float | None = None  # of the smallest round trip: when this span began
        self._span_rtt: float | None = None
        self._span_acks = 0
        self._span_queued = False

    # ---- events ----

    def sent(self, now: float, size: int) -> None:
        """Audio of `size` bytes was written."""
        self._now = now
        if not self._flights:
            self._flights.append(_Flight(now, self._delivered, now, now, 0))
        elif self._flights[-1].delivered != self._delivered and len(self._flights) < MAX_FLIGHTS:
            self._flights.append(_Flight(now, self._delivered, self._delivered_at, self._covered_sent_at, 0))
        self._sent += size
        self._in_flight += size
        self._flights[-1].in_flight = self._in_flight

    def acked(self, now: float, sent_at: float | None, size: int, *, visible: bool) -> None:
        """An ack came; see `Link.acked`."""
        gap = now - self._acked_at if self._acked_at is not None else 0.0
        self._now = self._acked_at = now
        full = self._is_full
        self._delivered += size
        self._in_flight = max(0, self._in_flight - size)
        if sent_at is None:
            return
        flight = self._flight_of(sent_at)
        held = ACK_TIMER_S if TIMER_GAP_S[0] <= gap <= TIMER_GAP_S[1] else 0.0
        self._take_delay(now, max(0.0, now - sent_at), held if visible else HIDDEN_S, self._own_delay(flight))
        if size and flight is not None:
            self._take_rate(now, sent_at, flight, full)
        self._delivered_at, self._covered_sent_at = now, sent_at
        self.window = self._new_window()

    def waits_since(self, oldest_unacked_at: float | None) -> None:
        """Frames written before this time are acked or will not be: their utterance was cancelled."""
        if oldest_unacked_at is None:
            self._flights.clear()
            self._in_flight = 0
            return
        self._flight_of(oldest_unacked_at)

    # ---- what is known ----

    @property
    def own_delay_s(self) -> float:
        """How much later than a round trip and an ack interval the oldest unacked frame may come by our own sending."""
        return self._own_delay(self._flights[0] if self._flights else None)

    @property
    def limited(self) -> bool:
        """The link was seen to be the bottleneck not long ago."""
        return self._limited_at is not None and self._now - self._limited_at < KNOWN_FOR_S

    @property
    def message_bytes(self) -> int:
        """See `Link.message_bytes`."""
        rate = self.bytes_per_s if self.limited else max(self.bytes_per_s, FIRST_WINDOW)
        return round(min(LARGEST_MESSAGE, max(SMALLEST_MESSAGE, MESSAGE_S * rate)))

    @property
    def delays(self) -> int:
        """How many relative delays `delay_p95` rests on."""
        return len(self._delays)

    def delay_p95(self, now: float) -> float:
        """The 95th percentile of the relative delay over 10 s, in seconds."""
        return self._delays.value(now)

    # ---- inner parts ----

    @property
    def _is_full(self) -> bool:
        """More is on its way than the link holds: by the window, or by far by what it delivered so far."""
        if self._in_flight >= 0.75 * self.window:
            return True
        if not self.bytes_per_s or self.min_rtt_s is None:
            return False
        return self._in_flight >= FULL_PIPES * self.bytes_per_s * (self.min_rtt_s + ACK_INTERVAL_S) + FULL_BYTES

    def _flight_of(self, sent_at: float) -> _Flight | None:
        """The flight of a frame; those before it are forgotten."""
        while len(self._flights) > 1 and self._flights[1].first_at <= sent_at:
            self._flights.popleft()
        return self._flights[0] if self._flights else None

    def _own_delay(self, flight: _Flight | None) -> float:
        if flight is None or not self.bytes_per_s or self.min_rtt_s is None:
            return 0.0
        return min(LONGEST_OWN_S, max(0.0, flight.in_flight / self.bytes_per_s - self.min_rtt_s - ACK_INTERVAL_S))

    def _take_delay(self, now: float, delay: float, held: float, own: float) -> None:
        """The newest frame's delay, of which the ack's schedule may explain `held` and our own sending `own`."""
        since_delay = now - self._delivered_at
        self.min_rtt_s = delay if self.min_rtt_s is None else min(self.min_rtt_s, delay)
        queue = max(0.0, delay - held - self.min_rtt_s)
        self.last_delay_s = max(0.0, queue - own)
        self._delays.add(now, self.last_delay_s)
        rtt = self.min_rtt_s + self.last_delay_s
        if self.srtt_s is None:
            self.srtt_s = rtt
        else:
            rise = min(SRTT_RISE, max(0.0, since_delay) / SRTT_RISE_S)
            self.srtt_s += (rtt - self.srtt_s) * (rise if rtt > self.srtt_s else SRTT_FALL)
        if queue <= QUEUE_S:
            self._stand = None
        elif self._stand is None:
            self._stand = _Stand(now, self._sent, self._delivered)
        if not held:
            self._take_span(now, delay)

    def _take_span(self, now: float, rtt: float) -> None:
        """Let the smallest round trip rise when the path became longer, but not for our own queue."""
        assert self.min_rtt_s is not None
        if self._span_at is None:
            self._span_at = now
        self._span_rtt = rtt if self._span_rtt is None else min(self._span_rtt, rtt)
        self._span_acks += 1
        self._span_queued = self._span_queued or self._stand is not None
        if now - self._span_at < MIN_RTT_S or self._span_acks < MIN_RTT_ACKS:
            return
        ours = 1.25 * self.window / self.bytes_per_s - self.min_rtt_s if self._span_queued and self.bytes_per_s else 0.0
        self.min_rtt_s = max(self.min_rtt_s, self._span_rtt - max(0.0, ours))
        self._span_at, self._span_rtt, self._span_acks, self._span_queued = now, None, 0, False

    def _take_rate(self, now: float, sent_at: float, flight: _Flight, full: bool) -> None:
        """A rate: what was delivered since the frame was sent, over the longer of sending it and acking it."""
        interval = max(now - flight.delivered_at, sent_at - flight.covered_sent_at, SHORTEST_S)
        rate = (self._delivered - flight.delivered) / interval
        self._rates.add(now, rate)
        stand = self._stand
        if stand is None or now - stand.since < QUEUE_PROOF_S:
            self.bytes_per_s = max(self.bytes_per_s, rate)
            return
        grows = self._delivered - stand.delivered < 0.9 * (self._sent - stand.sent)
        if not (full or grows):  # all that is sent arrives, only later: the link may be able to do more
            self.bytes_per_s = max(self.bytes_per_s, rate)
            return
        elapsed = now - stand.since
        if elapsed >= NEW_LINK_S and self._delivered - stand.delivered < NEW_LINK_RATE * self.bytes_per_s * elapsed:
            self._rates.forget_before(stand.since)
        self.bytes_per_s = self._rates.value or rate
        self._limited_at = now

    def _new_window(self) -> int:
        assert self.min_rtt_s is not None
        queued = self._stand is not None and self._now - self._stand.since >= QUEUE_PROOF_S
        span = self.min_rtt_s + ACK_INTERVAL_S + STANDING_S
        probes = not queued or self._now % (PROBE_EVERY * span) < span
        gain = 1.0 if not probes else PROBE if queued or self.limited else GROWTH
        size = gain * self.bytes_per_s * span
        least = max(LEAST_WINDOW, self.message_bytes) if self.limited else FIRST_WINDOW
        return round(min(MAX_UNACKED_BYTES, max(least, size)))
