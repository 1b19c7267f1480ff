"""Tells when a model has lost its way and says the same over and over."""

from collections.abc import Iterable, Sequence
from typing import Final

from server.engines.cosyvoice.config import ModelVersion

SAME_CODES: Final = 25  # in a row: a second
CYCLE: Final = 8  # codes of the longest cycle that is looked for
CYCLED_CODES: Final = 75  # that a longer cycle goes on for: three seconds
MOST_SILENT: Final = 5  # codes of a pause that are heard
_SILENCE: Final[dict[ModelVersion, frozenset[int]]] = {
    2: frozenset(),  # nothing is published about them
    3: frozenset((1, 2, 28, 29, 55, 248, 494, 2241, 2242, 2322, 2323)),
}


def silent_codes(version: ModelVersion) -> frozenset[int]:
    """The codes that are silence or breath: they may go on for long."""
    return _SILENCE[version]


class SilentRuns:
    """Shortens pauses as upstream does: of a run of silent codes five are heard."""

    def __init__(self, silent: Iterable[int]) -> None:
        self._silent, self._run = frozenset(silent), 0

    def heard(self, codes: Iterable[int]) -> list[int]:
        """Those of the next codes that are heard."""
        kept = []
        for code in codes:
            self._run = self._run + 1 if code in self._silent else 0
            if self._run <= MOST_SILENT:
                kept.append(code)
        return kept


class Watch:
    """Looks at the codes of one utterance as they come."""

    def __init__(self, silent: Iterable[int]) -> None:
        self._silent = frozenset(silent)
        self._like = [0] * (CYCLE + 1)  # [p]: how many of the last codes were equal to the one p before them

    def stuck(self, codes: Sequence[int]) -> bool:
        """Whether the last of `codes` makes it too much. Call it once for every code."""
        last = len(codes) - 1
        for period in range(1, CYCLE + 1):
            like = last >= period and codes[last] == codes[last - period]
            self._like[period] = self._like[period] + 1 if like else 0
        for period in range(1, CYCLE + 1):
            most = SAME_CODES if period == 1 else CYCLED_CODES
            if self._like[period] >= most - period and not self._silent.issuperset(codes[-period:]):
                return True
        return False
