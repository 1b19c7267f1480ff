"""A modelled link: delay, rate, jitter, loss and holes of each direction, the same for every connection over it.

It moves packets and knows nothing of what is in them. Sizes are bytes with every header, times virtual seconds.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

UNLIMITED: Final = 125_000_000.0  # bytes per second: a gigabit
QUEUE_BYTES: Final = 262_144  # what a deep queue before the bottleneck takes before it drops (bufferbloat)

Span: TypeAlias = tuple[float, float]
"""From ... until, seconds."""


@dataclass(frozen=True, slots=True)
class Direction:
    """What one direction does to packets.

    `rates`: (from second, bytes per second), ascending; the first counts from the beginning. `holes`: what would leave
    the bottleneck then is lost, as on a radio link without signal. `loss`: (from, until, probability).
    """

    delay_s: float = 0.0005
    rates: Sequence[tuple[float, float]] = ((0.0, UNLIMITED),)
    jitter_s: float = 0.0
    queue_bytes: int = QUEUE_BYTES
    holes: Sequence[Span] = ()
    loss: Sequence[tuple[float, float, float]] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """Both directions as seen from the client, and when every connection over it is reset."""

    down: Direction = field(default_factory=Direction)
    up: Direction = field(default_factory=Direction)
    resets: Sequence[float] = ()

    @property
    def rtt_s(self) -> float:
        """Of a small packet on an idle link."""
        return self.down.delay_s + self.up.delay_s


class Wire:
    """One direction at work: packets leave in the order they came, at the rate of the moment."""

    def __init__(self, direction: Direction, rng: random.Random) -> None:
        self._direction = direction
        self._rng = rng
        self._free_at = 0.0  # when the bottleneck has sent what it holds
        self._last_arrival = 0.0
        self._step = 0  # of the rates, at `_free_at`
        self.carried_bytes = 0
        self.dropped_packets = 0

    def carry(self, now: float, size: int) -> float | None:
        """When a packet that enters now arrives; None: it never does."""
        d = self._direction
        begin = max(now, self._free_at)
        if begin > now and (begin - now) * self._rate_at(begin) > d.queue_bytes:
            self.dropped_packets += 1
            return None
        leaves = self._free_at = self._finished(begin, size)
        if _within(d.holes, leaves) or self._is_lost(leaves):
            self.dropped_packets += 1
            return None
        self.carried_bytes += size
        arrives = leaves + d.delay_s
        if d.jitter_s:
            arrives += min(3 * d.jitter_s, self._rng.expovariate(1 / d.jitter_s))
        self._last_arrival = max(self._last_arrival, arrives)
        return self._last_arrival

    def _rate_at(self, moment: float) -> float:
        rates = self._direction.rates
        while self._step + 1 < len(rates) and rates[self._step + 1][0] <= moment:
            self._step += 1
        return rates[self._step][1]

    def _finished(self, begin: float, size: int) -> float:
        """When `size` bytes from `begin` on are through, across every change of the rate."""
        rates = self._direction.rates
        rate = self._rate_at(begin)
        at, left, step = begin, float(size), self._step
        while step + 1 < len(rates) and at + left / rate > rates[step + 1][0]:
            left -= (rates[step + 1][0] - at) * rate
            step += 1
            at, rate = rates[step]
        return at + left / rate

    def _is_lost(self, moment: float) -> bool:
        for begin, end, probability in self._direction.loss:
            if begin <= moment < end:
                return self._rng.random() < probability
        return False


def _within(spans: Sequence[Span], moment: float) -> bool:
    return any(begin <= moment < end for begin, end in spans)


def kbit(kilobits_per_s: float) -> float:
    """Bytes per second."""
    return kilobits_per_s * 125
