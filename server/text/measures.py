"""Chinese readings of numbers with a unit ("100km/h" 每小时一百千米), from wetext's grammar.

Only the two Chinese graphs inside the wetext package are read, straight from its folder: importing the package would
load the graphs of all its languages and both directions (45 MB, a third of a second) for nothing.
"""

import importlib.util
import re
from functools import lru_cache
from pathlib import Path
from typing import Protocol

# The verbalizer wants the parts of these tokens in this order.
_ORDER = {
    "date": ("year", "month", "day"),
    "fraction": ("denominator", "numerator"),
    "measure": ("denominator", "numerator", "value"),
    "money": ("value", "currency"),
    "time": ("noon", "hour", "minute", "second"),
}
_TOKEN = re.compile(r'(\w+) \{ ((?:\w+: "(?:[^"\\]|\\.)*" ?)*)\}')
_PART = re.compile(r'(\w+): ("(?:[^"\\]|\\.)*")')
_MAX_LENGTH = 64


class _Graph(Protocol):
    def __call__(self, text: str) -> str: ...


@lru_cache(maxsize=1)
def _graphs() -> tuple[_Graph, _Graph]:
    import kaldifst  # here: loading takes 15 ms and is not needed by everyone who imports this package

    spec = importlib.util.find_spec("wetext")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("the package wetext is needed to read numbers", name="wetext")
    folder = Path(spec.submodule_search_locations[0]) / "fsts" / "zh" / "tn"
    return kaldifst.TextNormalizer(str(folder / "tagger.fst")), kaldifst.TextNormalizer(str(folder / "verbalizer.fst"))


def load() -> None:
    """Load the grammar now (about 35 ms, 10 MB) instead of at the first unit. ModuleNotFoundError without wetext."""
    _graphs()


@lru_cache(maxsize=4096)
def read_measure(text: str) -> str:
    """How Chinese reads `text`, a number with its unit; "" when the grammar cannot say."""
    if len(text) > _MAX_LENGTH:
        return ""
    tagger, verbalizer = _graphs()
    tagged = tagger(text)
    return verbalizer(_TOKEN.sub(_reorder, tagged)) if tagged else ""


def _reorder(token: re.Match[str]) -> str:
    name, parts = token.group(1), dict(_PART.findall(token.group(2)))
    order = [key for key in _ORDER.get(name, ()) if key in parts]
    order += [key for key in parts if key not in order]
    return f"{name} {{ {' '.join(f'{key}: {parts[key]}' for key in order)} }}"
