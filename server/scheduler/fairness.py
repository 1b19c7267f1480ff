"""How much of the engine each principal had lately."""

from typing import Final

HALF_LIFE_S: Final = 5.0  # engine time counts half after this long: a busy minute is forgotten soon
FORGOTTEN_S: Final = 1e-4  # less than this is nothing
MAX_AGE: Final = 100  # half-lives between two foldings, before the weights grow too large for a float
TIDY_AT: Final = 1_000  # principals


class Shares:
    """Engine seconds per principal, fading with time. Whoever had least goes first where not all can."""

    def __init__(self) -> None:
        self._had: dict[str, float] = {}  # in seconds of `_epoch`: later ones weigh more, so that none must be faded
        self._epoch = 0.0
        self._tidy_at = TIDY_AT

    def charge(self, principal: str, seconds: float, now: float) -> None:
        """`principal` had the engine for so long."""
        if now - self._epoch > MAX_AGE * HALF_LIFE_S or len(self._had) >= self._tidy_at:
            self._fold(now)
        weight = 2.0 ** ((now - self._epoch) / HALF_LIFE_S)
        self._had[principal] = self._had.get(principal, 0.0) + seconds * weight

    def had(self, principal: str) -> float:
        """For comparing principals with each other, at one time: it has no unit."""
        return self._had.get(principal, 0.0)

    def __len__(self) -> int:
        return len(self._had)

    def _fold(self, now: float) -> None:
        """Count from `now` on, and forget who had next to nothing."""
        faded = 2.0 ** ((self._epoch - now) / HALF_LIFE_S)
        self._had = {name: had * faded for name, had in self._had.items() if had * faded > FORGOTTEN_S}
        self._epoch = now
        self._tidy_at = max(TIDY_AT, 2 * len(self._had))
