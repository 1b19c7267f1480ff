"""The grammar of attacks as a whole, and many of them at a time."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from bench import _fuzz_frames, _fuzz_http, _fuzz_messages
from bench._fuzz_attack import Attack, perform

SHOWN: Final = 10  # faults that are told in full
_FAMILIES: Final = (_fuzz_http.MAKERS, _fuzz_frames.MAKERS, _fuzz_messages.MAKERS)


def attack(seed: int, number: int) -> Attack:
    """The attack of this number."""
    chance = Random(f"{seed}:{number}")
    return chance.choice(chance.choice(_FAMILIES))(chance)


@dataclass(slots=True)
class Tally:
    """What came of many attacks."""

    count: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def __iadd__(self, other: "Tally") -> "Tally":
        self.count += other.count
        self.outcomes += other.outcomes
        self.names += other.names
        self.faults = [*self.faults, *other.faults][:SHOWN]
        return self


async def perform_all(
    port: int, seed: int, numbers: Iterable[int], *, at_once: int, rate: float | None = None
) -> Tally:
    """Attacks side by side; `rate`: not more than so many a second."""
    tally = Tally()
    waiting = iter(numbers)
    loop = asyncio.get_running_loop()
    began = loop.time()
    begun = 0

    async def attacker() -> None:
        nonlocal begun
        for number in waiting:
            begun += 1
            if rate is not None:
                await asyncio.sleep(began + begun / rate - loop.time())
            each = attack(seed, number)
            outcome = await perform(port, each)
            tally.count += 1
            tally.names[each.name] += 1
            tally.outcomes[outcome.kind] += 1
            if outcome.fault and len(tally.faults) < SHOWN:
                tally.faults.append(f"attack {number} of seed {seed} ({each.name}): {outcome.fault}")

    await asyncio.gather(*(attacker() for _ in range(at_once)))
    return tally
