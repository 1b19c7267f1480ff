"""The script of the engine `tone`: what goes wrong on demand, at which segments, and how often."""

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

STALL_MS: Final = 60_000
IN_STEP: Final = ("delay", "stall", "fail", "crash", "oom", "nan")  # when a step reaches the chunk
IN_AUDIO: Final = ("silent", "repeat")  # in what is rendered from the chunk on
ACTIONS: Final = (*IN_STEP, *IN_AUDIO)
KEYS: Final = ("action", "at", "match", "ms", "rate", "seed", "times", "transient")
MOST_TEXTS: Final = 4_096  # whose acts are counted, the newest


@dataclass(frozen=True, slots=True)
class Rule:
    """One line. It acts on segments whose text contains `match`, on a `rate` of them that `seed` chooses, when they
    reach chunk number `at`; on each text `times` times, 0: always. `transient`: trying again may help, says `fail`.
    """

    match: str
    at: int
    action: str
    ms: int = 0
    times: int = 0
    rate: float = 1.0
    seed: int = 0
    transient: bool = False


class Script:
    """The rules, and how often they acted. One engine step at a time may ask for a text."""

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self._rules = tuple(rules)
        self._acted: OrderedDict[tuple[int, str], int] = OrderedDict()

    def at(self, chunk: int, text: str, actions: Sequence[str]) -> list[Rule]:
        """The rules with these actions that act now, as the segment reaches the chunk. That counts."""
        if not self._rules:
            return []
        return [
            rule
            for number, rule in enumerate(self._rules)
            if rule.action in actions and rule.at == chunk and self._acts(number, rule, text)
        ]

    def in_audio(self, text: str) -> Rule | None:
        """The rule that shapes this segment's audio, if there is one. That counts."""
        for number, rule in enumerate(self._rules):
            if rule.action in IN_AUDIO and self._acts(number, rule, text):
                return rule
        return None

    def _acts(self, number: int, rule: Rule, text: str) -> bool:
        if rule.match not in text or not chosen(text, rule.rate, rule.seed):
            return False
        if rule.times:
            acted = self._acted.pop((number, text), 0) + 1
            self._acted[number, text] = acted
            if len(self._acted) > MOST_TEXTS:
                self._acted.popitem(last=False)
            return acted <= rule.times
        return True


def chosen(text: str, rate: float, seed: int) -> bool:
    """Whether a text is in the share `rate` of all texts that `seed` chooses."""
    digest = blake2b(f"{seed} {text}".encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < rate * 2**64


def rule_of(line: Mapping[str, Any]) -> Rule:
    """A line of the option, checked. Raises ValueError, one line."""
    action, match, transient = line.get("action"), line.get("match", ""), line.get("transient", False)
    if action not in ACTIONS:
        raise ValueError(f"engine option script: action must be one of {', '.join(ACTIONS)}, not {action!r}")
    if not isinstance(match, str):
        raise ValueError(f"engine option script: match must be a text, not {match!r}")
    if not isinstance(transient, bool):
        raise ValueError(f"engine option script: transient must be true or false, not {transient!r}")
    unknown = sorted(map(str, set(line) - set(KEYS)))
    if unknown:
        raise ValueError(f"engine option script: {unknown[0]} is not one of {', '.join(KEYS)}")
    return Rule(
        match,
        whole_number("script: at", line.get("at", 0), 0, 10**9),
        action,
        whole_number("script: ms", line.get("ms", STALL_MS if action == "stall" else 0), 0, STALL_MS),
        whole_number("script: times", line.get("times", 0), 0, 10**9),
        number("script: rate", line.get("rate", 1.0), 0, 1),
        whole_number("script: seed", line.get("seed", 0), 0, 2**32 - 1),
        transient,
    )


def whole_number(name: str, value: Any, lowest: int, highest: int) -> int:
    """The value of an engine option. Raises ValueError, one line."""
    found = number(name, value, lowest, highest)
    if not found.is_integer():
        raise ValueError(f"engine option {name} must be a whole number, not {value!r}")
    return int(found)


def switch(name: str, value: Any) -> bool:
    """Whether an engine option is on, also written as a text. Raises ValueError, one line."""
    found = {"true": True, "false": False}.get(str(value).lower())
    if found is None:
        raise ValueError(f"engine option {name} must be true or false, not {value!r}")
    return found


def number(name: str, value: Any, lowest: float, highest: float) -> float:
    """A number, also written as a text, as options from a command line are. Raises ValueError, one line."""
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not lowest <= found <= highest:
        raise ValueError(f"engine option {name} must be a number from {lowest:g} to {highest:g}, not {value!r}")
    return found
