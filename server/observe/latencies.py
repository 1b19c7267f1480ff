"""The first audio of the last minutes, in slots of five seconds. Pure.

Kept as counts in bins a tenth apart, so that the slots of several processes add up, which percentiles do not.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from math import ceil, log
from typing import Any, Final

SLOT_S: Final = 5
SLOTS: Final = 120  # ten minutes
_STEP: Final = 1.1  # of one bin to the next: a percentile is exact to 5 %
_LAST_BIN: Final = 116  # a minute and more

Slots = dict[int, Counter[int]]
"""Counts by bin, by slot; slot k begins k * SLOT_S after the epoch, so that processes agree."""


class Latencies:
    """Times are seconds since the epoch."""

    def __init__(self) -> None:
        self._slots: deque[tuple[int, Counter[int]]] = deque(maxlen=SLOTS)

    def add(self, now: float, seconds: float) -> None:
        """One first audio."""
        slot = int(now // SLOT_S)
        if not self._slots or self._slots[-1][0] != slot:
            self._slots.append((slot, Counter()))
        self._slots[-1][1][bin_of(seconds)] += 1

    def slots(self, now: float) -> Slots:
        """Those of the last `SLOTS` slots that have any."""
        newest = int(now // SLOT_S)
        found: Slots = {}
        for slot, counts in self._slots:
            if newest - SLOTS < slot <= newest:
                found.setdefault(slot, Counter()).update(counts)
        return found


def bin_of(seconds: float) -> int:
    """The bin of a duration: bin 0 holds up to a millisecond."""
    ms = seconds * 1000
    return 0 if ms <= 1 else min(_LAST_BIN, ceil(log(ms, _STEP)))


def milliseconds_of(number: int) -> float:
    """The middle of a bin."""
    return float(_STEP ** (number - 0.5)) if number else 1.0


def percentile(counts: Mapping[int, int], share: float) -> float:
    """Milliseconds below which `share` of the counted lie. There must be some."""
    wanted = max(1, ceil(share * sum(counts.values())))
    for number in sorted(counts):
        wanted -= counts[number]
        if wanted <= 0:
            return milliseconds_of(number)
    raise ValueError("nothing was counted")


def merged(several: Iterable[Slots]) -> Slots:
    """The slots of several processes as one's."""
    found: Slots = {}
    for slots in several:
        for slot, counts in slots.items():
            found.setdefault(slot, Counter()).update(counts)
    return found


def to_json(slots: Slots) -> dict[str, dict[str, int]]:
    """For JSON, whose keys are strings."""
    return {str(slot): {str(number): count for number, count in counts.items()} for slot, counts in slots.items()}


def from_json(data: Mapping[str, Mapping[str, int]]) -> Slots:
    """Back again."""
    return {int(slot): Counter({int(n): count for n, count in counts.items()}) for slot, counts in data.items()}


def chart(slots: Slots, newest: int) -> list[dict[str, Any]]:
    """For the page, the oldest first: `ago_s` (of the slot's end; 0: now), `count`, `p50_ms`, `p95_ms`."""
    return [
        {
            "ago_s": (newest - slot) * SLOT_S,
            "count": counts.total(),
            "p50_ms": round(percentile(counts, 0.5), 1),
            "p95_ms": round(percentile(counts, 0.95), 1),
        }
        for slot, counts in sorted(slots.items())
        if newest - SLOTS < slot <= newest
    ]
