"""What a comparison found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from server.engines.cosyvoice.folder import Model

EXACT: Final = 0.0
LOG_CHANCE: Final = 1e-4
MEL: Final = 1e-4
WAVE: Final = 1e-3
NOISE: Final = 1e-6

Golden: TypeAlias = Mapping[str, npt.NDArray[np.float32] | npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Finding:
    """How far one entry was missed at most. `how` says which way it was computed, `note` what kept it from that."""

    entry: str
    how: str
    difference: float
    bound: float
    note: str = ""

    @property
    def ok(self) -> bool:
        """Within the bound; a difference that is no number is not."""
        return self.difference <= self.bound


class MissingInput(Exception):
    """A set lacks what an entry is computed of; the text is its name."""


@dataclass(slots=True)
class Case:
    """A set's model and vectors, and what several comparisons need."""

    model: Model
    golden: Golden
    drawn: dict[str, tuple[list[int], npt.NDArray[np.float32]]] = field(default_factory=dict)

    def ids(self, name: str, default: list[int] | None = None) -> list[int]:
        """An input of ids, of any shape. Raises MissingInput."""
        if name not in self.golden and default is not None:
            return default
        return [int(each) for each in self._input(name).ravel()]

    def tensor(self, name: str, *shape: int) -> Tensor:
        """An input of numbers, reshaped. Raises MissingInput."""
        return torch.from_numpy(self._input(name).astype(np.float32)).reshape(shape)

    def _input(self, name: str) -> npt.NDArray[np.float32] | npt.NDArray[np.int64]:
        if name not in self.golden:
            raise MissingInput(name)
        return self.golden[name]


def compare(case: Case, entry: str, how: str, found: object, bound: float, part: slice | None = None) -> Finding:
    """`found` (an array, a tensor or a list) against the entry; dimensions of length 1 do not count. `part`: of the
    entry's and the finding's numbers, one after the other.
    """
    made = _flat(found.detach().cpu().numpy() if isinstance(found, Tensor) else np.asarray(found), part)
    wanted = _flat(case.golden[entry], part)
    if made.shape != wanted.shape:
        return Finding(entry, how, float("inf"), bound, f"made {list(made.shape)}, expected {list(wanted.shape)}")
    if not wanted.size:
        return Finding(entry, how, 0.0, bound, "is empty")
    with np.errstate(invalid="ignore"):
        # -inf is a mark that may not be drawn, which the original code writes over its log-probability.
        apart = np.where((made == wanted) | np.isneginf(wanted), 0.0, np.abs(made - wanted))
    worst = float(np.max(apart))  # nan where there is one
    return Finding(entry, how, worst, bound, _first_apart(apart) if bound == EXACT and worst else "")


def _first_apart(apart: npt.NDArray[np.float64]) -> str:
    return f"first at {int(np.argmax(apart.ravel() != 0))} of {apart.size}"


def _flat(values: npt.NDArray[np.generic], part: slice | None) -> npt.NDArray[np.float64]:
    squeezed = np.squeeze(values).astype(np.float64)
    return squeezed if part is None else squeezed.ravel()[part]
