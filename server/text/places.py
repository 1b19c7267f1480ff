"""The places inside a segment where it may be cut, and which of them is the best."""

from dataclasses import dataclass
from typing import Final

from server.text.breaks import Break, rate_break
from server.text.units import Unit

_LEAST_SHARE: Final = 0.45  # of a full segment that must stay before an inner cut


@dataclass(slots=True)
class Place:
    """A place where the segment may be cut: `at` is in the window; tokens and size count what is before it."""

    at: int
    tokens: int
    size: float
    line_start: int  # of the line it is in, to go back to
    rating: Break | None  # None: not rated yet; done when a cut is needed, from the units around it
    before: Unit
    after: Unit


class Places:
    """Those found so far in one segment."""

    def __init__(self, full_tokens: int) -> None:
        """`full_tokens`: of a full segment."""
        self._least_tokens = _LEAST_SHARE * full_tokens
        self._places: list[Place] = []

    def add(self, place: Place) -> None:
        """A later one than all others."""
        self._places.append(place)

    def best(self, text: str, budget: float, newest: Place | None = None) -> tuple[Place | None, Break]:
        """The best place and how good it is: a large segment counts before a good place, that before a late one.

        `text`: up to where it may be read. `newest` is not among the places yet. The rating of a place never changes
        once the character after its next one is known, so it is kept, and where it is none the place is forgotten:
        looking often costs no more than looking once.
        """
        best: Place | None = None
        best_rank: tuple[bool, int, int] = (False, Break.NONE, 0)
        useless = False
        for place in self._places:
            if place.rating is None:
                place.rating = rate_break(text, place.before, place.after)
            rank = self._rank(place, place.rating, budget)
            if rank is None:
                useless = True
            elif rank > best_rank:
                best, best_rank = place, rank
        if useless:
            self._places = [place for place in self._places if place.tokens and place.rating]
        if newest is not None:
            rank = self._rank(newest, rate_break(text, newest.before, newest.after), budget)
            if rank is not None and rank > best_rank:
                best, best_rank = newest, rank
        return best, Break(best_rank[1])

    def _rank(self, place: Place, rating: Break, budget: float) -> tuple[bool, int, int] | None:
        if not place.tokens or rating is Break.NONE:
            return None
        large = place.size >= _LEAST_SHARE * budget or place.tokens >= self._least_tokens
        return large, rating, place.at
