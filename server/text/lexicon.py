"""A client's own words: where one of them is written, and what to read instead."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import lru_cache


class Lexicon:
    """Finds the longest of many written forms at a place of a text.

    Latin letters and digits at a form's edge must not touch others, so that "A" is not found in "AB". The forms lie
    sorted: of those that begin what is written at a place, the last one not behind it is the longest or leads to it.
    A look-up compares about `log2(forms)` texts; building takes a few milliseconds for 1000 forms of 200 characters.
    """

    def __init__(self, readings: Mapping[str, str]) -> None:
        """Index `readings`: written form -> what to read instead. Forms without any visible character never match."""
        self._readings = {form: reading for form, reading in readings.items() if form.strip()}
        self._forms = sorted(self._readings)
        self._longest = max(map(len, self._forms), default=0)
        self._first = frozenset(form[0] for form in self._forms)
        self._shorter: list[int] = []  # for each form, the longest other form that it begins with; -1: none
        for index, form in enumerate(self._forms):
            other = index - 1
            while other >= 0 and not form.startswith(self._forms[other]):
                other = self._shorter[other]
            self._shorter.append(other)

    def find(self, text: str, at: int) -> str | None:
        """The longest form written at `text[at:]`, or None."""
        if text[at] not in self._first or (at and _joins(text[at - 1], text[at])):
            return None
        index = bisect_right(self._forms, text[at : at + self._longest]) - 1
        while index >= 0:
            form = self._forms[index]
            end = at + len(form)
            if text.startswith(form, at) and not (end < len(text) and _joins(text[end - 1], text[end])):
                return form
            index = self._shorter[index]
        return None

    @property
    def readings(self) -> Iterable[str]:
        """All that may be read instead of something."""
        return self._readings.values()

    def reading(self, form: str) -> str:
        """What to read instead of `form`, as it was given."""
        return self._readings[form]


def _joins(left: str, right: str) -> bool:
    """Whether two neighbours belong to one Latin word or number."""
    return left.isascii() and left.isalnum() and right.isascii() and right.isalnum()


class _Same:
    """A mapping as a key that is equal to itself only: comparing or hashing 1000 entries for each cut is too slow."""

    def __init__(self, readings: Mapping[str, str]) -> None:
        self.readings = readings  # held, so that its identity is not given to another one

    def __hash__(self) -> int:
        return id(self.readings)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.readings is self.readings


def indexed(readings: Mapping[str, str]) -> Lexicon:
    """The index of `readings`, built once for each object: it must not change afterwards."""
    return _indexed(_Same(readings))


@lru_cache(maxsize=16)
def _indexed(key: _Same) -> Lexicon:
    return Lexicon(key.readings)
