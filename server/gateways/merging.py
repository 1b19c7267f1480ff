"""Adds up the metrics of several processes, in the text format of Prometheus. Pure.

Counters, gauges and histograms are sums: of one server that happens to have several processes. The figures of a process
itself (`cosystream_process_*`) mean nothing as sums, so each keeps its own, with a label `gateway`.
"""

import math
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Final

OWN: Final = "cosystream_process_"
"""Metrics that are told apart by a label instead of being added."""
LABEL: Final = "gateway"


@dataclass(slots=True)
class _Family:
    comments: list[str] = field(default_factory=list)
    values: dict[str, float] = field(default_factory=dict)  # by name and labels, as written


def merge(texts: Iterable[tuple[str, bytes]], greatest: Container[str] = ()) -> bytes:
    """One text of several, each given with the value of its label. Families and series keep the order they first
    came in. Of the metrics and series named in `greatest` the greatest value counts: they are about something that all
    share. Raises ValueError for what is no such text.
    """
    families: dict[str, _Family] = {}
    for label, text in texts:
        family: _Family | None = None
        for line in text.decode().splitlines():
            if line.startswith("#"):
                _, _, name, *_ = line.split(" ", 3)  # HELP or TYPE
                family = families.setdefault(name, _Family())
                if line not in family.comments:
                    family.comments.append(line)
            elif line:
                if family is None:
                    raise ValueError(f"a value without a family: {line}")
                series, _, value = line.rpartition(" ")
                if series.startswith(OWN):
                    series = _labelled(series, label)
                one, others = float(value), family.values.get(series, 0.0)
                shared = series in greatest or series.partition("{")[0] in greatest
                family.values[series] = max(one, others) if shared else one + others
    lines = [
        line
        for family in families.values()
        for line in (*family.comments, *(f"{series} {_number(value)}" for series, value in family.values.items()))
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def _labelled(series: str, label: str) -> str:
    """`name{a="b"}` with one more label."""
    name, brace, labels = series.partition("{")
    return f'{name}{{{LABEL}="{label}"{"," if brace else "}"}{labels}'


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
