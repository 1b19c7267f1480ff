"""The links of `bench.link`: what each does to packets, for how long speech runs over it, which formats it can carry.

Holes and resets come at a moment that the seed chooses, so that they meet frames, acks and timers in every phase.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from bench._simulated_link import Direction, Link, kbit

FORMATS: Final = ("pcm", "opus")
OPUS: Final = ("opus",)  # PCM of 24 kHz takes 384 kbit/s: below 500 kbit/s nobody would choose it
HOLES_S: Final = (0.5, 1.5, 3.0, 5.0, 8.0)
TROUBLE_S: Final = (8.0, 12.0)  # when the one hole or reset of a run begins


@dataclass(frozen=True, slots=True)
class Profile:
    """`link` makes the link of a seed. `trouble`: until when the link is bad, as (from, until), for recovery."""

    name: str
    speech_s: float
    link: Callable[[random.Random], Link]
    formats: Sequence[str] = FORMATS
    seeds: int | None = None  # fewer than asked for, where chance has little to decide
    is_calm: bool = False
    has_hole: bool = False
    cancel_after_s: float | None = None  # of sound


def steady(
    rtt_s: float, down_kbit: float, up_kbit: float | None = None, jitter_s: float = 0.0
) -> Callable[[random.Random], Link]:
    """A link that never changes."""

    def make(_: random.Random) -> Link:
        up = down_kbit if up_kbit is None else up_kbit
        return Link(
            Direction(rtt_s / 2, ((0.0, kbit(down_kbit)),), jitter_s),
            Direction(rtt_s / 2, ((0.0, kbit(up)),), jitter_s),
        )

    return make


def hole(seconds: float, *, down: bool = True) -> Callable[[random.Random], Link]:
    """A good link through which nothing passes for a while; not `down`: only upwards."""

    def make(rng: random.Random) -> Link:
        begin = rng.uniform(*TROUBLE_S)
        holes = ((begin, begin + seconds),)
        rates = ((0.0, kbit(20_000)),)
        return Link(
            Direction(0.02, rates, 0.002, holes=holes if down else ()), Direction(0.02, rates, 0.002, holes=holes)
        )

    return make


def reset(rng: random.Random) -> Link:
    """A good link whose connections are reset once."""
    direction = Direction(0.02, ((0.0, kbit(20_000)),), 0.002)
    return Link(direction, direction, resets=(rng.uniform(*TROUBLE_S),))


def lossy_upwards(rng: random.Random) -> Link:
    """A quarter of what goes up is lost for 20 seconds."""
    begin = rng.uniform(*TROUBLE_S)
    rates = ((0.0, kbit(20_000)),)
    return Link(Direction(0.02, rates, 0.002), Direction(0.02, rates, 0.002, loss=((begin, begin + 20.0, 0.25),)))


def rfc8867(_: random.Random) -> Link:
    """RFC 8867, section 5.1: 1 Mbit/s, 2.5 from 40 s, 0.6 from 60 s, 1 from 80 s; 50 ms, jitter 30 ms, queue 300 ms."""
    rates = ((0.0, kbit(1_000)), (40.0, kbit(2_500)), (60.0, kbit(600)), (80.0, kbit(1_000)))
    direction = Direction(0.05, rates, 0.01, queue_bytes=round(0.3 * kbit(1_000)))
    return Link(direction, direction)


def cellular(low_kbit: float, high_kbit: float, hole_s: float) -> Callable[[random.Random], Link]:
    """A synthetic trace: the rate walks at random twice a second, and now and then there is no signal for a while."""

    def make(rng: random.Random) -> Link:
        rates, holes = [], []
        rate = (low_kbit * high_kbit) ** 0.5
        next_hole = rng.expovariate(1 / 15)
        for step in range(400):
            moment = step / 2
            rate = min(high_kbit, max(low_kbit, rate * 2 ** rng.gauss(0, 0.5)))
            rates.append((moment, kbit(rate)))
            if moment > next_hole:
                holes.append((moment, moment + rng.uniform(0.2, hole_s)))
                next_hole = moment + 3 + rng.expovariate(1 / 15)
        return Link(
            Direction(0.04, tuple(rates), 0.01, holes=tuple(holes)),
            Direction(0.04, tuple((at, each / 2) for at, each in rates), 0.01, holes=tuple(holes)),
        )

    return make


PROFILES: Final = (
    Profile("calm, 1 ms", 600.0, steady(0.001, 1_000_000), seeds=1, is_calm=True),
    Profile("calm, 300 ms", 600.0, steady(0.3, 20_000, jitter_s=0.002), seeds=1, is_calm=True),
    Profile("RFC 8867 5.1", 100.0, rfc8867),
    Profile("slow 4G", 40.0, steady(0.15, 1_600, 750, 0.01)),
    *(Profile(f"hole {seconds:g} s", 40.0, hole(seconds), has_hole=True) for seconds in HOLES_S),
    Profile("hole up 3 s", 40.0, hole(3.0, down=False), has_hole=True),
    Profile("reset", 40.0, reset),
    Profile("loss up 25 %", 40.0, lossy_upwards),
    Profile("cellular", 60.0, cellular(500, 8_000, 2.5)),
    Profile("cellular, weak", 60.0, cellular(40, 1_000, 2.5), OPUS),
    Profile("48 kbit/s", 40.0, steady(0.2, 48), OPUS),
    Profile("32 kbit/s", 40.0, steady(0.2, 32), OPUS),
    Profile("barge-in", 20.0, steady(0.04, 20_000, jitter_s=0.002), cancel_after_s=3.0),
)
