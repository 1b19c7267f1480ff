"""How much of the engine each principal had lately."""

from typing import Final

HALF_LIFE_S: Final = 5.0  # engine time counts half after this long: a busy minute is forgotten soon
FORGOTTEN_S: Final = 1e-4  # less than this is nothing: the table stays as small as the number of busy principals


class Shares:
    """Engine seconds per principal, fading with time. Whoever had least goes first where not all can."""

    def __init__(self) -> None:
        self._had: dict[str, float] = {}  # in seconds of `_epoch`: later ones weigh more, so nothing must be faded
        self._epoch = 0.0

    def charge(self, principal: str, seconds: float, now: float) -> None:
        """`principal` had the engine for so long."""
        if now - self._epoch > 100 * HALF_LIFE_S:  # before the weights grow too large for a float
            self._rebase(now)
        self._had[principal] = self._had.get(principal, 0.0) + seconds * self._weight(now)
        if len(self._had) > 1_000:
            self._rebase(now)

    def had(self, principal: str) -> float:
        """For comparing principals at one time; has no unit."""
        return self._had.get(principal, 0.0)

    def __len__(self) -> int:
        return len(self._had)

    def _weight(self, now: float) -> float:
        return float(2.0 ** ((now - self._epoch) / HALF_LIFE_S))

    def _rebase(self, now: float) -> None:
        weight = self._weight(now)
        self._had = {name: had / weight for name, had in self._had.items() if had / weight > FORGOTTEN_S}
        self._epoch = now
